"""Modules that have a folder of their own within one of sentence-transformers."""

import json
from pathlib import Path
from typing import Any, Self

from safetensors.torch import load_file, save_file
from torch import nn

CONFIG, WEIGHTS = "config.json", "model.safetensors"


class SavedModule(nn.Module):
    """A module that sentence-transformers saves and loads: its class is built from :attr:`options`."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that build it."""
        raise NotImplementedError

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write what :meth:`load` reads into a folder, which may be there already."""
        folder = Path(output_path)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / CONFIG).write_text(json.dumps(self.options, indent=2) + "\n", encoding="utf-8")
        save_file(self.state_dict(), folder / WEIGHTS, metadata={"format": "pt"})

    @classmethod
    def load(cls, input_path: str) -> Self:
        """Read what :meth:`save` wrote."""
        folder = Path(input_path)
        module = cls(**json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        module.load_state_dict(load_file(folder / WEIGHTS))
        return module

"""Weights trained elsewhere as a model folder of this package."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_linformer.errors import InputError
from torch_linformer.models import LinformerPreTrainedModel, convert
from torch_linformer.opening.folders import check_free, new_folder
from torch_linformer.opening.pretrained import quiet_transformers


@dataclass(frozen=True)
class Origin:
    """Where weights come from: what converts them, and which of the options it takes."""

    convert: Callable[..., LinformerPreTrainedModel]
    options: tuple[str, ...]


ORIGINS = {
    "lucidrains": Origin(convert.from_lucidrains, ("heads",)),
    "linformer-pytorch": Origin(convert.from_linformer_pytorch, ("activation",)),
    "fairseq": Origin(convert.from_fairseq, ("heads",)),
}
_ARGUMENTS = {"heads": "num_heads"}  # what the converters call these options


def import_model(source: str, origin: str, output: Path, **options: Any) -> LinformerPreTrainedModel:
    """Write weights trained elsewhere as a model folder: configuration and safetensors.

    ``source`` is a checkpoint file, ``origin`` a key of :data:`ORIGINS`. Options that are None count as not given.
    """
    if origin not in ORIGINS:
        raise InputError(
            f"--from must be one of {', '.join(ORIGINS)}, got {origin!r}; linformer adapt takes encoders of "
            "transformers"
        )
    changed = {name: value for name, value in options.items() if value is not None}
    for name in sorted(changed.keys() - ORIGINS[origin].options):
        raise InputError(f"--{name.replace('_', '-')} has no effect with --from {origin}")
    check_free(output)
    if not Path(source).exists():
        raise InputError(f"{source}: no such file")
    arguments = {_ARGUMENTS.get(name, name): value for name, value in changed.items()}
    model = ORIGINS[origin].convert(convert.read_checkpoint(source), **arguments)
    quiet_transformers()
    with new_folder(output) as folder:
        model.save_pretrained(folder)
    return model

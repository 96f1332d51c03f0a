"""The commands as functions of Python, with the same options: the names of ``torch_linformer`` itself.

They need the extra ``train`` and are imported when first used.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.api.commands import adapt, evaluate, export, train
    from torch_linformer.api.run import Run

__all__ = ["Run", "adapt", "evaluate", "export", "train"]

__getattr__, __dir__ = lazy_names(
    __name__, {"Run": ".run", **dict.fromkeys(("adapt", "evaluate", "export", "train"), ".commands")}
)

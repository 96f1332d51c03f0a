"""A training run, from its settings to a model folder with its report. Importing only this is free.

``adapt`` is :func:`torch_linformer.adaptation.adapt`, under its first name.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_linformer.adaptation import adapt

__all__ = ["adapt"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module("torch_linformer.adaptation"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""A training run, from its settings to a model folder with its report. Importing it alone is free.

``adapt`` is :func:`torch_linformer.adaptation.adapt`, by the name it had first.
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

"""Pretrained encoders made linear: a student with slots learns to do what its teacher does.

``adapt`` needs the extra `train` and is imported when first touched.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_linformer.adaptation.in_memory import adapt

__all__ = ["adapt"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(f"{__name__}.in_memory"), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

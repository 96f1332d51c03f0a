"""From documents to a trained model: data, tokenizer, tasks, training runs. Importing it alone is free.

``adapt`` needs the extra `train` and is imported when first touched.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_linformer.training.adaptation.adapt import adapt

_MODULES = {"adapt": "adaptation.adapt"}

__all__ = ["adapt"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""Looking inside a model. The names below are imported when first touched: they need the extra `train`."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_linformer.analysis.inspection.attention_plots import plot_attention, plot_projections
    from torch_linformer.analysis.inspection.inspect_text import inspect_text

_MODULES = {
    "inspect_text": "inspection.inspect_text",
    "plot_attention": "inspection.attention_plots",
    "plot_projections": "inspection.attention_plots",
}

__all__ = ["inspect_text", "plot_attention", "plot_projections"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"torch_linformer.analysis.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

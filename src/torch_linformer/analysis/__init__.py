"""Looking inside a model: what attends to what, how low the rank of that is, and the K that follows.

The names below need the extra ``train`` and are imported when first used.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.analysis.attention_plots import plot_attention, plot_projections
    from torch_linformer.analysis.inspection import inspect_text
    from torch_linformer.analysis.spectrum import Spectrum, measure_spectrum, suggest_k
    from torch_linformer.analysis.spectrum_report import plot_spectrum

__all__ = [
    "Spectrum",
    "inspect_text",
    "measure_spectrum",
    "plot_attention",
    "plot_projections",
    "plot_spectrum",
    "suggest_k",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "Spectrum": ".spectrum",
        "inspect_text": ".inspection",
        "measure_spectrum": ".spectrum",
        "plot_attention": ".attention_plots",
        "plot_projections": ".attention_plots",
        "plot_spectrum": ".spectrum_report",
        "suggest_k": ".spectrum",
    },
)

"""Looking inside a model: what attends to what, how low the rank of that is, and the K that follows.

The names below need the extra ``train`` and are imported when first used.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.analysis.inspection.attention_plots import plot_attention, plot_projections
    from torch_linformer.analysis.inspection.inspect_text import inspect_text
    from torch_linformer.analysis.spectra.advice import suggest_k
    from torch_linformer.analysis.spectra.spectrum import Spectrum
    from torch_linformer.analysis.spectra.spectrum_report import plot_spectrum
    from torch_linformer.analysis.spectra.spectrum_run import measure_spectrum

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
        "Spectrum": ".spectra.spectrum",
        "inspect_text": ".inspection.inspect_text",
        "measure_spectrum": ".spectra.spectrum_run",
        "plot_attention": ".inspection.attention_plots",
        "plot_projections": ".inspection.attention_plots",
        "plot_spectrum": ".spectra.spectrum_report",
        "suggest_k": ".spectra.advice",
    },
)

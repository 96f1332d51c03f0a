"""What attention does in a trained model: spectra and the K that follows from them.

The names below need the extra `train` and are imported when first touched.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_linformer.analysis.spectra.advice import suggest_k
    from torch_linformer.analysis.spectra.figures import plot_spectrum
    from torch_linformer.analysis.spectra.measurement import measure_spectrum
    from torch_linformer.analysis.spectra.spectrum import Spectrum

_MODULES = {
    "Spectrum": "spectra.spectrum",
    "measure_spectrum": "spectra.measurement",
    "plot_spectrum": "spectra.figures",
    "suggest_k": "spectra.advice",
}

__all__ = ["Spectrum", "measure_spectrum", "plot_spectrum", "suggest_k"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_MODULES[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

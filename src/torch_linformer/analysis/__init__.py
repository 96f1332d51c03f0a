"""What attention does in a trained model: spectra and the K that follows from them.

The names below need the extra `train` and are imported when first touched.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch_linformer.analysis.advice import suggest_k
    from torch_linformer.analysis.figures import plot_spectrum
    from torch_linformer.analysis.measurement import measure_spectrum
    from torch_linformer.analysis.spectrum import Spectrum

_MODULES = {
    "Spectrum": "spectrum",
    "measure_spectrum": "measurement",
    "plot_spectrum": "figures",
    "suggest_k": "advice",
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

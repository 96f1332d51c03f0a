"""A trained model at work: predictions, vectors, scores, text that goes on, export.

``Predictor`` needs the extra ``train`` and is imported when first used.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.inference.predictor import Predictor

__all__ = ["Predictor"]

__getattr__, __dir__ = lazy_names(__name__, {"Predictor": ".predictor"})

"""A trained model at work: predictions, vectors, scores, text that goes on, export.

The names below need the extra ``train`` and are imported when first used.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.inference.predictor import Embedder, Predictor

__all__ = ["Embedder", "Predictor"]

__getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(__all__, ".predictor"))

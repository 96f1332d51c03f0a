"""A trained model at work: predictions, vectors, search, scores, text that goes on, export.

The names below need the extra ``train`` and are imported when first used.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.inference.predictor import Embedder, Predictor
    from torch_linformer.inference.search import Hit, Searcher

__all__ = ["Embedder", "Hit", "Predictor", "Searcher"]

__getattr__, __dir__ = lazy_names(
    __name__, dict.fromkeys(("Embedder", "Predictor"), ".predictor") | dict.fromkeys(("Hit", "Searcher"), ".search")
)

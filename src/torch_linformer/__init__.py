"""Linear-time attention over long sequences: Linformer (Wang et al. 2020, arXiv 2006.04768) for PyTorch.

``torch_linformer.functional`` holds the mathematics, ``torch_linformer.nn`` the modules; both need only torch.
The names below are Hugging Face Transformers models, and ``linearize``, which makes an encoder of transformers
linear. They need the extra ``hf`` and are imported when first touched, so that importing this package stays instant.
``train``, ``adapt``, ``evaluate``, ``export``, ``inspect_text``, ``distill``, ``Predictor``, ``Embedder`` and
``Searcher`` do what the commands do, and need the extra ``train``.
Transformers' Auto classes know them, and ``attn_implementation="linformer"``, as soon as both packages are imported, in
whichever order.
"""

import importlib
from typing import TYPE_CHECKING, Any

from torch_linformer.registration import register_models

if TYPE_CHECKING:
    from torch_linformer.adaptation import distill
    from torch_linformer.analysis.inspection import inspect_text
    from torch_linformer.api import Run, adapt, evaluate, export, train
    from torch_linformer.encoders import linearize
    from torch_linformer.inference import Embedder, Predictor, Searcher
    from torch_linformer.models import (
        LinformerCache,
        LinformerConfig,
        LinformerForCausalLM,
        LinformerForConditionalGeneration,
        LinformerForMaskedLM,
        LinformerForMultipleChoice,
        LinformerForQuestionAnswering,
        LinformerForSequenceClassification,
        LinformerForTokenClassification,
        LinformerModel,
        LinformerSeq2SeqConfig,
    )
    from torch_linformer.opening.named_encoders import encoder_folder

__version__ = "0.1.0"

__all__ = [
    "Embedder",
    "LinformerCache",
    "LinformerConfig",
    "LinformerForCausalLM",
    "LinformerForConditionalGeneration",
    "LinformerForMaskedLM",
    "LinformerForMultipleChoice",
    "LinformerForQuestionAnswering",
    "LinformerForSequenceClassification",
    "LinformerForTokenClassification",
    "LinformerModel",
    "LinformerSeq2SeqConfig",
    "Predictor",
    "Run",
    "Searcher",
    "__version__",
    "adapt",
    "distill",
    "encoder_folder",
    "evaluate",
    "export",
    "inspect_text",
    "linearize",
    "train",
]

# Of names that are not in torch_linformer.models.
_ROOMS = {
    "linearize": "torch_linformer.encoders",
    "distill": "torch_linformer.adaptation",
    "encoder_folder": "torch_linformer.opening.named_encoders",
    "inspect_text": "torch_linformer.analysis",
    **dict.fromkeys(("Embedder", "Predictor", "Searcher"), "torch_linformer.inference"),
    **dict.fromkeys(("Run", "adapt", "evaluate", "export", "train"), "torch_linformer.api"),
}

_HF_EXTRA = {"safetensors", "tokenizers", "transformers"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        room = importlib.import_module(_ROOMS.get(name, "torch_linformer.models"))
        value = globals()[name] = getattr(room, name)
    except ModuleNotFoundError as error:
        library = (error.name or "").partition(".")[0]
        extra = "hf" if _ROOMS.get(name, "torch_linformer.encoders") == "torch_linformer.encoders" else "train"
        if library in ("", __name__) or (extra == "hf" and library not in _HF_EXTRA):
            raise
        raise ImportError(
            f'torch_linformer.{name} needs {error.name}: pip install "torch-linformer[{extra}]"', name=error.name
        ) from error
    return value


def __dir__() -> list[str]:
    return __all__


register_models()

"""What encoders of transformers call their parts: which can be linear, and their dropouts."""

import importlib
from types import ModuleType
from typing import Any, Literal

from transformers import PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, MODEL_FOR_MASKED_LM_MAPPING_NAMES

RELATIVE = "scores depend on the distance to a key, for N × N pairs, and a slot has no distance"
REFUSED = {
    "deberta": RELATIVE,
    "deberta-v2": RELATIVE,
    "t5": RELATIVE,
    "mt5": RELATIVE,
    "umt5": RELATIVE,
    "longformer": "it is linear already, by windows and global tokens",
    "big_bird": "it is linear already, by blocks",
    "xlnet": RELATIVE,
    "linformer": "is a Linformer already",
    "linear_encoder": "is linear already",
}
OWN_ATTENTION = {"mpnet": "torch_linformer.encoders.mpnet"}  # what stands there finds and replaces their modules
Place = Literal["states", "attention"]
NAMES: dict[Place, tuple[str, ...]] = {
    "states": (
        "hidden_dropout_prob",
        "hidden_dropout",
        "dropout",
        "embedding_dropout",
        "mlp_dropout",
        "activation_dropout",
        "esm_input_dropout",
    ),
    "attention": ("attention_probs_dropout_prob", "attention_dropout"),
}


def own_attention(family: str) -> ModuleType | None:
    """The module with ``find`` and ``replace`` of a family whose attention does not go through the interface."""
    return importlib.import_module(OWN_ATTENTION[family]) if family in OWN_ATTENTION else None


def check_kind(source: str, config: Any, model_class: type[PreTrainedModel] | None = None) -> None:
    """Raise ``ValueError``, in one line, for a model whose attention cannot be replaced by slots."""
    kind = config.model_type
    decodes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in (*MODEL_FOR_MASKED_LM_MAPPING_NAMES, "xlnet")
    is_encoder_alone = model_class is not None and any(x.__name__.endswith("Encoder") for x in model_class.__mro__)
    if kind in REFUSED:
        raise ValueError(f"{source} ({kind}): {REFUSED[kind]}")
    if config.is_encoder_decoder and not is_encoder_alone:
        raise ValueError(
            f"{source} ({kind}) is an encoder-decoder: its encoder alone can be linear, linearize(model.get_encoder())"
        )
    if (
        (decodes and not is_encoder_alone)
        or getattr(config, "is_decoder", False)
        or getattr(config, "add_cross_attention", False)
    ):
        raise ValueError(
            f"{source} ({kind}) is a decoder: its tokens see only what comes before them, and a slot mixes all "
            "positions"
        )
    if kind not in OWN_ATTENTION and any(
        getattr(config, name, None) for name in ("relative_attention", "relative_attention_num_buckets")
    ):
        raise ValueError(f"{source} ({kind}): {RELATIVE}")


def dropout_of(config: Any, place: Place) -> float:
    """The largest dropout of hidden states, or of the weights of attention."""
    return max((value for name in NAMES[place] if (value := getattr(config, name, None))), default=0.0)


def set_dropout(config: Any, place: Place, value: float) -> None:
    """Let every dropout of a place be ``value``; a model that is built already keeps its own."""
    for name in NAMES[place]:
        if getattr(config, name, None) is not None:
            setattr(config, name, value)

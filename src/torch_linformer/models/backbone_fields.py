"""The fields of a configuration whose backbone is a linear encoder of transformers: most follow from the encoder's."""

import inspect
from dataclasses import fields
from typing import Any

from transformers import PreTrainedConfig

from torch_linformer.encoders.classes import MODEL_TYPE, LinearConfig
from torch_linformer.encoders.families import dropout_of
from torch_linformer.nn.options import default_k

OF_HEADS = (  # fields that a head reads, whatever is below it
    "backbone_config",
    "pooling",
    "classifier_hidden_act",
    "classifier_dropout",
    "class_weights",
    "lexical_features",
    "lexical_letters",
    "read_window",
    "threshold",
    "max_answer_length",
    "activation_memory",
    "tie_word_embeddings",
    "use_cache",
)
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")  # whose owner is the tokenizer
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range")


def fill_from_backbone(config: Any) -> None:
    """Let the fields of a LinformerConfig say what its ``backbone_config`` says.

    Raises:
        ValueError: it is that of another model; or one of them says something else, or is an option of Linformer's own
            layers.
    """
    backbone = config.backbone_config
    if isinstance(backbone, dict) and backbone.get("model_type") == MODEL_TYPE:
        backbone = LinearConfig.from_dict(backbone)
    if not isinstance(backbone, LinearConfig):
        kind = backbone.get("model_type") if isinstance(backbone, dict) else backbone.model_type
        raise ValueError(
            f"backbone_config must be that of a linear encoder, got one of {kind}: take "
            "torch_linformer.linearize(model).config"
        )
    config.backbone_config = backbone
    own = fields_of(backbone)
    of_windows: tuple[str, ...] = ()
    if config.read_window is not None:
        if backbone.linformer is not None:
            raise ValueError(
                f"read_window={config.read_window} is for an encoder with its ordinary attention, and this one is "
                "linear and reads rows in one pass: leave it out"
            )
        if config.read_window <= config.exact_first + config.exact_last:
            raise ValueError(
                f"read_window={config.read_window} has no room beside exact_first={config.exact_first} and "
                f"exact_last={config.exact_last}"
            )
        of_windows = ("max_position_embeddings", "exact_first", "exact_last")
        own["k"] = default_k(config.max_position_embeddings)
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        if name in of_windows:
            continue
        if name in own:
            if value not in (field.default, own[name]):
                raise ValueError(
                    f"{name}={value!r} is not that of backbone_config, {own[name]!r}: leave it out, or change it there"
                )
            setattr(config, name, own[name])
        elif name in TOKENS:
            setattr(config, name, getattr(backbone, name) if value == field.default else value)
        elif name not in OF_HEADS and name not in _OF_TRANSFORMERS and value != field.default:
            raise ValueError(
                f"{name}={value!r} is for layers of Linformer, and backbone_config has others: leave it out"
            )
    if config.activation_memory == "reversible":
        raise ValueError(
            "activation_memory='reversible' needs other layers than those of backbone_config: take 'checkpoint'"
        )


def fields_of(backbone: LinearConfig) -> dict[str, Any]:
    """What a LinformerConfig calls the sizes and the attention of an encoder."""
    config: Any = backbone
    sizes = {name: getattr(config, name) for name in SIZES}
    sizes["intermediate_size"] = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", 0)
    sizes["type_vocab_size"] = getattr(config, "type_vocab_size", 0) if "token_type_ids" in inputs_of(backbone) else 0
    sizes["hidden_dropout_prob"] = dropout_of(config, "states")
    sizes["attention_probs_dropout_prob"] = dropout_of(config, "attention")
    if backbone.linformer is None:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        longest = getattr(config, "max_position_embeddings", 0)
        return {**sizes, "attention": "full", "num_key_value_heads": heads, "max_position_embeddings": longest}
    options = backbone.linear_options
    attention: dict[str, Any] = options.of_attention().attention
    heads = next(iter(backbone.attentions.values()))
    attention |= {"k": options.k, "num_key_value_heads": heads.num_kv_heads, "head_dim": heads.head_dim}
    attention.pop("num_kv_heads"), attention.pop("rotary_dim")
    return {**sizes, **attention, "max_position_embeddings": options.max_length}


def with_ordinary_attention(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration whose encoder has the attention that it had before it was linear."""
    kept = {name: x for name, x in config.items() if name in (*OF_HEADS, *TOKENS, "model_type", *_OF_TRANSFORMERS)}
    return {**kept, "backbone_config": {**config["backbone_config"], "linformer": None}}


def inputs_of(backbone: LinearConfig) -> frozenset[str]:
    """The names of what the encoder's ``forward`` takes."""
    return frozenset(inspect.signature(backbone.encoder_class.forward).parameters)


_OF_TRANSFORMERS = {field.name for field in fields(PreTrainedConfig)}

"""Checkpoints of fairseq's ``linformer_roberta``, the code of the paper's authors."""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.state import (
    build,
    check_names,
    count,
    fill,
    heads_for,
    report_left_out,
    tensors_in,
)
from torch_linformer.models.heads import LinformerForMaskedLM

EMBEDDINGS = {
    "embed_tokens.weight": "embeddings.word_embeddings.weight",
    "embed_positions.weight": "embeddings.position_embeddings.weight",
    "layernorm_embedding.weight": "embeddings.norm.weight",
    "layernorm_embedding.bias": "embeddings.norm.bias",
}
LAYER = {
    "layers.{layer}.self_attn.q_proj.weight": "encoder.layers.{layer}.self_attn.q_proj.weight",
    "layers.{layer}.self_attn.q_proj.bias": "encoder.layers.{layer}.self_attn.q_proj.bias",
    "layers.{layer}.self_attn.k_proj.weight": "encoder.layers.{layer}.self_attn.k_proj.weight",
    "layers.{layer}.self_attn.k_proj.bias": "encoder.layers.{layer}.self_attn.slot_bias_k",
    "layers.{layer}.self_attn.v_proj.weight": "encoder.layers.{layer}.self_attn.v_proj.weight",
    "layers.{layer}.self_attn.v_proj.bias": "encoder.layers.{layer}.self_attn.slot_bias_v",
    "layers.{layer}.self_attn.compress_k.weight": "encoder.layers.{layer}.self_attn.proj_k.weight",
    "layers.{layer}.self_attn.out_proj.weight": "encoder.layers.{layer}.self_attn.out_proj.weight",
    "layers.{layer}.self_attn.out_proj.bias": "encoder.layers.{layer}.self_attn.out_proj.bias",
    "layers.{layer}.self_attn_layer_norm.weight": "encoder.layers.{layer}.norm1.weight",
    "layers.{layer}.self_attn_layer_norm.bias": "encoder.layers.{layer}.norm1.bias",
    "layers.{layer}.fc1.weight": "encoder.layers.{layer}.linear1.weight",
    "layers.{layer}.fc1.bias": "encoder.layers.{layer}.linear1.bias",
    "layers.{layer}.fc2.weight": "encoder.layers.{layer}.linear2.weight",
    "layers.{layer}.fc2.bias": "encoder.layers.{layer}.linear2.bias",
    "layers.{layer}.final_layer_norm.weight": "encoder.layers.{layer}.norm2.weight",
    "layers.{layer}.final_layer_norm.bias": "encoder.layers.{layer}.norm2.bias",
}
VALUES = {  # absent with shared_kv_compressed
    "layers.{layer}.self_attn.compress_v.weight": "encoder.layers.{layer}.self_attn.proj_v.weight"
}
LANGUAGE_MODEL = {
    "lm_head.dense.weight": "lm_head.dense.weight",
    "lm_head.dense.bias": "lm_head.dense.bias",
    "lm_head.layer_norm.weight": "lm_head.norm.weight",
    "lm_head.layer_norm.bias": "lm_head.norm.bias",
    "lm_head.weight": "lm_head.decoder.weight",
    "lm_head.bias": "lm_head.decoder.bias",
}
# Names of other versions of fairseq, and copies of what stands elsewhere. The shared layer's bias enters no sum there.
RENAMED = ((r"^decoder\.", "encoder."), (r"\.emb_layer_norm\.", ".layernorm_embedding."))
REPEATED = re.compile(
    r"encoder\.(sentence_encoder\.)?version$"
    r"|encoder\.sentence_encoder\.(layers\.\d+\.shared_)?compress_layer\.(weight|bias)$"
    r"|encoder\.sentence_encoder\.layers\.\d+\.self_attn\.compress_[kv]\.bias$"
)
CLASSIFIERS = "classification_heads."
ACTIVATIONS = {"gelu": "gelu", "gelu_accurate": "gelu_new", "relu": "relu"}


def from_fairseq(checkpoint: Mapping[str, Any], *, num_heads: int | None = None) -> LinformerPreTrainedModel:
    """A ``linformer_roberta`` of fairseq: weights, and of its options the heads, the activation and the dropout.

    fairseq compresses the sequence first and adds the biases of keys and values after: here they are slot biases,
    and the inner bias is 0. Without padding the outputs are the original's; it ignores the padding mask in its
    attention, this model does not. The position table loses the rows that fairseq keeps for padding.

    Args:
        checkpoint: what ``read_checkpoint`` gives, or a state dict alone.
        num_heads: ``encoder_attention_heads``, where the checkpoint does not hold its options.

    Returns:
        A ``LinformerForMaskedLM``, or a ``LinformerModel`` where there is no ``lm_head``. Heads of classifiers are
        left out, and a line of the log says so.

    Raises:
        ValueError: no number of heads, an unknown activation, names or shapes of something else.
    """
    state = {_renamed(name): tensor for name, tensor in tensors_in(checkpoint).items()}
    options = _options(checkpoint)
    report_left_out([name for name in state if name.startswith(CLASSIFIERS)], "heads of classifiers")
    state = {
        name: tensor for name, tensor in state.items() if not name.startswith(CLASSIFIERS) and not REPEATED.match(name)
    }
    language_model = any(name.startswith("encoder.lm_head.") for name in state)
    ours = "linformer." if language_model else ""
    layers = count(state, r"encoder\.sentence_encoder\.layers\.(\d+)\.")
    names = fill(EMBEDDINGS, "encoder.sentence_encoder.", ours)
    has_values = any(name.endswith(".compress_v.weight") for name in state)
    for layer in range(layers):
        names |= fill(LAYER | VALUES if has_values else LAYER, "encoder.sentence_encoder.", ours, layer=layer)
    if language_model:
        names |= fill(LANGUAGE_MODEL, "encoder.")
    check_names("fairseq linformer_roberta", state, names)
    tensors = {our_name: state[their_name] for their_name, our_name in names.items()}
    config = _config(tensors, ours, layers, options, num_heads)
    _convert(tensors, ours, config)
    return build(LinformerForMaskedLM if language_model else LinformerModel, config, tensors)


def _renamed(name: str) -> str:
    for old, new in RENAMED:
        name = re.sub(old, new, name)
    return name


def _options(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """The model's options: "args" of older checkpoints, "cfg" of newer ones."""
    options = checkpoint.get("args")
    if options is None and isinstance(checkpoint.get("cfg"), Mapping):
        options = checkpoint["cfg"].get("model")
    if options is None or isinstance(options, Tensor):
        return {}
    return options if isinstance(options, Mapping) else vars(options)


def _config(
    tensors: Mapping[str, Tensor], prefix: str, layers: int, options: Mapping[str, Any], num_heads: int | None
) -> LinformerConfig:
    vocab_size, hidden_size = tensors[f"{prefix}embeddings.word_embeddings.weight"].shape
    first = f"{prefix}encoder.layers.0."
    k, max_len = tensors[f"{first}self_attn.proj_k.weight"].shape
    activation = options.get("activation_fn", "gelu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_fn must be one of {', '.join(ACTIVATIONS)}, the checkpoint has {activation!r}")
    stated = options.get("encoder_attention_heads")
    if num_heads is not None and stated not in (None, num_heads):
        raise ValueError(f"num_heads (--heads) is {stated} by the checkpoint's own options, got {num_heads}")
    head = tensors.get("lm_head.decoder.weight")
    return LinformerConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads_for(hidden_size, num_heads if stated is None else stated),
        intermediate_size=len(tensors[f"{first}linear1.bias"]),
        hidden_act=ACTIVATIONS[activation],
        hidden_dropout_prob=float(options.get("dropout", 0.0)),
        attention_probs_dropout_prob=float(options.get("attention_dropout", 0.0)),
        max_position_embeddings=max_len,
        type_vocab_size=0,
        # Positions begin behind the padding token's own row.
        pad_token_id=len(tensors[f"{prefix}embeddings.position_embeddings.weight"]) - max_len - 1,
        tie_word_embeddings=head is None or torch.equal(head, tensors[f"{prefix}embeddings.word_embeddings.weight"]),
        k=k,
        sharing=_sharing(tensors, prefix, layers),
        length_scaling=False,
        slot_bias=True,
    )


def _sharing(tensors: Mapping[str, Tensor], prefix: str, layers: int) -> str:
    """Which projections are one matrix: a checkpoint holds a copy for each of its users.

    Old versions of fairseq made a shared layer for each layer of the stack, so names alone do not tell.
    """
    keys = [tensors[f"{prefix}encoder.layers.{layer}.self_attn.proj_k.weight"] for layer in range(layers)]
    values = [
        tensors.get(f"{prefix}encoder.layers.{layer}.self_attn.proj_v.weight", keys[layer]) for layer in range(layers)
    ]
    if not all(torch.equal(*pair) for pair in zip(keys, values, strict=True)):
        return "headwise"
    return "layerwise" if layers > 1 and all(torch.equal(keys[0], matrix) for matrix in keys) else "kv"


def _convert(tensors: dict[str, Tensor], prefix: str, config: LinformerConfig) -> None:
    """Bring renamed tensors into our shapes."""
    positions = f"{prefix}embeddings.position_embeddings.weight"
    tensors[positions] = tensors[positions][-config.max_position_embeddings :]
    assert isinstance(config.k, int)
    shape = (config.num_attention_heads, config.k, -1)
    for layer in range(config.num_hidden_layers):
        attention = f"{prefix}encoder.layers.{layer}.self_attn."
        for letter in ("k", "v"):
            bias = tensors[f"{attention}slot_bias_{letter}"]
            tensors[f"{attention}{letter}_proj.bias"] = torch.zeros_like(bias)
            tensors[f"{attention}slot_bias_{letter}"] = bias.view(config.num_attention_heads, 1, -1).expand(shape)
        keys = tensors.pop(f"{attention}proj_k.weight")
        values = tensors.pop(f"{attention}proj_v.weight", keys)
        if config.sharing == "layerwise":
            tensors[f"{prefix}encoder.shared_projection.weight"] = keys.mT
            continue
        tensors[f"{attention}proj_k.weight"] = keys.mT
        if config.sharing == "headwise":
            tensors[f"{attention}proj_v.weight"] = values.mT

"""Checkpoints of fairseq's ``linformer_roberta``, the code of the paper's authors."""

import re
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor

from torch_linformer.models.backbone import LinformerModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.state import (
    State,
    add_zero_biases,
    build,
    count,
    expanded,
    heads_for,
    options_in,
    pop_projections,
    projections,
    renamed,
    report_left_out,
    sharing_of,
    tensors_in,
)
from torch_linformer.models.heads import LinformerForMaskedLM
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel

EMBEDDINGS = {
    "embed_tokens.weight": "embeddings.word_embeddings.weight",
    "embed_positions.weight": "embeddings.position_embeddings.weight",
    "layernorm_embedding.*": "embeddings.norm.*",
}
LAYER = {
    "self_attn.q_proj.*": "self_attn.q_proj.*",
    "self_attn.k_proj.weight": "self_attn.k_proj.weight",
    "self_attn.k_proj.bias": "self_attn.context.slot_terms.bias_k",
    "self_attn.v_proj.weight": "self_attn.v_proj.weight",
    "self_attn.v_proj.bias": "self_attn.context.slot_terms.bias_v",
    "self_attn.compress_k.weight": "self_attn.context.proj_k.weight",
    "self_attn.out_proj.*": "self_attn.out_proj.*",
    "self_attn_layer_norm.*": "norm1.*",
    "fc1.*": "linear1.*",
    "fc2.*": "linear2.*",
    "final_layer_norm.*": "norm2.*",
}
VALUES = {"self_attn.compress_v.weight": "self_attn.context.proj_v.weight"}  # absent with shared_kv_compressed
LANGUAGE_MODEL = {
    "lm_head.dense.*": "lm_head.dense.*",
    "lm_head.layer_norm.*": "lm_head.norm.*",
    "lm_head.*": "lm_head.decoder.*",
}
# Numbers of versions, tensors stored twice, and the bias of the shared layer, which is never used there.
REPEATED = re.compile(
    r"(.+\.)?version$"
    r"|encoder\.sentence_encoder\.(layers\.\d+\.shared_)?compress_layer\.(weight|bias)$"
    r"|encoder\.sentence_encoder\.layers\.\d+\.self_attn\.compress_[kv]\.bias$"
)
CLASSIFIERS = "classification_heads."
ACTIVATIONS = {"gelu": "gelu", "gelu_accurate": "gelu_new", "relu": "relu"}


def from_fairseq(checkpoint: Mapping[str, Any], *, num_heads: int | None = None) -> LinformerPreTrainedModel:
    """A ``linformer_roberta`` of fairseq: its weights, and from its options the heads, the activation and the dropout.

    fairseq compresses the sequence first and adds the biases of keys and values afterwards: here they are slot biases,
    and the inner bias is 0. Without padding the outputs are the original's; its attention ignores the padding mask,
    that of this model does not. The position table loses the rows that fairseq keeps for padding.

    Args:
        checkpoint: what ``read_checkpoint`` returns, or only a state dict.
        num_heads: ``encoder_attention_heads``, where the checkpoint does not hold its options.

    Returns:
        A ``LinformerForMaskedLM``, or a ``LinformerModel`` where there is no ``lm_head``. Classification heads are
        left out, and a log line lists their tensors.

    Raises:
        ValueError: no number of heads, an unknown activation, or names or shapes that do not fit.
    """
    state = {  # by the names of the last version of fairseq
        re.sub(r"^decoder\.", "encoder.", name).replace(".emb_layer_norm.", ".layernorm_embedding."): tensor
        for name, tensor in tensors_in(checkpoint).items()
    }
    classifiers = {name for name in state if name.startswith(CLASSIFIERS)}
    report_left_out(classifiers, "classification heads")
    state = {name: state[name] for name in state if name not in classifiers and not REPEATED.match(name)}
    language_model = any(name.startswith("encoder.lm_head.") for name in state)
    has_values = any(name.endswith(".compress_v.weight") for name in state)
    theirs, ours = "encoder.sentence_encoder.", "linformer." if language_model else ""
    layers = count(state, r"encoder\.sentence_encoder\.layers\.(\d+)\.")
    names = expanded(EMBEDDINGS, theirs, ours) | (expanded(LANGUAGE_MODEL, "encoder.") if language_model else {})
    for layer in range(layers):
        table = LAYER | VALUES if has_values else LAYER
        names |= expanded(table, f"{theirs}layers.{layer}.", f"{ours}encoder.layers.{layer}.")
    tensors = renamed("fairseq linformer_roberta", state, names)

    keys, values = pop_projections(tensors, ours, layers)
    sharing = sharing_of(keys, values)  # old versions made a shared layer for each layer, so names do not tell it
    config = _config(tensors, ours, keys, sharing, options_in(checkpoint), num_heads)
    tensors |= projections(sharing, keys, values, ours)
    _convert(tensors, ours, config)
    return build(LinformerForMaskedLM if language_model else LinformerModel, config, tensors)


def _config(
    tensors: State,
    backbone: str,
    keys: list[Tensor],
    sharing: str,
    options: Mapping[str, Any],
    num_heads: int | None,
) -> LinformerConfig:
    words = tensors[f"{backbone}embeddings.word_embeddings.weight"]
    k, max_len = keys[0].shape
    activation = options.get("activation_fn", "gelu")
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation_fn must be one of {', '.join(ACTIVATIONS)}, the checkpoint has {activation!r}")
    stated = options.get("encoder_attention_heads")
    if num_heads is not None and stated not in (None, num_heads):
        raise ValueError(f"num_heads (--heads) is {stated} by the checkpoint's own options, got {num_heads}")
    decoder = tensors.get("lm_head.decoder.weight")
    return LinformerConfig(
        vocab_size=words.shape[0],
        hidden_size=words.shape[1],
        num_hidden_layers=len(keys),
        num_attention_heads=heads_for(words.shape[1], num_heads if stated is None else stated),
        intermediate_size=len(tensors[f"{backbone}encoder.layers.0.linear1.bias"]),
        hidden_act=ACTIVATIONS[activation],
        hidden_dropout_prob=float(options.get("dropout", 0.0)),
        attention_probs_dropout_prob=float(options.get("attention_dropout", 0.0)),
        max_position_embeddings=max_len,
        type_vocab_size=0,
        # Positions begin after the padding token's own row.
        pad_token_id=len(tensors[f"{backbone}embeddings.position_embeddings.weight"]) - max_len - 1,
        tie_word_embeddings=decoder is None or torch.equal(decoder, words),
        k=k,
        sharing=sharing,
        length_scaling=False,
        slot_bias=True,
    )


def _convert(tensors: dict[str, Tensor], backbone: str, config: LinformerConfig) -> None:
    """Change renamed positions and biases into ours."""
    positions = f"{backbone}embeddings.position_embeddings.weight"
    tensors[positions] = tensors[positions][-config.max_position_embeddings :]
    for layer in range(config.num_hidden_layers):
        attention = f"{backbone}encoder.layers.{layer}.self_attn."
        for name in (f"{attention}context.slot_terms.bias_k", f"{attention}context.slot_terms.bias_v"):
            bias = tensors[name].view(config.num_attention_heads, 1, -1)
            tensors[name] = bias.expand(-1, cast(int, config.k), -1)  # the same in every slot
        add_zero_biases(tensors, attention)

"""Models of lucidrains/linformer (PyPI ``linformer``)."""

from collections.abc import Mapping
from typing import Any

import torch

from torch_linformer.models.backbone import LinformerModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.state import (
    NO_VOCABULARY,
    PLAIN,
    State,
    add_zero_biases,
    build,
    count,
    expanded,
    head_dim_field,
    heads_for,
    renamed,
    tensors_in,
)
from torch_linformer.models.heads import LinformerForMaskedLM
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel

LAYER = {
    "0.fn.to_q.weight": "self_attn.q_proj.weight",
    "0.fn.to_k.weight": "self_attn.k_proj.weight",
    "0.fn.proj_k": "self_attn.context.proj_k.weight",
    "0.fn.to_out.*": "self_attn.out_proj.*",
    "0.norm.*": "norm1.*",
    "1.norm.*": "norm2.*",
    "1.fn.w1.*": "linear1.*",
    "1.fn.w2.*": "linear2.*",
}
VALUES = {  # absent with share_kv
    "0.fn.to_v.weight": "self_attn.v_proj.weight",
    "0.fn.proj_v": "self_attn.context.proj_v.weight",
}
LANGUAGE_MODEL = {
    "token_emb.weight": "linformer.embeddings.word_embeddings.weight",
    "pos_emb.weight": "linformer.embeddings.position_embeddings.weight",
    "to_logits.*": "lm_head.decoder.*",
}


def from_lucidrains(state_dict: Mapping[str, Any], *, num_heads: int | None = None) -> LinformerPreTrainedModel:
    """A ``Linformer`` or ``LinformerLM`` of the package ``linformer`` 0.2.

    Outputs are the original's, at every length. ``one_kv_head`` becomes ``num_key_value_heads=1``. With ``share_kv``
    the linear map of the values is a copy of that of the keys, so further training moves them apart.

    Args:
        state_dict: of either class, or a checkpoint that holds one.
        num_heads: the original's ``heads``; weights tell it only with ``one_kv_head``.

    Returns:
        A ``LinformerForMaskedLM`` for a language model (its head scores every position), else a ``LinformerModel``
        to be called with ``inputs_embeds``.

    Raises:
        ValueError: for ``reversible`` models, a missing or wrong ``num_heads``, or names or shapes that do not fit.
    """
    state = tensors_in(state_dict)
    if any(".blocks." in name for name in state):
        raise ValueError("reversible=True cannot be expressed: its two streams are not one sequence of layers")
    language_model = "token_emb.weight" in state
    backbone = "linformer." if language_model else ""  # the same prefix here and there
    layers = count(state, rf"{backbone}net\.layers\.(\d+)\.")
    share_kv = not any(name.endswith(("fn.to_v.weight", "fn.proj_v")) for name in state)
    table = LAYER if share_kv else LAYER | VALUES
    names = expanded(LANGUAGE_MODEL) if language_model else {}
    for layer in range(layers):
        names |= expanded(table, f"{backbone}net.layers.{layer}.", f"{backbone}encoder.layers.{layer}.")
    tensors = renamed("lucidrains/linformer", state, names)

    config = _config(tensors, backbone, layers, share_kv, num_heads)
    for layer in range(layers):
        attention = f"{backbone}encoder.layers.{layer}.self_attn."
        if share_kv:
            tensors[f"{attention}v_proj.weight"] = tensors[f"{attention}k_proj.weight"]
        add_zero_biases(tensors, attention)
    if language_model:
        return build(LinformerForMaskedLM, config, tensors)
    tensors["embeddings.word_embeddings.weight"] = torch.zeros(1, config.hidden_size)
    return build(LinformerModel, config, tensors)


def _config(tensors: State, backbone: str, layers: int, share_kv: bool, num_heads: int | None) -> LinformerConfig:
    first = f"{backbone}encoder.layers.0."
    query_width, hidden_size = tensors[f"{first}self_attn.q_proj.weight"].shape
    key_width = len(tensors[f"{first}self_attn.k_proj.weight"])
    max_len, k = tensors[f"{first}self_attn.context.proj_k.weight"].shape
    one_kv_head = key_width < query_width
    heads = heads_for(query_width, query_width // key_width if one_kv_head and num_heads is None else num_heads)
    if one_kv_head and heads * key_width != query_width:
        raise ValueError(f"num_heads (--heads) is {query_width // key_width} by the weights, got {heads}")
    words = tensors.get("linformer.embeddings.word_embeddings.weight")
    vocabulary = NO_VOCABULARY if words is None else {"vocab_size": len(words), "lm_head_transform": False}
    fields: dict[str, Any] = {**PLAIN, **vocabulary, **head_dim_field(hidden_size, heads, query_width // heads)}
    return LinformerConfig(
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=1 if one_kv_head else None,
        intermediate_size=len(tensors[f"{first}linear1.weight"]),
        max_position_embeddings=max_len,
        k=k,
        sharing="kv" if share_kv else "headwise",
        norm_first=True,
        final_norm=False,
        **fields,
    )

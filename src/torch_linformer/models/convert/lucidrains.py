"""Models of lucidrains/linformer (PyPI ``linformer``)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.state import (
    NO_VOCABULARY,
    PLAIN,
    build,
    check_names,
    count,
    fill,
    head_dim_field,
    heads_for,
    tensors_in,
)
from torch_linformer.models.heads import LinformerForMaskedLM

LAYER = {
    "net.layers.{layer}.0.norm.weight": "encoder.layers.{layer}.norm1.weight",
    "net.layers.{layer}.0.norm.bias": "encoder.layers.{layer}.norm1.bias",
    "net.layers.{layer}.0.fn.to_q.weight": "encoder.layers.{layer}.self_attn.q_proj.weight",
    "net.layers.{layer}.0.fn.to_k.weight": "encoder.layers.{layer}.self_attn.k_proj.weight",
    "net.layers.{layer}.0.fn.proj_k": "encoder.layers.{layer}.self_attn.proj_k.weight",
    "net.layers.{layer}.0.fn.to_out.weight": "encoder.layers.{layer}.self_attn.out_proj.weight",
    "net.layers.{layer}.0.fn.to_out.bias": "encoder.layers.{layer}.self_attn.out_proj.bias",
    "net.layers.{layer}.1.norm.weight": "encoder.layers.{layer}.norm2.weight",
    "net.layers.{layer}.1.norm.bias": "encoder.layers.{layer}.norm2.bias",
    "net.layers.{layer}.1.fn.w1.weight": "encoder.layers.{layer}.linear1.weight",
    "net.layers.{layer}.1.fn.w1.bias": "encoder.layers.{layer}.linear1.bias",
    "net.layers.{layer}.1.fn.w2.weight": "encoder.layers.{layer}.linear2.weight",
    "net.layers.{layer}.1.fn.w2.bias": "encoder.layers.{layer}.linear2.bias",
}
VALUES = {  # absent with share_kv
    "net.layers.{layer}.0.fn.to_v.weight": "encoder.layers.{layer}.self_attn.v_proj.weight",
    "net.layers.{layer}.0.fn.proj_v": "encoder.layers.{layer}.self_attn.proj_v.weight",
}
LANGUAGE_MODEL = {
    "token_emb.weight": "linformer.embeddings.word_embeddings.weight",
    "pos_emb.weight": "linformer.embeddings.position_embeddings.weight",
    "to_logits.weight": "lm_head.decoder.weight",
    "to_logits.bias": "lm_head.decoder.bias",
}


def from_lucidrains(state_dict: Mapping[str, Any], *, num_heads: int | None = None) -> LinformerPreTrainedModel:
    """A ``Linformer`` or ``LinformerLM`` of the package ``linformer`` 0.2.

    Outputs are the original's, at every length. ``one_kv_head`` becomes ``num_key_value_heads=1``. With ``share_kv``
    the values' map is a copy of the keys', so training on moves them apart.

    Args:
        state_dict: of either class, or a checkpoint that holds one.
        num_heads: the original's ``heads``; only ``one_kv_head`` lets the weights tell it.

    Returns:
        A ``LinformerForMaskedLM`` for a language model (its head scores every position), else a ``LinformerModel``
        to be read with ``inputs_embeds``.

    Raises:
        ValueError: for ``reversible`` models, a missing or wrong ``num_heads``, names or shapes of something else.
    """
    state = tensors_in(state_dict)
    if any(".blocks." in name for name in state):
        raise ValueError("reversible=True cannot be expressed: its two streams are not one sequence of layers")
    language_model = "token_emb.weight" in state
    theirs = ours = "linformer." if language_model else ""
    layers = count(state, rf"{theirs}net\.layers\.(\d+)\.")
    share_kv = not any(name.endswith(("fn.to_v.weight", "fn.proj_v")) for name in state)
    names = dict(LANGUAGE_MODEL) if language_model else {}
    for layer in range(layers):
        names |= fill(LAYER if share_kv else LAYER | VALUES, theirs, ours, layer=layer)
    check_names("lucidrains/linformer", state, names)

    tensors = {our_name: state[their_name] for their_name, our_name in names.items()}
    config = _config(state, theirs, layers, share_kv, num_heads)
    for layer in range(layers):
        _complete(tensors, f"{ours}encoder.layers.{layer}.self_attn.", share_kv)
    if language_model:
        return build(LinformerForMaskedLM, config, tensors)
    tensors["embeddings.word_embeddings.weight"] = torch.zeros(1, config.hidden_size)
    return build(LinformerModel, config, tensors)


def _config(
    state: Mapping[str, Tensor], prefix: str, layers: int, share_kv: bool, num_heads: int | None
) -> LinformerConfig:
    layer = f"{prefix}net.layers.0."
    query_width, hidden_size = state[f"{layer}0.fn.to_q.weight"].shape
    key_width = state[f"{layer}0.fn.to_k.weight"].shape[0]
    max_len, k = state[f"{layer}0.fn.proj_k"].shape
    one_kv_head = key_width < query_width
    heads = heads_for(query_width, query_width // key_width if one_kv_head and num_heads is None else num_heads)
    if one_kv_head and heads * key_width != query_width:
        raise ValueError(f"num_heads (--heads) is {query_width // key_width} by the weights, got {heads}")
    vocabulary: dict[str, Any] = {**NO_VOCABULARY}
    if "token_emb.weight" in state:
        vocabulary = {"vocab_size": state["token_emb.weight"].shape[0], "lm_head_transform": False}
    fields: dict[str, Any] = {**PLAIN, **vocabulary, **head_dim_field(hidden_size, heads, query_width // heads)}
    return LinformerConfig(
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=1 if one_kv_head else None,
        intermediate_size=state[f"{layer}1.fn.w1.weight"].shape[0],
        max_position_embeddings=max_len,
        k=k,
        sharing="kv" if share_kv else "headwise",
        norm_first=True,
        final_norm=False,
        **fields,
    )


def _complete(tensors: dict[str, Tensor], attention: str, share_kv: bool) -> None:
    """Add what the original leaves out: biases of queries, keys and values, and with ``share_kv`` the values' map."""
    if share_kv:
        tensors[f"{attention}v_proj.weight"] = tensors[f"{attention}k_proj.weight"]
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = tensors[f"{attention}{name}.weight"]
        tensors[f"{attention}{name}.bias"] = weight.new_zeros(weight.shape[0])

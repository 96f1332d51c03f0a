"""What an attention refuses, and with which words."""

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding
from torch_linformer.nn.attention.context import Context
from torch_linformer.nn.attention.keys_and_values import KeysAndValues, Past
from torch_linformer.nn.padding import LOWEST, KeyPaddingMask

if TYPE_CHECKING:
    from torch_linformer.nn.attention.attention import Attention


def check_call(
    context: Context,
    name: str,
    key: Tensor | KeysAndValues | None,
    attn_mask: Tensor | None,
    is_causal: bool,
    past: Past | None,
    start: int,
) -> None:
    """Raise ``ValueError`` for a mask, a past or a start that means nothing to an attention called ``name``."""
    if is_causal and not context.causal:
        raise ValueError(f"is_causal=True, but {name} is not causal: every position sees the whole sequence")
    if attn_mask is not None and not is_causal:
        remedy = "pass is_causal=True for the causal mask" if context.causal else "use key_padding_mask for padding"
        raise ValueError(
            f"{name} cannot apply an attn_mask of shape {tuple(attn_mask.shape)}, causal or other: {context.no_mask}; "
            f"{remedy}"
        )
    if past is not None and not context.causal:
        raise ValueError("past belongs to causal attention: here every position sees those after it too")
    if start and not isinstance(key, KeysAndValues):
        raise ValueError(f"start={start} needs what compress() made as key: else the queries stand beside the keys")


def check_inputs(attention: "Attention", query: Tensor | None, key: Tensor, value: Tensor) -> None:
    """Raise ``ValueError`` for batch-first inputs whose shapes do not fit."""
    if query is not None:
        _check_width("query", query, attention.q_proj)
    _check_width("key", key, attention.k_proj)
    _check_width("value", value, attention.v_proj)
    shapes = [tuple(x.shape) for x in (key if query is None else query, key, value)]
    if shapes[1][:2] != shapes[2][:2] or shapes[0][0] != shapes[1][0]:
        raise ValueError(
            "query, key and value must agree in batch, and key and value in length, "
            f"got {shapes[0]}, {shapes[1]} and {shapes[2]}"
        )


def check_aligned(context: Context, query: Tensor, key: Tensor, has_padding: bool) -> None:
    """Raise ``ValueError`` for queries that do not stand at the positions of the keys, where they must."""
    causal = context.causal
    if context.is_aligned and query.shape[1] != key.shape[1] and (causal or has_padding):
        kind = "causal attention is self-attention" if causal else "a window counts the real tokens of both"
        raise ValueError(f"{kind}: query and key must have one length, got {query.shape[1]} and {key.shape[1]}")


def check_piece(context: Context, name: str, padding: Padding | None, past: Past | None) -> None:
    """Raise ``ValueError`` for a piece of the rows that an attention called ``name`` would take for all of them."""
    if padding is None or not padding.is_piece:
        return
    if not context.takes_pieces:
        raise ValueError(f"{name} with {context.name} needs whole rows: only slots and windows are made of pieces")
    if past is not None:
        raise ValueError("past goes with whole rows: a piece of the rows is given the state of those before it")


def check_past(past: Past | None, query: Tensor) -> None:
    """Raise ``ValueError`` for a past of another batch."""
    if past is None or past.state is None:
        return
    batch = query.shape[0]
    if len(past.state.tokens) != batch:
        raise ValueError(
            f"past holds {len(past.state.tokens)} rows, but the batch has {batch}: give each batch its own "
            "Past, or past.select_rows the rows that go on"
        )


def check_compressed(
    attention: "Attention",
    query: Tensor,
    read: KeysAndValues,
    value: Tensor | None,
    key_padding_mask: KeyPaddingMask,
) -> None:
    """Raise ``ValueError`` for queries that cannot attend to what ``compress`` made."""
    if value is not None or key_padding_mask is not None:
        raise ValueError("value and key_padding_mask belong to compress(): what it made holds both")
    _check_width("query", query, attention.q_proj)
    batch, heads, _, width = read.slots.keys.shape
    if batch != query.shape[0]:
        raise ValueError(f"query has a batch of {query.shape[0]}, but what was compressed one of {batch}")
    if (heads, width) != (attention.num_kv_heads, attention.head_dim):
        raise ValueError(
            f"what was compressed has {heads} heads of width {width}, this attention {attention.num_kv_heads} of "
            f"{attention.head_dim}: it was made by another module"
        )


def check_causal_mask(mask: Tensor | None, is_causal: bool | None, length: int) -> None:
    """Raise ``ValueError`` for a mask of the target that is not the causal one."""
    if mask is None or is_causal:
        return
    hidden = mask if mask.dtype == torch.bool else mask <= LOWEST
    expected = torch.ones(length, length, dtype=torch.bool, device=mask.device).triu(1)
    causal = mask.shape == expected.shape and torch.equal(hidden, expected)
    if not causal or (mask.dtype != torch.bool and mask.masked_fill(hidden, 0).any()):
        raise ValueError(
            f"tgt_mask of shape {tuple(mask.shape)} is not the causal mask of {length} positions, and no other can be "
            "applied: leave it out (the decoder is causal in any case), and use tgt_key_padding_mask for padding"
        )


def check_memory(
    memory: Tensor | KeysAndValues, mask: Tensor | None, is_causal: bool, key_padding_mask: KeyPaddingMask
) -> None:
    """Raise ``ValueError`` for a mask of a decoder's memory that cannot be applied."""
    if mask is not None or is_causal:
        raise ValueError(
            "the memory is read whole: memory_mask must be None and memory_is_causal False; use "
            "memory_key_padding_mask for padding"
        )
    if isinstance(memory, KeysAndValues) and key_padding_mask is not None:
        raise ValueError("memory_key_padding_mask belongs to compress(): the compressed memory holds it already")


def _check_width(name: str, x: Tensor, linear: nn.Linear) -> None:
    if x.dim() != 3 or x.shape[-1] != linear.in_features:
        raise ValueError(
            f"{name} must have 2 or 3 dimensions, the last of {linear.in_features} channels, got shape {tuple(x.shape)}"
        )

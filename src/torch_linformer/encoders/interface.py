"""The attention that transformers knows as ``attn_implementation="linformer"``, and what a mask becomes under it."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from torch_linformer.encoders.encoder_context import EncoderContext
from torch_linformer.encoders.families import OWN_ATTENTION
from torch_linformer.encoders.options import LinearOptions
from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.padding import Padding
from torch_linformer.nn.attention.context import Call, HeadSizes
from torch_linformer.nn.options import DEFAULT_K

ATTENTION = "linformer"  # the name of the implementation, and of what a linear model's attentions own
_piece: ContextVar[Padding | None] = ContextVar("_piece", default=None)
REFUSED = ("position_bias", "head_mask", "s_aux", "softcap", "cu_seq_lens_q", "past_key_values")


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Padding | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    output_attentions: bool = False,
    distance_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of queries ``(B, H, N, D)`` to slots, exact tokens and a window of keys ``(B, Hkv, N, D)``.

    What is attended to is the submodule ``linformer`` of ``module``; without one, means of segments. ``distance_bias``
    is that of :class:`~torch_linformer.nn.attention.context.Call`.

    Returns:
        ``(B, N, H, D)``, and with ``output_attentions`` weights ``(B, H, N, K + T + 2 reach + 1)``: of slots, exact
        tokens and window; ``(B, H, N, N)`` where every row is read exactly.

    Raises:
        ValueError: for what no slots can express: masks of pairs, causality, other keys than the queries'.
    """
    _check(module, query, key, attention_mask, kwargs)
    own: EncoderContext | None = getattr(module, ATTENTION, None)
    if own is None:
        sizes = HeadSizes.of_heads(query.shape[1], query.shape[3], key.shape[1])
        options = _means(getattr(module, "config", None), key.shape[2])
        own = EncoderContext(sizes, options, sliding_window, device=query.device, dtype=query.dtype)
    width = query.shape[-1]
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    call = Call(dropout_p=dropout, need_weights=output_attentions, distance_bias=distance_bias)
    output, weights = own(query, key, value, attention_mask, call=call)
    return output.transpose(1, 2), weights


@contextmanager
def reads_piece(padding: Padding) -> Iterator[None]:
    """Let an encoder that is called within read a piece of rows: transformers hands on no mask but a tensor."""
    before = _piece.set(padding)
    try:
        yield
    finally:
        _piece.reset(before)


def padding_mask(
    *args: Any, attention_mask: Tensor | None = None, use_vmap: bool = False, **kwargs: Any
) -> Padding | None:
    """The padding of a mask ``(B, N)``, for all layers; None where there is none.

    Raises:
        ValueError: for masks of pairs, and for a family that has an attention of its own.
    """
    family = getattr(kwargs.get("config"), "model_type", None)
    if family in OWN_ATTENTION:
        raise ValueError(
            f"the attention of {family} is its own and asks for no attn_implementation: make the model linear by "
            "torch_linformer.linearize"
        )
    if use_vmap:
        raise ValueError("linformer attention takes no function of pairs of positions: only padding is masked")
    piece = None if records_a_graph() else _piece.get()  # torch.compile cannot read the variable
    if piece is not None or attention_mask is None:
        return piece
    mask = attention_mask == 0
    if records_a_graph() or mask.device.type != "cpu":  # no device is asked
        return Padding(mask)
    return Padding(mask, in_order=bool((mask[:, 1:] >= mask[:, :-1]).all())) if mask.any() else None


def _check(module: nn.Module, query: Tensor, key: Tensor, mask: object, others: dict[str, Any]) -> None:
    name = type(module).__name__
    if others.get("is_causal", getattr(module, "is_causal", False)):
        raise ValueError(f"{name} is causal, and slots mix all positions: linformer attention is for encoders")
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{name} attends to another sequence, or to a cache: linformer attention is self-attention")
    if mask is not None and not isinstance(mask, Padding):
        raise ValueError(
            f"{name}: a mask of pairs of positions cannot be applied to slots: give one of shape (B, N), 0 at padding, "
            "and each document a row of its own"
        )
    refused = [option for option in REFUSED if others.get(option) is not None]
    if refused:
        raise ValueError(f"{name}: {refused[0]} cannot be applied to slots: leave it out")


def _means(config: Any, length: int) -> LinearOptions:
    """Means of segments, for a model whose attentions own nothing."""
    longest = max(length, getattr(config, "max_position_embeddings", None) or length)
    return LinearOptions(k=min(DEFAULT_K, longest), projection="mean", max_length=longest)


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, padding_mask)

"""The attention that transformers knows as ``attn_implementation="linformer"``, and what a mask becomes under it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from torch_linformer.encoders.attentions import CAUSAL, reach_of_function
from torch_linformer.encoders.encoder_context import EncoderContext
from torch_linformer.encoders.families import OWN_ATTENTION
from torch_linformer.encoders.options import LinearOptions
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.pytorch import records_a_graph
from torch_linformer.nn.attention.context import Call, HeadSizes
from torch_linformer.nn.options import DEFAULT_K
from torch_linformer.nn.padding import hidden_by

ATTENTION = "linformer"  # the name of the implementation, and of what a linear model's attentions own
_piece: ContextVar[Padding | None] = ContextVar("_piece", default=None)
REFUSED = ("position_bias", "head_mask", "s_aux", "softcap", "cu_seq_lens_q", "past_key_values")


@dataclass(frozen=True)
class LocalMask:
    """The mask of local layers: padding, and that a query sees the positions at most ``reach`` away."""

    padding: Padding | None
    reach: int

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "LocalMask":
        """As :meth:`~torch_linformer.functional.padding.Padding.to`."""
        return LocalMask(self.padding and self.padding.to(device, non_blocking), self.reach)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Padding | LocalMask | Tensor | None = None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    output_attentions: bool = False,
    distance_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, Tensor | None]:
    """Self-attention of queries ``(B, H, N, D)`` to slots, exact tokens and a window of keys ``(B, Hkv, N, D)``.

    What is attended to is the submodule ``linformer`` of ``module``; without one, means of segments. A mask that the
    model has made itself, ``(B, 1, 1, N)``, is read as padding.

    Returns:
        ``(B, N, H, D)``, and with ``output_attentions`` weights ``(B, H, N, K + T + 2 reach + 1)``: of slots, exact
        tokens and window; ``(B, H, N, N)`` where every row is read exactly.

    Raises:
        ValueError: for what no slots can express: masks of pairs, causality, other keys than the queries'.
    """
    name, own = type(module).__name__, getattr(module, ATTENTION, None)
    # A linear encoder's attentions have shown that they see both sides.
    if kwargs.get("is_causal", own is None and attention_mask is None and getattr(module, "is_causal", False)):
        raise ValueError(f"{name} {CAUSAL}: linformer attention is for encoders")
    if query.shape[2] != key.shape[2]:
        raise ValueError(f"{name} attends to another sequence, or to a cache: linformer attention is self-attention")
    refused = [option for option in REFUSED if kwargs.get(option) is not None]
    if refused:
        raise ValueError(f"{name}: {refused[0]} cannot be applied to slots: leave it out")
    reach = None if sliding_window is None else sliding_window - 1  # as transformers' flash attention counts
    if isinstance(attention_mask, LocalMask):
        reach, attention_mask = attention_mask.reach, attention_mask.padding
    if isinstance(attention_mask, Tensor):
        if attention_mask.dim() != 4 or attention_mask.shape[1:3] != (1, 1):
            raise ValueError(
                f"{name}: a mask of pairs of positions cannot be applied to slots: give one of shape (B, N), 0 at "
                "padding, and each document a row of its own"
            )
        mask = attention_mask[:, 0, 0]
        attention_mask = Padding(~mask if mask.dtype == torch.bool else hidden_by(mask))
    if own is None:  # means of segments
        sizes = HeadSizes.of_heads(query.shape[1], query.shape[3], key.shape[1])
        length = key.shape[2]
        longest = max(length, getattr(getattr(module, "config", None), "max_position_embeddings", None) or length)
        options = LinearOptions(k=min(DEFAULT_K, longest), projection="mean", max_length=longest)
        own = EncoderContext(sizes, options, reach, device=query.device, dtype=query.dtype)
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


def layer_mask(
    *args: Any,
    mask_function: Callable[..., Any],
    attention_mask: Tensor | None = None,
    config: Any = None,
    use_vmap: bool = False,
    **kwargs: Any,
) -> Padding | LocalMask | None:
    """What the layers are handed of a mask ``(B, N)``: its padding and how far they see; masks of pairs are refused."""
    family = getattr(config, "model_type", None)
    if use_vmap:
        raise ValueError("linformer attention takes no function of pairs of positions: only padding is masked")
    padding, reach, linear = _padding(attention_mask), None, getattr(config, "linformer", None)
    if linear is not None and padding is not None and linear.get("reads_padding"):
        raise ValueError(
            f"{config.encoder_class.__name__} makes its vector of the last position, padding or not: give it no "
            "attention_mask, as its processor does, or texts of one length"
        )
    if linear is None:  # a linear encoder's attentions know how far they see
        if not records_a_graph():
            window = getattr(config, "sliding_window", None) or 0
            reach = reach_of_function(f"the attention of {family}", mask_function, window)
        elif mask_function.__name__ != "bidirectional_mask_function":
            raise ValueError(
                f"{family} masks pairs of positions, and a recorded graph cannot tell which: make the model linear by "
                "torch_linformer.linearize"
            )
    return padding if reach is None else LocalMask(padding, reach)


def _padding(attention_mask: Tensor | None) -> Padding | None:
    piece = None if records_a_graph() else _piece.get()  # torch.compile cannot read the variable
    if piece is not None or attention_mask is None:
        return piece
    if attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask must be (B, N), 0 at padding, got {tuple(attention_mask.shape)}: a mask of pairs of "
            "positions cannot be applied to slots; give each document a row of its own"
        )
    mask = attention_mask == 0
    if records_a_graph() or mask.device.type != "cpu":  # no device is asked
        return Padding(mask)
    return Padding(mask, in_order=bool((mask[:, 1:] >= mask[:, :-1]).all())) if mask.any() else None


AttentionInterface.register(ATTENTION, attention)
AttentionMaskInterface.register(ATTENTION, layer_mask)

_implementation = PreTrainedModel.get_correct_attn_implementation


def _checked_implementation(self: PreTrainedModel, requested_attention: str | None, *args: Any, **kwargs: Any) -> str:
    is_linear = getattr(self.config, "linformer", None) is not None
    if requested_attention == ATTENTION and not is_linear and not self._can_set_attn_implementation():
        own = self.config.model_type in OWN_ATTENTION
        remedy = "make it linear by torch_linformer.linearize" if own else "leave it out, or take another encoder"
        raise ValueError(
            f"attn_implementation={ATTENTION!r} has no effect on {type(self).__name__}, whose attention does not go "
            f"through transformers' attention interface: {remedy}"
        )
    return _implementation(self, requested_attention, *args, **kwargs)


# transformers asks nobody whether a model looks up the attention that it is given; all pairs would stay, in silence.
PreTrainedModel.get_correct_attn_implementation = _checked_implementation  # type: ignore[method-assign]

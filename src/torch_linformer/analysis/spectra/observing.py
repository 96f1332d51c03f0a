"""The context mappings P of a model while it reads a document: one head at a time, so that one P is in memory.

Two kinds of models are read. Those of transformers call their attention through its ``AttentionInterface``; there a
function of ours stands in, which computes what eager attention computes. In the full-attention twins of this package
the inputs of :class:`FullAttention` are looked at.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from torch_linformer.functional.attention import repeat_heads
from torch_linformer.models import LinformerConfig
from torch_linformer.nn.attention import FullAttention

_NAME = "linformer_spectrum"
_CHECKED_TOKENS = 64  # of the first document, that the stand-in is compared with eager attention on
_TOLERANCE = 1e-3  # of the hidden states' largest: rounding is a hundred times smaller, another formula much larger


@dataclass(frozen=True)
class ObservedHead:
    """One head of one layer on one document.

    Attributes:
        layer: counted from 0.
        number: of the head, counted from 0.
        query: ``(N, D)``.
        key: ``(N, D)``.
        value: ``(N, Dv)``.
        scaling: factor on the scores.
        mask: added to the scores, broadcast to ``(N, N)``; None where every position sees all.
        weights: P, ``(N, N)``: softmax(scaling · Q Kᵀ + mask).
    """

    layer: int
    number: int
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    mask: Tensor | None
    weights: Tensor


Observer = Callable[[ObservedHead], None]


@dataclass
class _Session:
    """Who looks at the model, and how many layers it has run in this forward pass."""

    observe: Observer
    layers: int = 0


_SESSION: ContextVar[_Session] = ContextVar(_NAME)


def observe_heads(model: PreTrainedModel, input_ids: Tensor, observe: Observer) -> int:
    """Read one document and show every head to ``observe``, layer by layer; returns how many layers there were.

    Args:
        model: a transformers model whose attention goes through the ``AttentionInterface``, or a full-attention twin.
        input_ids: ``(1, N)`` token ids without padding.
        observe: is called with each head; what it does not keep is freed.

    Raises:
        ValueError: the model's attention does not go through that interface (:func:`check_readable` says more).
    """
    session = _Session(observe)
    with torch.no_grad(), _observed(model, session):
        model(input_ids=input_ids)
    return session.layers


def check_readable(model: PreTrainedModel, input_ids: Tensor) -> None:
    """Compare the stand-in with the model's own eager attention on the first tokens of a document.

    A model may do more to its scores than scale and mask them; its hidden states then differ.

    Raises:
        ValueError: the model's attention cannot be read, or is not softmax(scaling · Q Kᵀ + mask) V.
    """
    kind = model.config.model_type
    if isinstance(model.config, LinformerConfig):
        if model.config.attention != "full":
            raise ValueError(
                "its attention is N × K already; a spectrum needs ordinary attention, such as that of its twin: "
                "linformer train --attention full"
            )
        return  # its own output does not depend on who looks
    if model.config.is_encoder_decoder:
        raise ValueError(f"a {kind} model is an encoder-decoder; give an encoder or a decoder alone")
    beginning = input_ids[:, :_CHECKED_TOKENS]
    own, session = _set_attention(model, "eager"), _Session(lambda head: None)
    try:
        with torch.no_grad():
            expected = model(input_ids=beginning)[0]
            with _observed(model, session):
                computed = model(input_ids=beginning)[0]
    finally:
        _set_attention(model, own)
    if not session.layers:
        raise ValueError(f"a {kind} model has no attention weights that can be read")
    error = (computed - expected).abs().max() / expected.abs().max()
    if not error < _TOLERANCE:
        raise ValueError(
            f"a {kind} model computes its attention in a way of its own: with softmax(Q Kᵀ / √D) V its hidden states "
            f"differ by {float(error):.1e}"
        )


@contextmanager
def _observed(model: PreTrainedModel, session: _Session) -> Iterator[None]:
    token = _SESSION.set(session)
    try:
        if isinstance(model.config, LinformerConfig):
            hooks = [
                module.register_forward_pre_hook(_look_at_twin, with_kwargs=True)
                for module in model.modules()
                if isinstance(module, FullAttention)
            ]
            try:
                yield
            finally:
                for hook in hooks:
                    hook.remove()
        else:
            own = _set_attention(model, _NAME)
            try:
                yield
            finally:
                _set_attention(model, own)
    finally:
        _SESSION.reset(token)


def _set_attention(model: PreTrainedModel, name: str) -> str:
    """Let the model compute its attention in the way ``name``; returns the way it did before."""
    before: str = model.config._attn_implementation
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(
            f"the attention of a {model.config.model_type} model cannot be read: it does not go through the "
            "AttentionInterface of transformers, as that of BERT, RoBERTa, GPT-2 or ModernBERT does"
        )
    return before


def _attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention as the ``AttentionInterface`` wants it: heads ``(1, H, N, D)`` in, ``(1, N, H, D)`` out."""
    session = _SESSION.get()
    heads = query.shape[1]
    keys, values = repeat_heads(key, heads), repeat_heads(value, heads)
    scaling = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling
    outputs = []
    for number in range(heads):
        mask = None if attention_mask is None else attention_mask[0, number if attention_mask.shape[1] > 1 else 0]
        outputs.append(_show(session, number, query[0, number], keys[0, number], values[0, number], scaling, mask))
    session.layers += 1
    return torch.stack(outputs, dim=1).unsqueeze(0), None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, eager_mask)


def _look_at_twin(attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Show the heads of a :class:`FullAttention` that is about to read ``args[0]``."""
    assert isinstance(attention, FullAttention)
    session, x = _SESSION.get(), attention.to_batch_first(args[0])
    mask = None
    if attention.causal:
        mask = x.new_full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
    heads_HND = (heads[0] for heads in attention.heads_of(x, x, x))
    for number, (query, key, value) in enumerate(zip(*heads_HND, strict=True)):
        _show(session, number, query, key, value, 1 / math.sqrt(attention.head_dim), mask)
    session.layers += 1


def _show(
    session: _Session, number: int, query: Tensor, key: Tensor, value: Tensor, scaling: float, mask: Tensor | None
) -> Tensor:
    """Show one head to who observes; returns its output ``(N, Dv)``."""
    scores = query @ key.mT
    scores *= scaling
    if mask is not None:
        scores += mask
    weights = torch.softmax(scores, dim=-1)
    session.observe(ObservedHead(session.layers, number, query, key, value, scaling, mask, weights))
    return weights @ value

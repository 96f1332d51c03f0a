"""The context mappings P of a model while it reads a document: one head at a time, so that one P is in memory.

Models of transformers call their attention through its ``AttentionInterface``, where a function of ours computes what
eager attention computes. In models of this package, full-attention twins and those whose slots the input chooses, the
inputs of :class:`Attention` are observed, and in linear encoders of transformers those of its contexts.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from torch_linformer.encoders.classes import LinearConfig
from torch_linformer.encoders.encoder_context import EncoderContext
from torch_linformer.functional.softmax import bias_at, repeat_heads
from torch_linformer.models import LinformerConfig
from torch_linformer.nn.attention import Attention
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import Pair, Source
from torch_linformer.nn.layer import TransformerLayer

_NAME = "linformer_spectrum"
_CHECKED_TOKENS = 64  # of the first document, on which our function is compared with eager attention
_TOLERANCE = 1e-3  # of the largest hidden state: rounding is a hundred times smaller, another formula much larger


@dataclass(frozen=True)
class ObservedHead:
    """One head of one layer on one document, both counted from 0.

    Queries and keys are ``(N, D)``, values ``(N, Dv)``; ``weights`` is P, ``(N, N)``: softmax(scaling · Q Kᵀ + mask).
    The mask, or a bias of distances, is broadcast to ``(N, N)``, and None where there is neither. ``own`` is the output
    ``(N, Dv)`` of a model that attends to slots instead; None where P is what it attends with.
    """

    layer: int
    number: int
    query: Tensor
    key: Tensor
    value: Tensor
    scaling: float
    mask: Tensor | None
    weights: Tensor
    own: Tensor | None = None


@dataclass
class _Session:
    """Who is shown the heads, and how many layers have run in this forward pass."""

    observe: Callable[[ObservedHead], None]
    layers: int = 0

    def show_layer(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        scaling: float,
        mask_of: Callable[[int], Tensor | None],
        own: Tensor | None = None,
    ) -> Tensor:
        """Show heads ``(1, H, N, D)`` one by one, with the mask of each; returns their outputs ``(1, H, N, Dv)``."""
        outputs = []
        for number, (q, k, v) in enumerate(
            zip(query[0], repeat_heads(key, query.shape[1])[0], repeat_heads(value, query.shape[1])[0], strict=True)
        ):
            mask, scores = mask_of(number), q @ k.mT
            scores *= scaling
            if mask is not None:
                scores += mask
            weights = torch.softmax(scores, dim=-1)
            del scores
            head_own = None if own is None else own[0, number]
            self.observe(ObservedHead(self.layers, number, q, k, v, scaling, mask, weights, head_own))
            outputs.append(weights @ v)
            del weights  # before the next P is made
        self.layers += 1
        return torch.stack(outputs).unsqueeze(0)


_SESSION: ContextVar[_Session] = ContextVar(_NAME)  # of the forward pass in which transformers calls our function


def observe_heads(model: PreTrainedModel, input_ids: Tensor, observe: Callable[[ObservedHead], None]) -> int:
    """Read a document ``(1, N)`` without padding and call ``observe`` with every head; returns the number of layers.

    What ``observe`` does not keep of a head is freed.

    Raises:
        ValueError: the model is neither a full-attention twin nor one whose attention goes through the
            ``AttentionInterface`` (:func:`check_readable` checks more).
    """
    session = _Session(observe)
    with torch.no_grad(), _observed(model, session):
        model(input_ids=input_ids)
    return session.layers


def check_readable(model: PreTrainedModel, input_ids: Tensor) -> None:
    """Compare our attention with the model's own eager attention on the first tokens of a document.

    A model may do more to its scores than scale and mask them; its hidden states then differ. Models of this package
    are only observed: nothing is put in place of their attention.

    Raises:
        ValueError: the model's attention cannot be read, or is not softmax(scaling · Q Kᵀ + mask) V.
    """
    kind = model.config.model_type
    if isinstance(model.config, LinearConfig):
        return
    if isinstance(model.config, LinformerConfig):
        if model.config.attention != "full" and (model.config.projection != "dynamic" or model.config.causal):
            raise ValueError(
                "its attention is N × K already; a spectrum needs ordinary attention, such as that of its twin: "
                "linformer train --model attention=full, or slots chosen by the input: --model projection=dynamic"
            )
        return
    if model.config.is_encoder_decoder:
        raise ValueError(f"a {kind} model is an encoder-decoder; give only an encoder or a decoder")
    beginning, session = input_ids[:, :_CHECKED_TOKENS], _Session(lambda head: None)
    with torch.no_grad(), _attention_set_to(model, "eager"):
        expected = model(input_ids=beginning)[0]
        with _observed(model, session):
            computed = model(input_ids=beginning)[0]
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
    with ExitStack() as stack:
        if not isinstance(model.config, LinearConfig | LinformerConfig):
            stack.callback(_SESSION.reset, _SESSION.set(session))
            stack.enter_context(_attention_set_to(model, _NAME))
        for module in cast(nn.Module, model).modules():
            if isinstance(module, EncoderContext):
                look_behind = partial(_look_at_context, session)
                stack.enter_context(module.register_forward_hook(look_behind, with_kwargs=True))
            if isinstance(module, Attention):
                look = partial(_look_at_ours, session)
                stack.enter_context(module.register_forward_pre_hook(look, with_kwargs=True))
            if isinstance(module, TransformerLayer):  # whose attention reads the whole document
                stack.callback(setattr, module, "chunk_size", module.chunk_size)
                module.chunk_size = None
        yield


@contextmanager
def _attention_set_to(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Let a model of transformers compute its attention by the implementation ``name``."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise ValueError(
            f"the attention of a {model.config.model_type} model cannot be read: it does not go through the "
            "AttentionInterface of transformers, as that of BERT, RoBERTa, GPT-2 or ModernBERT does"
        )
    try:
        yield
    finally:
        model.set_attn_implementation(before)


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
    scaling = 1 / math.sqrt(query.shape[-1]) if scaling is None else scaling

    def mask_of(number: int) -> Tensor | None:
        return None if attention_mask is None else attention_mask[0, number if attention_mask.shape[1] > 1 else 0]

    return _SESSION.get().show_layer(query, key, value, scaling, mask_of).transpose(1, 2), None


AttentionInterface.register(_NAME, _attention)
AttentionMaskInterface.register(_NAME, eager_mask)


def _look_at_ours(session: _Session, attention: Attention, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Show the heads of an :class:`Attention` that is about to read ``args[0]``."""
    x = attention.to_batch_first(args[0])
    mask = x.new_full((x.shape[1], x.shape[1]), float("-inf")).triu(1) if attention.causal else None
    queries, keys, values = attention.heads_of(x, x, x)
    own = None
    if isinstance(attention.context, SlotContext):
        source = Source(Pair(x, x), None, attention.head_maps)
        own = attention.context.attend(queries, attention.context.read(source, kwargs.get("shared_projection")))[0]
    session.show_layer(queries, keys, values, 1 / math.sqrt(attention.head_dim), lambda number: mask, own)


def _look_at_context(
    session: _Session,
    context: EncoderContext,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    output: tuple[Tensor, Any],
) -> None:
    """Show the heads of a linear encoder's attention, that was given them and has attended."""
    query, key, value = args[:3]
    length, bias, mask = query.shape[2], kwargs["call"].distance_bias, None
    places = torch.arange(length, device=query.device)
    distances = places - places.unsqueeze(-1)
    if context.is_local:
        mask = query.new_zeros(length, length).masked_fill(distances.abs() > context.reach, float("-inf"))

    def mask_of(number: int) -> Tensor | None:
        return mask if bias is None else bias_at(bias[number : number + 1], distances)[0]

    own = None if length <= context.exact_below else output[0]
    session.show_layer(query, key, value, 1 / math.sqrt(query.shape[-1]), mask_of, own)

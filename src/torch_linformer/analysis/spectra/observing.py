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
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.masking_utils import eager_mask

from torch_linformer.encoders.classes import LinearConfig
from torch_linformer.encoders.encoder_context import EncoderContext
from torch_linformer.functional import ExactTokens, Slots, Window, dynamic_slots, slot_attention
from torch_linformer.functional.softmax import bias_at, repeat_heads
from torch_linformer.models import LinformerConfig
from torch_linformer.nn.attention import Attention
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import Pair, Source
from torch_linformer.nn.layer import TransformerLayer

_NAME = "linformer_spectrum"
_CHECKED_TOKENS = 64  # of the first document, on which our function is compared with eager attention
_TOLERANCE = 1e-3  # of the largest hidden state: rounding is a hundred times smaller, another formula much larger
WINDOW = 64  # tokens


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


Observer = Callable[[ObservedHead], None]


@dataclass
class _Session:
    """Who is shown the heads, and how many layers have run in this forward pass."""

    observe: Observer
    layers: int = 0


_SESSION: ContextVar[_Session] = ContextVar(_NAME)


def observe_heads(model: PreTrainedModel, input_ids: Tensor, observe: Observer) -> int:
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

    A model may do more to its scores than scale and mask them; its hidden states then differ.

    Raises:
        ValueError: the model's attention cannot be read, or is not softmax(scaling · Q Kᵀ + mask) V.
    """
    kind = model.config.model_type
    if isinstance(model.config, LinearConfig):
        return  # it is only observed, as the next one is
    if isinstance(model.config, LinformerConfig):
        if model.config.attention != "full" and (model.config.projection != "dynamic" or model.config.causal):
            raise ValueError(
                "its attention is N × K already; a spectrum needs ordinary attention, such as that of its twin: "
                "linformer train --model attention=full, or slots chosen by the input: --model projection=dynamic"
            )
        return  # it is only observed: nothing is put in place of its attention
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
        stack.callback(_SESSION.reset, _SESSION.set(session))
        if isinstance(model.config, LinearConfig):
            for module in cast(nn.Module, model).modules():
                if isinstance(module, EncoderContext):
                    stack.enter_context(module.register_forward_hook(_look_at_context, with_kwargs=True))
        elif not isinstance(model.config, LinformerConfig):
            stack.enter_context(_attention_set_to(model, _NAME))
        else:
            for module in cast(nn.Module, model).modules():
                if isinstance(module, Attention):
                    stack.enter_context(module.register_forward_pre_hook(_look_at_ours, with_kwargs=True))
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


def _look_at_ours(attention: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Show the heads of an :class:`Attention` that is about to read ``args[0]``."""
    assert isinstance(attention, Attention)
    session, x = _SESSION.get(), attention.to_batch_first(args[0])
    mask, own_HND = None, None
    if attention.causal:
        mask = x.new_full((x.shape[1], x.shape[1]), float("-inf")).triu(1)
    queries, keys, values = attention.heads_of(x, x, x)
    if isinstance(attention.context, SlotContext):
        source = Source(Pair(x, x), None, attention.head_maps)
        read = attention.context.read(source, kwargs.get("shared_projection"))
        own_HND = attention.context.attend(queries, read)[0][0]
    scaling = 1 / math.sqrt(attention.head_dim)
    for number, (query, key, value) in enumerate(zip(queries[0], keys[0], values[0], strict=True)):
        own = None if own_HND is None else own_HND[number]
        _show(session, number, query, key, value, scaling, mask, own)
    session.layers += 1


def _look_at_context(
    context: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: tuple[Tensor, Any]
) -> None:
    """Show the heads of a linear encoder's attention, that was given them and has attended."""
    assert isinstance(context, EncoderContext)
    session, (query, key, value) = _SESSION.get(), args[:3]
    heads, length = query.shape[1], query.shape[2]
    distances = torch.arange(length, device=query.device) - torch.arange(length, device=query.device).unsqueeze(-1)
    mask = None
    if context.is_local:
        mask = query.new_zeros(length, length).masked_fill(distances.abs() > context.reach, float("-inf"))
    bias = kwargs["call"].distance_bias
    keys, values = repeat_heads(key, heads), repeat_heads(value, heads)
    own_HND = None if length <= context.exact_below else output[0][0]
    for number in range(heads):
        if bias is not None:
            mask = bias_at(bias[number : number + 1], distances)[0]
        own = None if own_HND is None else own_HND[number]
        head = query[0, number], keys[0, number], values[0, number]
        _show(session, number, *head, 1 / math.sqrt(query.shape[-1]), mask, own)
    session.layers += 1


def _show(
    session: _Session,
    number: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float,
    mask: Tensor | None,
    own: Tensor | None = None,
) -> Tensor:
    """Show one head to the observer; returns its output ``(N, Dv)``."""
    scores = query @ key.mT
    scores *= scaling
    if mask is not None:
        scores += mask
    weights = torch.softmax(scores, dim=-1)
    session.observe(ObservedHead(session.layers, number, query, key, value, scaling, mask, weights, own))
    return weights @ value


class HeadSlots(NamedTuple):
    """Keys ``(K, D)`` and values ``(K, Dv)`` of the slots of one head."""

    keys: Tensor
    values: Tensor


def beginning_slots(head: ObservedHead, k: int) -> HeadSlots:
    """Slots chosen by the input (``projection="dynamic"``) as they begin: only the prior, w = 0."""
    queries = head.key.new_zeros(k, head.key.shape[1])
    slots = dynamic_slots(queries, head.key[None, None], head.value[None, None])
    return HeadSlots(slots.keys[0, 0], slots.values[0, 0])


def attend_to_slots(head: ObservedHead, slots: HeadSlots) -> Tensor:
    """The output ``(N, Dv)`` of a softmax over only the slots; a mass that all have would change nothing."""
    return torch.softmax((head.query @ slots.keys.mT) * head.scaling, dim=-1) @ slots.values


def attend_beside_slots(head: ObservedHead, slots: HeadSlots | None) -> Tensor:
    """The output of one softmax over the window, the first and the last token, and slots with their mass, if any."""
    length, ends = len(head.key), sorted({0, len(head.key) - 1})
    query, key, value = (x[None, None] for x in (head.query, head.key, head.value))
    seen_apart = torch.zeros(1, length, dtype=torch.bool, device=key.device)
    seen_apart[:, ends] = True
    exact = ExactTokens(key[:, :, ends], value[:, :, ends])
    if slots is None:
        joint = Slots(key[:, :, :0], value[:, :, :0])
    else:
        number = len(slots.keys)
        mass = key.new_full((1, 1, number), math.log(length / number))
        joint = Slots(slots.keys[None, None], slots.values[None, None], bias=mass)
    window = Window(key, value, WINDOW // 2, padding=seen_apart)
    output, _ = slot_attention(query, joint, exact=exact, window=window, scale=head.scaling)
    return output[0, 0]

"""Operations called with tensors one after the other, as tables of cases have them; and how much they may err."""

import torch
from budgets import ROUNDINGS

from torch_linformer.functional import CausalSlots, Slots, Window, causal, slot_attention
from torch_linformer.functional import causal_linformer_attention as of_record
from torch_linformer.functional.softmax import SoftmaxCall


def attend(query, key, value, *, padding_mask=None, score_bias=None, **options):
    """Attention to slots, or to positions."""
    return slot_attention(query, Slots(key, value, padding_mask, score_bias), **options)


def attend_with_window(
    query,
    slots_k,
    slots_v,
    key,
    value,
    reach,
    *,
    slot_padding=None,
    slot_bias=None,
    key_padding=None,
    offset=0,
    window_bias=None,
    **options,
):
    """Attention to slots and to a window."""
    slots = Slots(slots_k, slots_v, slot_padding, slot_bias)
    window = Window(key, value, reach, key_padding, offset, window_bias)
    return slot_attention(query, slots, window=window, **options)


def causal_linformer_attention(query, key, value, weights, *, score_bias=None, chunk_size=64, **options):
    """Causal attention to running means with these weights, checked."""
    return of_record(query, key, value, CausalSlots(weights, score_bias, chunk_size), **options)


def attend_causally(
    query,
    key,
    value,
    weights=None,
    *,
    score_bias=None,
    chunk_size=64,
    window=None,
    exact_first=0,
    padding_mask=None,
    state=None,
    **call,
):
    """The same, unchecked, with the softmax and the state after it."""
    slots = None if weights is None else CausalSlots(weights, score_bias, chunk_size)
    options = {"window": window, "exact_first": exact_first, "padding_mask": padding_mask, "state": state}
    return causal.attend_causally(query, key, value, slots, **options, call=SoftmaxCall(**call))


def assert_errs_as_the_plain_formula(gradients, fast, plain, low, dtype, factors):
    """Output and gradients, against float64: at most so many times as much as ``plain`` in the same precision."""

    def run(function, inputs):
        inputs = [x.detach().clone().requires_grad_() for x in inputs]
        output = function(*inputs)
        return [output, *gradients(output, inputs)]

    exact, naive = run(plain, [x.double() for x in low]), run(plain, low)
    for truth, one, actual, factor in zip(exact, naive, run(fast, low), factors, strict=True):
        rounding = ROUNDINGS * torch.finfo(dtype).eps * truth.abs().max()
        assert actual.dtype == one.dtype
        assert (actual - truth).abs().max() <= factor * (one - truth).abs().max() + rounding

"""Operations called with tensors one after the other, as tables of cases have them."""

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


def causal_linformer_attention(
    query, key, value, weights_k, weights_v=None, *, score_bias=None, chunk_size=64, **options
):
    """Causal attention to running means with these weights, checked."""
    return of_record(query, key, value, CausalSlots(weights_k, weights_v, score_bias, chunk_size), **options)


def attend_causally(
    query,
    key,
    value,
    weights_k=None,
    weights_v=None,
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
    slots = None if weights_k is None else CausalSlots(weights_k, weights_v, score_bias, chunk_size)
    options = {"window": window, "exact_first": exact_first, "padding_mask": padding_mask, "state": state}
    return causal.attend_causally(query, key, value, slots, **options, call=SoftmaxCall(**call))

"""Causal Linformer attention: every slot is a running mean, so that no query sees what comes after it."""

import math
from contextlib import nullcontext

import torch
from torch import Tensor

from torch_linformer.functional.attention.softmax_parts import SoftmaxCall, check_scale
from torch_linformer.functional.causal.chunks import CausalRun, attend_in_segments
from torch_linformer.functional.causal.running_means import CHUNK, CausalSlots, SlotWeights
from torch_linformer.functional.causal.state import CausalInput, CausalState, attend_next
from torch_linformer.functional.kernels.graph import is_compiling, is_traced
from torch_linformer.functional.kernels.torch_private import assert_async
from torch_linformer.functional.padding import Padding, check_padding_mask, zero_padding

STEEPEST = 64.0  # nats that a weight may fade in one chunk: float32 has room for them and for the weights


def causal_linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: CausalSlots,
    *,
    window: int | None = None,
    exact_first: int = 0,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
) -> Tensor:
    r"""Attention of every position over K slots of what came before it, and over some tokens themselves.

    These are the last ``window`` ones, and the first ``exact_first`` ones up to the position (attention sinks).

    .. math::
        \bar K_{tj} = \frac{\sum_{i \le t} e_{ij} e^{-\lambda_j (p_t - p_i)} k_i}
                           {\sum_{i \le t} e_{ij} e^{-\lambda_j (p_t - p_i)}}, \quad
        \mathrm{out}_t = \mathrm{softmax}([q_t \bar K_t^\top / \sqrt D + b,\; q_t K_{A_t}^\top / \sqrt D])\,
                         [\bar V_t;\; V_{A_t}], \quad
        A_t = \{i \le t : p_i < T \text{ or } p_i > p_t - w\}

    where :math:`p_i` counts real tokens from 0, T is ``exact_first``, w is ``window`` (0 without one), and
    :math:`\bar V` is made as :math:`\bar K` with the weights of values. Tokens of :math:`A_t` are in the slots too,
    and one that is both a first and a last one counts once. Time is O(N·(c·(D + K) + K·D + (w + T)·D)) for chunks of c,
    and the output at t does not depend on anything after t.

    Args:
        query: ``(B, H, N, D)``.
        key: ``(B, H, N, D)``.
        value: ``(B, H, N, Dv)``.
        slots: the weights e and decays λ with which positions enter the slots, and b, the bias on their scores.
        window: also attend to the last w tokens, the query's own among them.
        exact_first: also attend to the first T tokens.
        key_padding_mask: bool ``(B, N)``, True at padding, on any side and between tokens: positions, the window and
            the first tokens count real tokens.
        dropout_p: probability of dropping an attention weight; it applies whenever it is above 0.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.

    Returns:
        ``(B, H, N, Dv)``; zeros at padding. A CPU computes half precision in float32, other devices only float16: in
        bfloat16 they err up to three times as much as ordinary attention, whose scores are not rounded.

    Raises:
        ValueError: if shapes or ``scale`` do not fit, a weight would fade more than 64 nats in a chunk, or a real
            token's weight is not positive and finite. A compiled or exported graph checks these numbers where it runs,
            and raises ``RuntimeError``.

    Example:
        >>> import torch
        >>> from torch_linformer.functional import CausalSlots, SlotWeights, causal_linformer_attention
        >>> query, key, value = torch.randn(3, 1, 4, 1000, 16)  # (B, H, N, D) each
        >>> slots = CausalSlots(SlotWeights(decay=1 / torch.tensor([16.0, 64.0, 256.0])))  # three time scales
        >>> causal_linformer_attention(query, key, value, slots, window=8).shape
        torch.Size([1, 4, 1000, 16])
    """
    _check_inputs(query, key, value, window, exact_first)
    check_scale(scale)
    check_padding_mask(key_padding_mask, key.shape[0], key.shape[2])
    for name, weights in (("weights_k", slots.weights_k), ("weights_v", slots.weights_v or slots.weights_k)):
        _check_weights(name, weights, key, key_padding_mask, slots.chunk_size)
    padding = None
    if key_padding_mask is not None:
        # Means count the real tokens themselves; a window counts positions, and so do the first tokens.
        is_ordered = window is not None or exact_first > 0
        padding = Padding(key_padding_mask, in_order=not is_ordered)
        query, key, value = (padding.justify(x) for x in (query, key, value))
        slots = slots.reorder(padding.order)
    output, _, _ = attend_causally(
        query,
        key,
        value,
        slots,
        window=window,
        exact_first=exact_first,
        padding_mask=None if padding is None else padding.trailing,
        call=SoftmaxCall(dropout_p, scale=scale),
    )
    return output if padding is None else padding.restore(output)


def attend_causally(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    slots: CausalSlots | None,
    *,
    window: int | None = None,
    exact_first: int = 0,
    padding_mask: Tensor | None = None,
    state: CausalState | None = None,
    call: SoftmaxCall = SoftmaxCall(),
) -> tuple[Tensor, Tensor | None, CausalState]:
    """:func:`causal_linformer_attention`, unchecked, of positions that follow those in ``state``, if it is given.

    With a window or exact tokens, padding follows the real tokens
    (:class:`torch_linformer.functional.padding.Padding`). ``slots`` may be None where there is a window: no slots then.
    Returns the output ``(B, H, N, Dv)``, zeros at padding; with ``need_weights`` the softmax ``(B, H, N, K + T + w)``
    before dropout, first slots, then the first T tokens (0 where the window holds one), then the window, the query's
    own position last; and the state after the last position.
    """
    device = query.device.type
    if state is None:
        num_slots = 0 if slots is None else slots.weights_k.decay.shape[-1]
        state = CausalState.empty(key, value, num_slots, window, exact_first)
    query = query * call.scale_for(query)
    query, key, value = (zero_padding(x, padding_mask) for x in (query, key, value))
    # Sums exceed the range of float16. Scores in bfloat16 err three times as much as SDPA's; the cost of float32 was
    # measured only on a CPU, where it is small (docs/log.md).
    dtype = torch.promote_types(query.dtype, torch.float32 if device == "cpu" else torch.bfloat16)
    if query.shape[2] == 0:
        num_weights = state.mass_k.shape[-1] + exact_first + (window or 0)
        return value, query.new_zeros(*query.shape[:3], num_weights) if call.need_weights else None, state
    if exact_first > 0:
        state = state.with_first(key, value, padding_mask)
    inputs = CausalInput(query, key, value, padding_mask, slots, window)
    has_autocast = torch.amp.is_autocast_available(device)  # "meta" has none
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        if not is_traced() and query.shape[2] == 1:
            output, softmax, state = attend_next(inputs.to(dtype), state, call.dropout_p)
            output = zero_padding(output.to(value.dtype), padding_mask)
            return output, softmax if call.need_weights else None, state
        chunk_size = CHUNK if slots is None else slots.chunk_size
        run = CausalRun(chunk_size, dtype, call.dropout_p, call.need_weights)
        return attend_in_segments(inputs, state, run)


def _check_inputs(query: Tensor, key: Tensor, value: Tensor, window: int | None, exact_first: int) -> None:
    shapes = [tuple(x.shape) for x in (query, key, value)]
    if query.dim() != 4 or shapes[0] != shapes[1] or shapes[0][:3] != shapes[2][:3]:
        raise ValueError(
            f"query, key and value must be (B, H, N, D), (B, H, N, D) and (B, H, N, Dv), got {shapes[0]}, {shapes[1]} "
            f"and {shapes[2]}"
        )
    check_window(window)
    if exact_first < 0:
        raise ValueError(f"exact_first must be at least 0 tokens, got {exact_first}")


def check_window(window: int | None) -> None:
    """Raise ``ValueError`` for a window of no tokens."""
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 token, or None for no window, got {window}")


def _check_weights(name: str, slot_weights: SlotWeights, key: Tensor, padding: Tensor | None, chunk_size: int) -> None:
    (heads, length), decay = key.shape[1:3], slot_weights.decay
    if decay.dim() not in (1, 2) or (decay.dim() == 2 and decay.shape[0] not in (1, heads)):
        raise ValueError(f"{name}.decay must be (K,) or (H, K) for {heads} heads, got {tuple(decay.shape)}")
    if slot_weights.weights is not None:
        shape = tuple(slot_weights.weights.shape)
        expected = (*key.shape[:2], length, decay.shape[-1])[-len(shape) :]
        fits = 2 <= len(shape) <= 4 and shape[-2:] == expected[-2:]
        if not fits or any(size not in (1, fitting) for size, fitting in zip(shape[:-2], expected[:-2], strict=True)):
            raise ValueError(
                f"{name}.weights must be (N, K), (H, N, K) or (B, H, N, K) with N = {length} and "
                f"K = {decay.shape[-1]}, got {shape}"
            )
        valid = ((slot_weights.weights > 0) & (slot_weights.weights < math.inf)).all(dim=-1)
        if padding is not None:
            valid = valid | padding[:, None]
        _require(valid.all(), f"{name}.weights must be positive and finite at every real token")
    if decay.numel() > 0:
        limits = "0 and the limit of its chunks"
        if not is_compiling():  # where a message is one constant string
            limits = (
                f"0 and {STEEPEST:g} / chunk_size = {STEEPEST / chunk_size:g} nats a token, got up to "
                f"{float(decay.detach().amax()):g}"
            )
        _require(
            ((decay >= 0) & (chunk_size * decay <= STEEPEST)).all(),
            f"{name}.decay must lie between {limits}: a weight that fades faster belongs to the window, or take "
            "smaller chunks",
        )


def _require(condition: Tensor, message: str) -> None:
    """Raise ``ValueError`` where it is False; a compiled graph checks it where it runs."""
    if is_compiling():
        assert_async(condition, message)
    elif not condition:
        raise ValueError(message)

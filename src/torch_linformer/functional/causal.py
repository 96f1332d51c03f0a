"""Causal Linformer attention: every slot is a running mean, so that no query sees what comes after it."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torch_linformer.functional.causal_chunks import attend_segment
from torch_linformer.functional.causal_state import CausalInput, CausalState
from torch_linformer.functional.causal_step import attend_next
from torch_linformer.functional.device_sizes import sizes_for
from torch_linformer.functional.implementations import (
    RUNNING_MEANS,
    Implementation,
    check_implementation,
    choose,
)
from torch_linformer.functional.local_blocks import blocks_of, first_positions
from torch_linformer.functional.padding import Padding, check_padding_mask, zero_padding
from torch_linformer.functional.running_means import SlotWeights
from torch_linformer.functional.torch_state import is_traced, is_transformed, records_a_graph

CHUNK = 64  # positions in a chunk
STEEPEST = 64.0  # nats that a weight may fade in one chunk: float32 has room for them and for the weights


def causal_linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj_k: SlotWeights,
    proj_v: SlotWeights | None = None,
    *,
    score_bias: Tensor | None = None,
    window: int | None = None,
    exact_first: int = 0,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    chunk_size: int = CHUNK,
    impl: Implementation = "auto",
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
    :math:`\bar V` is made as :math:`\bar K` with the weights of ``proj_v``. Tokens of :math:`A_t` are in the slots too,
    and one that is both a first and a last one counts once. Time is O(N·(c·(D + K) + K·D + (w + T)·D)) for chunks of c,
    and the output at t does not depend on anything after t.

    Args:
        query: ``(B, H, N, D)``.
        key: ``(B, H, N, D)``.
        value: ``(B, H, N, Dv)``.
        proj_k: the weights with which positions enter the slots of keys.
        proj_v: those of values; None for the same.
        score_bias: b on the scores of slots, ``(K,)`` or ``(H, K)``; 0 by default.
        window: also attend to the last w tokens, the query's own among them.
        exact_first: also attend to the first T tokens.
        key_padding_mask: bool ``(B, N)``, True at padding, on any side and between tokens: positions, the window and
            the first tokens count real tokens.
        dropout_p: probability of dropping an attention weight; it applies whenever it is above 0.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.
        chunk_size: positions computed at once; changes only rounding.
        impl: ``"torch"`` goes from segment to segment, of 512 positions on a CPU; ``"scan"`` computes all chunks side
            by side and their states by a scan, in few kernels, keeping O(N·(K + T + c + w + K·(D + Dv) / c)) numbers a
            head at a time, in both passes, and for long inputs some 2^27 of all heads. ``"auto"`` takes the first on a
            CPU, and the second, which has only been run on a CPU, elsewhere. See :func:`use_implementation`.

    Returns:
        ``(B, H, N, Dv)``; zeros at padding. A CPU computes half precision in float32, other devices only float16: in
        bfloat16 they err up to three times as much as ordinary attention, whose scores are not rounded.

    Raises:
        ValueError: if shapes do not fit, a weight would fade more than 64 nats in a chunk, a real token's weight is not
            positive and finite, or ``impl`` cannot compute it. A compiled or exported graph checks these numbers where
            it runs, and raises ``RuntimeError``.
    """
    _check_inputs(query, key, value, window, exact_first)
    check_padding_mask(key_padding_mask, key.shape[0], key.shape[2])
    for name, proj in (("proj_k", proj_k), ("proj_v", proj_v or proj_k)):
        _check_weights(name, proj, key, key_padding_mask, chunk_size)
    check_implementation(impl)
    padding = None
    if key_padding_mask is not None:
        # Means count the real tokens themselves; a window counts positions, and so do the first tokens.
        is_ordered = window is not None or exact_first > 0
        padding = Padding(key_padding_mask, in_order=not is_ordered)
        query, key, value = (padding.justify(x) for x in (query, key, value))
        proj_k = proj_k.reorder(padding.order)
        proj_v = None if proj_v is None else proj_v.reorder(padding.order)
    output, _, _ = attend_causally(
        query,
        key,
        value,
        proj_k,
        proj_v,
        score_bias=score_bias,
        window=window,
        exact_first=exact_first,
        padding_mask=None if padding is None else padding.trailing,
        dropout_p=dropout_p,
        scale=scale,
        chunk_size=chunk_size,
        impl=impl,
    )
    return output if padding is None else padding.restore(output)


def attend_causally(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj_k: SlotWeights | None,
    proj_v: SlotWeights | None = None,
    *,
    score_bias: Tensor | None = None,
    window: int | None = None,
    exact_first: int = 0,
    padding_mask: Tensor | None = None,
    state: CausalState | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    chunk_size: int = CHUNK,
    need_weights: bool = False,
    impl: Implementation = "auto",
) -> tuple[Tensor, Tensor | None, CausalState]:
    """:func:`causal_linformer_attention`, unchecked, of positions that follow those in ``state``.

    With a window or exact tokens, padding follows the real tokens
    (:class:`torch_linformer.functional.padding.Padding`). ``proj_k`` may be None where there is a window: no slots
    then. Returns the output ``(B, H, N, Dv)``, zeros at padding; with ``need_weights`` the softmax
    ``(B, H, N, K + T + w)`` before dropout, first slots, then the first T tokens (0 where the window holds one), then
    the window, the query's own position last; and the state after the last position.
    """
    by_scan = choose(RUNNING_MEANS, query, key, value, impl=impl) == "scan"
    if state is None:
        state = CausalState.empty(key, value, 0 if proj_k is None else proj_k.decay.shape[-1], window, exact_first)
    query = query * (1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    query, key, value = (zero_padding(x, padding_mask) for x in (query, key, value))
    inputs = CausalInput(query, key, value, padding_mask, proj_k, proj_v)
    device = query.device.type
    # Sums exceed the range of float16. Scores in bfloat16 err three times as much as SDPA's; the cost of float32 was
    # measured only on a CPU, where it is small (docs/log.md).
    dtype = torch.promote_types(query.dtype, torch.float32 if device == "cpu" else torch.bfloat16)
    if query.shape[2] == 0:
        num_weights = state.mass_k.shape[-1] + exact_first + (window or 0)
        return value, query.new_zeros(*query.shape[:3], num_weights) if need_weights else None, state
    if exact_first > 0:
        state = state.with_first(key, value, padding_mask)
    has_autocast = torch.amp.is_autocast_available(device)  # "meta" has none
    with torch.autocast(device, enabled=False) if has_autocast else nullcontext():
        if not is_traced() and query.shape[2] == 1:
            output, softmax, state = attend_next(inputs.to(dtype), score_bias, state, window, dropout_p)
            output = zero_padding(output.to(value.dtype), padding_mask)
            return output, softmax if need_weights else None, state
        how = partial(attend_segment, window=window, dtype=dtype, dropout_p=dropout_p)
        attend = partial(how, need_weights=need_weights, by_scan=by_scan)
        if records_a_graph():
            return _attend_as_one_segment(attend, inputs, score_bias, state, chunk_size)
        if by_scan:
            return _attend_by_scan(attend, inputs, score_bias, state, chunk_size, dropout_p)
        most = sizes_for(query.device).segment
        return _attend_in_segments(attend, inputs, score_bias, state, chunk_size, dropout_p, most)


def _attend_as_one_segment(
    attend: Callable[..., Any], inputs: CausalInput, score_bias: Tensor | None, state: CausalState, chunk: int
) -> tuple[Tensor, Tensor | None, CausalState]:
    """While compiling, sizes are symbolic: one segment, filled up with padding, serves every length."""
    length = inputs.query.shape[2]
    filled = inputs.pad(blocks_of(length, chunk) * chunk - length)
    output, weights, state = attend(filled, score_bias, state, chunk=chunk)
    return first_positions(output, length), None if weights is None else first_positions(weights, length), state


def _attend_by_scan(
    attend: Callable[..., Any],
    inputs: CausalInput,
    score_bias: Tensor | None,
    state: CausalState,
    chunk_size: int,
    dropout_p: float,
) -> tuple[Tensor, Tensor | None, CausalState]:
    """All chunks at once, or as many as make ``scan_numbers``: (K + T + c + w + 2 K (D + Dv) / c) a position and head.

    A rest of a chunk is filled up with padding: a segment of its own would double the kernels that are launched.
    """
    batch, heads, length, width = inputs.query.shape
    chunk, num_slots = min(chunk_size, length), state.mass_k.shape[-1]
    of_scores = num_slots + state.first_keys.shape[2] + chunk + state.recent_keys.shape[2]
    of_states = 2 * num_slots * (width + inputs.value.shape[-1]) // chunk
    most = sizes_for(inputs.query.device).scan_numbers // max(1, batch * heads * (of_scores + of_states))
    fill = -length % chunk
    inputs = inputs.pad(fill) if fill else inputs
    output, weights, state = _attend_in_segments(attend, inputs, score_bias, state, chunk, dropout_p, most)
    return output[:, :, :length], None if weights is None else weights[:, :, :length], state


def _attend_in_segments(
    attend: Callable[..., Any],
    inputs: CausalInput,
    score_bias: Tensor | None,
    state: CausalState,
    chunk_size: int,
    dropout_p: float,
    most: int,
) -> tuple[Tensor, Tensor | None, CausalState]:
    # A segment keeps only its inputs for the backward pass; the transforms of torch.func allow no hooks for that.
    if torch.is_grad_enabled() and not is_transformed():
        attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=dropout_p > 0)
    outputs, all_weights = [], []
    for segment in inputs.split(_segment_sizes(inputs.query.shape[2], chunk_size, most)):
        chunk = min(chunk_size, segment.query.shape[2])
        output, weights, state = attend(segment, score_bias, state, chunk=chunk)
        outputs.append(output)
        if weights is not None:
            all_weights.append(weights)
    return torch.cat(outputs, dim=2), torch.cat(all_weights, dim=2) if all_weights else None, state


def _segment_sizes(length: int, chunk: int, most: int) -> list[int]:
    """Positions of segments of whole chunks, at most ``most`` or one chunk, and of the rest."""
    whole = length - length % chunk
    size = max(chunk, most - most % chunk)
    sizes = [size] * (whole // size) + [whole % size, length - whole]
    return [size for size in sizes if size > 0]


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


def _check_weights(name: str, proj: SlotWeights, key: Tensor, padding: Tensor | None, chunk_size: int) -> None:
    (heads, length), decay = key.shape[1:3], proj.decay
    if decay.dim() not in (1, 2) or (decay.dim() == 2 and decay.shape[0] not in (1, heads)):
        raise ValueError(f"{name}.decay must be (K,) or (H, K) for {heads} heads, got {tuple(decay.shape)}")
    if proj.weights is not None:
        shape = tuple(proj.weights.shape)
        wanted = (*key.shape[:2], length, decay.shape[-1])[-len(shape) :]
        fits = 2 <= len(shape) <= 4 and shape[-2:] == wanted[-2:]
        if not fits or any(given not in (1, size) for given, size in zip(shape[:-2], wanted[:-2], strict=True)):
            raise ValueError(
                f"{name}.weights must be (N, K), (H, N, K) or (B, H, N, K) with N = {length} and "
                f"K = {decay.shape[-1]}, got {shape}"
            )
        valid = ((proj.weights > 0) & (proj.weights < math.inf)).all(dim=-1)
        if padding is not None:
            valid = valid | padding[:, None]
        _require(valid.all(), f"{name}.weights must be positive and finite at every real token")
    if decay.numel() > 0:
        limits = "0 and the limit of its chunks"
        if not torch.compiler.is_compiling():  # where a message is one constant string
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
    if torch.compiler.is_compiling():
        # torch has no public function that adds a check with a message to a graph.
        torch._assert_async(condition, message)
    elif not condition:
        raise ValueError(message)

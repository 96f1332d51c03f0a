"""Causal attention of a long sequence, a segment of whole chunks at a time."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from torch_linformer.functional.attention.spans import blocks_of, first_positions
from torch_linformer.functional.causal.state import CausalInput, CausalState
from torch_linformer.functional.kernels.device_sizes import sizes_for
from torch_linformer.functional.kernels.graph import is_transformed


def attend_as_one_segment(
    attend: Callable[..., Any], inputs: CausalInput, state: CausalState, chunk: int
) -> tuple[Tensor, Tensor | None, CausalState]:
    """While compiling, sizes are symbolic: one segment, filled up with padding, serves every length."""
    length = inputs.query.shape[2]
    filled = inputs.pad(blocks_of(length, chunk) * chunk - length)
    output, weights, state = attend(filled, state, chunk=chunk)
    return first_positions(output, length), None if weights is None else first_positions(weights, length), state


def attend_by_scan(
    attend: Callable[..., Any], inputs: CausalInput, state: CausalState, chunk_size: int, dropout_p: float
) -> tuple[Tensor, Tensor | None, CausalState]:
    """All chunks at once, or as many as make ``scan_numbers``: (K + T + c + w + 2 K (D + Dv) / c) a position and head.

    A rest of a chunk is filled up with padding: a segment of its own would double the kernels that are launched.
    """
    batch, heads, length, width = inputs.query.shape
    chunk, num_slots = min(chunk_size, length), state.mass_k.shape[-1]
    score_numbers = num_slots + state.first_keys.shape[2] + chunk + state.recent_keys.shape[2]
    state_numbers = 2 * num_slots * (width + inputs.value.shape[-1]) // chunk
    numbers = max(1, batch * heads * (score_numbers + state_numbers))
    longest = sizes_for(inputs.query.device).scan_numbers // numbers
    fill = -length % chunk
    inputs = inputs.pad(fill) if fill else inputs
    output, weights, state = attend_in_segments(attend, inputs, state, chunk, dropout_p, longest)
    return output[:, :, :length], None if weights is None else weights[:, :, :length], state


def attend_in_segments(
    attend: Callable[..., Any],
    inputs: CausalInput,
    state: CausalState,
    chunk_size: int,
    dropout_p: float,
    longest: int,
) -> tuple[Tensor, Tensor | None, CausalState]:
    # A segment keeps only its inputs for the backward pass; the transforms of torch.func allow no hooks for that.
    if torch.is_grad_enabled() and not is_transformed():
        attend = partial(checkpoint, attend, use_reentrant=False, preserve_rng_state=dropout_p > 0)
    outputs, all_weights = [], []
    for segment in inputs.split(_segment_sizes(inputs.query.shape[2], chunk_size, longest)):
        chunk = min(chunk_size, segment.query.shape[2])
        output, weights, state = attend(segment, state, chunk=chunk)
        outputs.append(output)
        if weights is not None:
            all_weights.append(weights)
    return torch.cat(outputs, dim=2), torch.cat(all_weights, dim=2) if all_weights else None, state


def _segment_sizes(length: int, chunk: int, longest: int) -> list[int]:
    """Positions of segments of whole chunks, at most ``longest`` or one chunk, and of the rest."""
    whole = length - length % chunk
    size = max(chunk, longest - longest % chunk)
    sizes = [size] * (whole // size) + [whole % size, length - whole]
    return [size for size in sizes if size > 0]

"""Rows that an encoder reads window after window: where each token of a row stands in which window."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from torch_linformer.functional.padding import Padding
from torch_linformer.functional.pytorch import records_a_graph

QUARTERS = 4  # of a window: those that end in the same one are read at once, padded to the longest


@dataclass(frozen=True)
class Windows:
    """Rows ``(B, N)`` as windows ``(W, n)`` of their real tokens.

    Each window has the row's first and last special tokens around its own part of the others, so that a row of at most
    n tokens is read as it is, and longer ones in parts that look like rows. ``source`` ``(W, n)`` and ``place``
    ``(B, N)`` say where the tokens of one stand in the other, flattened; ``real`` ``(W, n)`` what is no padding.
    """

    padding: Padding
    source: Tensor
    real: Tensor
    place: Tensor

    @classmethod
    def of(cls, padding: Padding, window: int, first: int, last: int) -> "Windows":
        """Windows of ``window`` tokens, ``first`` and ``last`` of which stand in every one of a row."""
        room, length, device = window - first - last, padding.length, padding.mask.device
        most = torch.sym_max(1, (length - first - last + room - 1) // room)  # type: ignore[no-untyped-call]
        tokens_of = padding.tokens.long()  # (B, 1)
        # One axis for the windows of all rows: a graph would make an exception of rows of one window.
        windows = torch.arange(tokens_of.shape[0] * most, device=device).unsqueeze(1)
        row, number = windows // most, windows % most
        tokens, place = tokens_of[row.squeeze(1)], torch.arange(window, device=device)
        content = (tokens - first - last - number * room).clamp(min=0, max=room)
        short = tokens < first + last  # a row of less than the special tokens is one window as it is
        after = place - first - content
        source = torch.where(after >= 0, tokens - last + after, number * room + place)
        source = torch.where((place < first) | short, place, source).clamp(min=0).clamp(max=length - 1)
        exists = (content > 0) | (number == 0)
        real = (place < torch.where(short, tokens, first + content + last)) & exists
        source = row * length + source

        rank, own = padding.positions, (tokens_of - first - last).clamp(min=0)
        number = (rank - first).clamp(min=0) // room
        last_window = (own - 1).clamp(min=0) // room
        is_last = (rank >= tokens_of - last) & (tokens_of >= first + last)
        in_last = first + own - last_window * room + rank - (tokens_of - last)
        place = torch.where(is_last, in_last, rank - number * room)
        number = torch.where(is_last, last_window, number).clamp(max=most - 1)
        number = number + most * torch.arange(tokens_of.shape[0], device=device).unsqueeze(1)
        if not records_a_graph():  # which has no tensors whose sizes depend on numbers
            exists = exists.squeeze(1)
            source, real = source[exists], real[exists]
            number = (exists.long().cumsum(0) - 1)[number]
        return cls(padding, source, real, number * window + place.clamp(0, window - 1))

    def cut(self, rows: Tensor) -> Tensor:
        """``(W, n, …)`` of ``(B, N, …)``."""
        windows: Tensor = self.padding.justify(rows).flatten(0, 1)[self.source]
        return windows

    def batches(self) -> list[tuple[Tensor | slice, int]]:
        """Windows to read at once, and the most tokens that one of them has: full ones, and others by quarters.

        All at once in a graph, with gradients, as who looks at them expects one call, and where several processes may
        share the weights, which must be called alike.
        """
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if records_a_graph() or torch.is_grad_enabled() or several:
            return [(slice(None), self.real.shape[1])]
        tokens = self.real.sum(dim=1)
        quarters = tokens * QUARTERS // self.real.shape[1]
        chosen = [(quarters == quarter).nonzero().squeeze(1) for quarter in torch.unique(quarters).tolist()]
        return [(index, max(1, int(tokens[index].max()))) for index in chosen]

    @property
    def counts(self) -> list[int]:
        """How many windows each row has."""
        return cast("list[int]", torch.bincount(self.source[:, 0] // self.padding.length).tolist())

    def read_in(self, batches: Sequence[tuple[Tensor | slice, int]]) -> "Windows":
        """The same, to :meth:`join` the states ``(w, ·, C)`` of each of these :meth:`batches`."""
        windows, width = self.real.shape
        if records_a_graph() or (len(batches) == 1 and batches[0][1] == width):
            return self
        starts, end = self.place.new_empty(windows), 0
        for index, most in batches:
            count = len(starts[index])
            starts[index] = end + most * torch.arange(count, device=starts.device)
            end += count * most
        place = starts[self.place // width] + self.place % width
        return replace(self, place=place.clamp(max=end - 1))  # padding has a place too

    def join(self, *states: Tensor) -> Tensor:
        """``(B, N, C)`` of ``(W, n, C)``; of a token that stands in several windows one of its states, at padding 0."""
        flat = [x.flatten(0, 1) for x in states]
        rows: Tensor = (torch.cat(flat) if len(flat) > 1 else flat[0])[self.place]
        return self.padding.clean(self.padding.restore(rows))


def windows_of(config: Any, rows: Tensor, padding: Padding | None = None) -> Windows | None:
    """Those in which a model with this configuration reads rows ``(B, N, …)``; None where these are short enough."""
    if config.read_window is None or (not records_a_graph() and rows.shape[1] <= config.read_window):
        return None
    if padding is None:
        padding = Padding(torch.zeros(rows.shape[:2], dtype=torch.bool, device=rows.device), in_order=True)
    return Windows.of(padding, config.read_window, config.exact_first, config.exact_last)

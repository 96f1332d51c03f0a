"""Padding: where it is, the order in which a row's real tokens come first, and which piece of the rows a process holds.

Row i of E, the windows and the positions of causal attention belong to the i-th real token. The result of a row must
not depend on where its padding is, so real tokens are moved to the front on the way in and back on the way out.
"""

from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, Protocol, TypeVar, TypeVarTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.pytorch import exports_by_running, records_a_graph

Derived = TypeVar("Derived")
MaskLike = TypeVar("MaskLike", bound="Mask | None")
Arguments = TypeVarTuple("Arguments")


class Mask:
    """A bool mask that nobody changes, True at what is hidden; it keeps what follows from it (``kept``)."""

    def __init__(self, mask: Tensor) -> None:
        self.mask = mask
        self._derived: dict[Hashable, Any] = {}


def kept(function: Callable[[MaskLike, *Arguments], Derived]) -> Callable[[MaskLike, *Arguments], Derived]:
    """``function`` of a mask, or of None, whose result the mask keeps for the next layer that asks.

    A compiled graph finds equal steps itself, and may not write to what it is given: there nothing is kept. An exported
    one finds them too, when each has been recorded: what depends on the mask alone is kept there.
    """

    @wraps(function)
    def derived(mask: MaskLike, *args: *Arguments) -> Derived:
        if mask is None or (records_a_graph() and (args or not exports_by_running())):
            return function(mask, *args)
        key = (function, args)
        if key not in mask._derived:
            mask._derived[key] = function(mask, *args)
        result: Derived = mask._derived[key]
        return result

    return derived


def mask_of(mask: Mask | Tensor | None) -> Tensor | None:
    """The tensor of a mask, bool ``(B or 1, N)``; None where nothing is hidden."""
    return mask.mask if isinstance(mask, Mask) else mask


def as_mask(mask: Mask | Tensor | None) -> Mask | None:
    """A mask that keeps what follows from it."""
    return Mask(mask) if isinstance(mask, Tensor) else mask


class Collective(Protocol):
    """The processes that hold pieces of the same rows. All call each of these alike, and wait for the others."""

    def total(self, share: Tensor) -> Tensor:
        """The sum over all pieces, of a tensor that has the same shape in each."""

    def highest(self, share: Tensor) -> Tensor:
        """Their maximum, without its gradient."""

    def around(self, sequence: Tensor, reach: int) -> Tensor:
        """``(B, H, N, D)`` with the positions of the whole rows at most ``reach`` before and after it."""

    def received(self, state: Sequence[Tensor], like: Tensor) -> tuple[Tensor, ...]:
        """What the piece before this one has handed on, in place of ``state``; ``like`` is part of this one's graph."""

    def hand_on(self, state: Sequence[Tensor], output: Tensor) -> Tensor:
        """Let the piece after this one receive ``state``; its gradient comes by ``output``, which is returned."""


class Padding(Mask):
    """The padding of a batch: its mask, the order that moves real tokens to the front, and counts of them.

    Args:
        mask: bool ``(B, N)``, True at padding, as the sequence is given.
        in_order: padding follows the real tokens already, or its place does not matter.
        tokens: real tokens of each whole row, ``(B, 1)``, where they are known.
        collective: where these are a piece of the rows, the processes that hold all of them.
        start: positions of the whole rows before these.
        length: positions of the whole rows; those of the mask by default.
    """

    def __init__(
        self,
        mask: Tensor,
        in_order: bool = False,
        tokens: Tensor | None = None,
        collective: Collective | None = None,
        start: int = 0,
        length: int | None = None,
    ) -> None:
        super().__init__(mask)
        self.in_order, self._tokens = in_order, tokens
        self.collective, self.start, self._length = collective, start, length

    @property
    def length(self) -> int:
        """Positions of the whole rows."""
        return self.mask.shape[1] if self._length is None else self._length

    @property
    def is_piece(self) -> bool:
        """Whether other processes hold other pieces of these rows."""
        return self.collective is not None

    def total(self, share: Tensor) -> Tensor:
        """The sum of ``share`` over all pieces of the rows."""
        return share if self.collective is None else self.collective.total(share)

    def maximum(self, share: Tensor) -> Tensor:
        """Their maximum, whose gradient goes to the pieces that have it, in equal parts."""
        if self.collective is None:
            return share
        has_it = self.collective.highest(share.detach()) == share
        return self.total(share.where(has_it, 0.0)) / self.total(has_it.to(share.dtype))

    def mask_around(self, reach: int) -> Mask:
        """The mask of these positions with those of the whole rows at most ``reach`` before and after them."""
        return self._mask_around(reach) if self.is_piece else self

    @kept
    def _mask_around(self, reach: int) -> Mask:
        first, stop = max(0, self.start - reach), min(self.length, self.start + self.mask.shape[1] + reach)
        return Mask(torch.arange(first, stop, device=self.tokens.device) >= self.tokens)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> "Padding":
        """The same on another device: hooks that spread a model over devices move what layers are given."""
        mask = self.mask.to(device, non_blocking=non_blocking)
        return self if mask is self.mask else Padding(mask, self.in_order)

    @property
    @kept
    def real(self) -> Tensor:
        """Bool ``(B, N)``, the opposite of the mask."""
        return ~self.mask

    @property
    @kept
    def tokens(self) -> Tensor:
        """Real tokens of each row, ``(B, 1)``."""
        if self._tokens is not None:
            return self._tokens
        return self.real.sum(dim=-1, keepdim=True) if self.in_order or self.mask.shape[1] == 0 else self.up_to[:, -1:]

    @property
    @kept
    def empty_rows(self) -> Tensor:
        """Bool ``(B, 1)``, True at rows without a token."""
        return self.tokens == 0

    @property
    @kept
    def up_to(self) -> Tensor:
        """Real tokens of the whole rows up to each position and with it, ``(B, N)``."""
        if self.is_piece:
            return (self.start + 1 + self.positions).minimum(self.tokens)
        if records_a_graph():  # OpenVINO adds bools to a bool
            return self.real.long().cumsum(dim=-1)
        return self.real.cumsum(dim=-1)

    @property
    @kept
    def ranks(self) -> Tensor:
        """Real tokens before each position, ``(B, N)``: a real token's place among them."""
        if records_a_graph():  # programs that read graphs have no sums of numbers and bools
            return self.up_to - self.real.long()
        return torch.add(self.up_to, self.real, alpha=-1)

    @property
    @kept
    def positions(self) -> Tensor:
        """``(N,)``, from 0."""
        return torch.arange(self.mask.shape[1], device=self.mask.device)

    @property
    @kept
    def trailing(self) -> Tensor:
        """Bool ``(B, N)``, the mask after the real tokens are moved to the front."""
        return self.mask if self.in_order else self.positions >= self.tokens

    @property
    @kept
    def order(self) -> Tensor | None:
        """``(B, N)``, the position that each place of the moved row is taken from; None where nothing has to move."""
        places = self.inverse
        # No sort: counting is linear. Each place is written to once.
        return None if places is None else places.scatter(-1, places, self.positions.expand_as(places))

    @property
    @kept
    def inverse(self) -> Tensor | None:
        """``(B, N)``, where each position goes: the real tokens keep their order, the padding follows."""
        if self.in_order:
            return None
        return torch.where(self.real, self.ranks, self.positions + (self.tokens - self.ranks))

    @property
    def justified(self) -> "Padding":
        """The padding of what :meth:`justify` returns."""
        return self if self.in_order else self._moved

    @property
    @kept
    def _moved(self) -> "Padding":
        return Padding(self.trailing, in_order=True, tokens=self.tokens)

    @kept
    def length_factor(self, max_len: int, dtype: torch.dtype) -> Tensor:
        r""":math:`\sqrt{max\_len / n}` for n real tokens of a row, ``(B, 1)``; a finite number where there are none."""
        wide = torch.float64 if dtype == torch.float64 else torch.float32  # promote_types would be an operation
        tokens = self.tokens
        if wide != torch.get_default_dtype():  # in which integers are divided
            tokens = tokens.to(wide)
        # float16 holds no number as large as the one below, and ONNX would round its factor to an integer.
        if dtype == torch.float16 or records_a_graph():
            share = tokens.clamp(min=1) / max_len
        else:
            # (n + ε) / max_len in one kernel: ε is lost in the rounding of every other number of tokens than 0.
            positions = max(max_len, 1)  # a map of no positions has slots of zeros, at any factor
            share = torch.rsub(tokens, torch.finfo(wide).eps / 4 / positions, alpha=-1 / positions)
        return share.rsqrt().to(dtype)

    def clean(self, sequence: Tensor) -> Tensor:
        """``sequence`` in its own order, with zeros at padding."""
        return zero_padding(sequence, self.mask)

    def justify(self, sequence: Tensor) -> Tensor:
        """``sequence`` with the real tokens first; ``(B, N, C)`` and ``(B, H, N, D)`` have zeros at padding."""
        moved = reorder(sequence, self.order, dim=max(1, sequence.dim() - 2))
        return moved if sequence.dim() == 2 else zero_padding(moved, self.trailing)

    def restore(self, sequence: Tensor) -> Tensor:
        """``(B, N, C)`` or ``(B, H, N, K)`` in the original order."""
        return reorder(sequence, self.inverse, dim=sequence.dim() - 2)


def start_of(padding: Padding | None) -> int:
    """Positions of the whole rows before these."""
    return 0 if padding is None else padding.start


def length_of(sequence: Tensor, padding: Padding | None) -> int:
    """Positions of the whole rows of which ``sequence`` ``(…, N, C)`` holds all, or a piece."""
    return sequence.shape[-2] if padding is None or not padding.is_piece else padding.length


def total_of(share: Tensor, padding: Padding | None) -> Tensor:
    """The sum of ``share`` over all pieces of the rows."""
    return share if padding is None else padding.total(share)


def justify(mask: Tensor | None, *sequences: Tensor) -> tuple[list[Tensor], Padding | None]:
    """``sequences`` with the real tokens of each row first, and the padding that follows these."""
    if mask is None:
        return list(sequences), None
    padding = Padding(mask)
    return [padding.justify(sequence) for sequence in sequences], padding.justified


def reorder(sequence: Tensor, order: Tensor | None, dim: int) -> Tensor:
    """The positions of dimension ``dim`` in the order ``(B, N)`` of their row, the same for all its other indices."""
    if order is None:
        return sequence
    batch, length = order.shape
    first = sequence.expand(batch, *sequence.shape[1:]).movedim(dim, 1)
    # Whole positions of a flat sequence: forward and backward ten times as fast as torch.gather of every channel.
    rows = torch.arange(batch, device=order.device).unsqueeze(-1)
    # Programs that read graphs have no factor beside a sum that is a size.
    places = order + rows * length if records_a_graph() else torch.add(order, rows, alpha=length)
    return first.flatten(0, 1).index_select(0, places.flatten()).view(first.shape).movedim(1, dim)


def zero_padding(sequence: Tensor, mask: Tensor | None) -> Tensor:
    """``sequence`` with zeros at padding, whatever was there; the gradient to padding is exactly zero."""
    return fill_padding(sequence, mask, 0.0)


def fill_padding(sequence: Tensor, mask: Tensor | None, value: float) -> Tensor:
    """``(B, N, C)`` or ``(B, H, N, D)`` with ``value`` at padding. Replaced, not multiplied away: 0 · NaN is NaN."""
    if mask is None:
        return sequence
    mask = mask if sequence.dim() == 3 else mask[:, None]
    return sequence.masked_fill(mask.unsqueeze(-1), value)


def put_around(sequence: Tensor, before: int, after: int, fill: float = 0.0) -> Tensor:
    """``(…, M, C)`` with positions that hold ``fill`` before and after it; a view where there are none to add.

    Negative numbers take positions away.
    """
    if records_a_graph():
        return F.pad(sequence, (0, 0, before, after), value=fill)
    length = sequence.shape[-2]
    seen = sequence[..., max(0, -before) : max(0, length + min(0, after)), :]
    added = max(0, before), length + before + after - max(0, before) - seen.shape[-2]
    return F.pad(seen, (0, 0, *added), value=fill) if any(added) else seen


def check_shapes(fits: bool, expected: str, *tensors: Tensor) -> None:
    """Raise ``ValueError`` where shapes do not fit: what was ``expected``, and what came.

    ``expected`` names no size: a text of sizes would tie a compiled graph to them.
    """
    if not fits:
        *shapes, last = (str(tuple(x.shape)) for x in tensors)
        raise ValueError(f"{expected}, got {', '.join(shapes)}{' and ' if shapes else ''}{last}")


def check_padding_mask(key_padding_mask: Tensor | None, batch: int, length: int) -> None:
    """Raise ``ValueError`` where the mask is not bool ``(B, M)``."""
    if key_padding_mask is None:
        return
    if key_padding_mask.dtype != torch.bool:
        raise ValueError(f"key_padding_mask must be bool (True at padding), got {key_padding_mask.dtype}")
    if key_padding_mask.shape != (batch, length):
        raise ValueError(
            f"key_padding_mask must have shape (B, M) = ({batch}, {length}), got {tuple(key_padding_mask.shape)}"
        )

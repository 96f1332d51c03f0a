"""E and F as a module: one map from a sequence of at most ``max_len`` positions to ``k`` slots."""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.choices import FixedProjection
from torch_linformer.functional.padding import Mask, Padding, length_of, mask_of, reorder, zero_padding
from torch_linformer.functional.slots import (
    are_reached,
    average_windows,
    check_length,
    compress,
    convolve_windows,
    empty_windows,
    max_windows,
    reached_windows,
    scale_to_length,
    tokens_per_window,
)
from torch_linformer.nn.options import DENSE, PARAMETERLESS, check_choice, check_k, check_new_length, default_k
from torch_linformer.nn.padding import KeyPaddingMask, read_padding


class SequenceProjection(nn.Module):
    r"""A map of M positions to K slots, for any M up to ``max_len``.

    ============ ======================================================= ==============================
    projection   slot j                                                  owns (per head: a leading H)
    ============ ======================================================= ==============================
    ``linear``   :math:`s \sum_i E_{ij} x_i`                             parameter ``weight`` (max_len, K)
    ``random``   the same, E fixed                                       buffer ``weight`` (max_len, K)
    ``conv``     :math:`\sum_{i<w} g_i x_{jw+i}`                         parameter ``weight`` (w,)
    ``mean``     mean of the real tokens in window j                     nothing
    ``max``      maximum, per channel, of the real tokens in window j    nothing
    ============ ======================================================= ==============================

    with w = ⌈max_len / K⌉ and :math:`s = \sqrt{max\_len / n}` for n real tokens. E and g are drawn with variance
    1 / max_len and 1 / w, so a slot has the variance of a token whatever the length. Gradients of ``max`` in half
    precision: see ``torch_linformer.functional.slots.max_windows``.

    Args:
        max_len: longest sequence, in tokens.
        k: number of slots K, 1 to ``max_len``; min(256, max_len / 4) by default.
        projection: a row of the table.
        num_heads: one matrix (or kernel) a head, for sequences ``(B, H, M, D)``; None shares one among all heads.
        length_scaling: False leaves s out (``linear`` and ``random``), as imported weights need.

    Shapes: ``(B, M, C)`` to ``(B, K, C)``; ``(B, H, M, D)`` to ``(B, H, K, D)``.

    Raises:
        ValueError: for an unknown ``projection``, ``k`` outside 1 … ``max_len``, or an input over ``max_len``.

    Source: arXiv 2006.04768, section 4.

    Example:
        >>> import torch
        >>> from torch_linformer.nn import SequenceProjection
        >>> SequenceProjection(max_len=6, k=3, projection="mean")(torch.arange(5.0).view(1, 5, 1)).flatten()
        tensor([0.5000, 2.5000, 4.0000])
    """

    weight: Tensor | None

    def __init__(
        self,
        max_len: int,
        k: int | None = None,
        *,
        projection: FixedProjection = "linear",
        num_heads: int | None = None,
        length_scaling: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_choice("projection", projection, FixedProjection)
        k = default_k(max_len) if k is None else k
        check_k(k, max_len)
        self.max_len, self.k, self.projection = max_len, k, projection
        self.num_heads = None if projection in PARAMETERLESS else num_heads
        self.length_scaling = length_scaling
        # Projecting the sequence first and the channels after gives the same slots.
        self.commutes_with_channels = projection != "max" and self.num_heads is None
        self.slots_of_position = k if projection in DENSE else 1  # that one position enters
        if projection in PARAMETERLESS:
            self.register_parameter("weight", None)
        else:
            self._set_weight(torch.empty(self._weight_shape(), device=device, dtype=dtype))
        self.reset_parameters()

    @property
    def window(self) -> int:
        """Positions a slot looks at, w = ⌈max_len / K⌉, for ``conv``, ``mean`` and ``max``."""
        return -(-self.max_len // self.k)

    @property
    def _span(self) -> int:
        """Positions a slot is made of."""
        return self.max_len if self.projection in DENSE else self.window

    @property
    def chunk_multiple(self) -> int:
        """Positions at whose multiples a sequence may be cut into chunks."""
        return 1 if self.projection in DENSE else self.window

    @property
    def init_std(self) -> float:
        """Standard deviation E or g is drawn with."""
        return 1 / math.sqrt(self._span)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            with torch.no_grad():
                self.weight.normal_(0.0, self.init_std)

    def forward(
        self,
        sequence: Tensor,
        key_padding_mask: KeyPaddingMask = None,
        *,
        all_slots: bool = True,
        chunk: slice | None = None,
    ) -> Tensor:
        """Slots of ``sequence``; ``key_padding_mask`` ``(B, M)`` as in :class:`LinformerAttention`.

        With ``all_slots=False`` only those that it reaches: see ``reached``. ``chunk`` says that ``sequence`` is
        those positions of a longer one: slots of windows begin at its first, which must begin a window, and dense ones
        are its share of a sum, which s does not scale.
        """
        padding = read_padding(key_padding_mask, sequence.movedim(-2, 1), ordered=True)
        length = length_of(sequence, padding)
        check_length(length, self.max_len)
        if self.projection not in DENSE:
            if padding is not None:
                sequence, padding = reorder(sequence, padding.order, dim=sequence.dim() - 2), padding.justified
            if self.projection == "mean" and not isinstance(key_padding_mask, Padding):
                sequence = zero_padding(sequence, mask_of(padding))  # who has read the mask has cleaned what it masks
            num_slots = self.k if all_slots else self.reached(length)
            if self.weight is not None:
                return convolve_windows(sequence, self.weight, num_slots, padding)
            pool = average_windows if self.projection == "mean" else max_windows
            return pool(sequence, self.window, num_slots, padding)
        sequence = zero_padding(sequence, mask_of(padding))
        if chunk is not None:
            return compress(sequence, self.matrix[..., chunk, :], padding, length_scaling=False)
        return compress(sequence, self.matrix, padding, self.length_scaling)

    @property
    def matrix(self) -> Tensor:
        """E of a dense map, ``(max_len, K)``, or ``(H, max_len, K)`` with one a head; no other map has one."""
        if self.projection not in DENSE or self.weight is None:
            raise AttributeError(f"projection={self.projection!r} has no matrix: only linear and random maps have one")
        return self.weight

    def mass(self, sequence: Tensor, padding: Padding | None) -> Tensor:
        """What the weights of each slot that ``sequence`` ``(B, M, C)`` reaches add up to, ``(B or 1, K)``."""
        ones = sequence.new_ones(1 if padding is None else sequence.shape[0], sequence.shape[1], 1)
        mass: Tensor = self(ones, padding, all_slots=False)
        return mass.squeeze(-1)

    def slots_of(
        self,
        scored: Tensor,
        pooled: Sequence[Tensor],
        padding: Padding | None = None,
        chunk: slice | None = None,
        tokens: Tensor | None = None,
    ) -> list[Tensor]:
        """The slots that each sequence in ``pooled`` reaches; the others are for maps that depend on the input.

        Those of a ``chunk`` of longer sequences, real tokens first, are parts to :meth:`join`, whose :meth:`total` are
        the slots.
        """
        return [self(sequence, padding, all_slots=False, chunk=chunk) for sequence in pooled]

    def join(self, slots: list[Tensor] | None, added: list[Tensor]) -> list[Tensor]:
        """The slots of the chunks so far and of the next one: sums of dense maps, and windows in their order."""
        if self.projection not in DENSE:
            return added if slots is None else [torch.cat(pair, dim=-2) for pair in zip(slots, added, strict=True)]
        # Roundings of a sum grow with its terms: this one is kept in no less than float32.
        added = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in added]
        return added if slots is None else [x.add_(y) for x, y in zip(slots, added, strict=True)]

    def total(
        self, slots: list[Tensor], last: list[Tensor], pooled: list[Tensor], length: int, padding: Padding | None
    ) -> list[Tensor]:
        """The slots of whole sequences of ``length``, in the dtype of the ``last`` chunk's."""
        if self.projection in DENSE and self.length_scaling:
            slots = [scale_to_length(x, self.max_len, length, padding) for x in slots]
        return [x.to(like.dtype) for x, like in zip(slots, last, strict=True)]

    def tokens_of_slots(self, sequence: Tensor, padding: Padding | None) -> Tensor:
        """Real tokens that the slots which ``sequence`` reaches stand for, ``(B or 1, K)``."""
        if self.projection in DENSE:
            raise ValueError(
                f"slot_mass needs slots that stand for tokens: those of {self.projection!r} maps mix them all"
            )
        num_slots = self.reached(length_of(sequence, padding))
        return tokens_per_window(padding, self.window, num_slots, sequence.shape[-2], sequence.device, 0)

    def reached(self, length: int) -> int:
        """Slots that a sequence of ``length`` positions fills, the first ones; the others are empty."""
        return self.k if self.projection in DENSE else reached_windows(length, self.window, self.k)

    def slot_padding_mask(
        self, sequence: Tensor, key_padding_mask: KeyPaddingMask = None, *, all_slots: bool = True
    ) -> Tensor | None:
        """Bool ``(B or 1, K)``, True at slots without a real token; None where no slot can be without one.

        With ``all_slots=False`` only of those that the sequence reaches, as :meth:`forward` gives them.
        """
        padding = read_padding(key_padding_mask, sequence.movedim(-2, 1), ordered=True)
        return mask_of(self.slot_padding(sequence, padding, all_slots))

    def slot_padding(self, sequence: Tensor, padding: Padding | None, all_slots: bool = False) -> Mask | None:
        """:meth:`slot_padding_mask`, kept for the layers that share the padding."""
        length = length_of(sequence, padding)
        num_slots = self.k if all_slots else self.reached(length)
        if self.projection in DENSE or (padding is None and are_reached(length, self.window, num_slots)):
            return None
        padding = None if padding is None else padding.justified
        return empty_windows(padding, self.window, num_slots, sequence.shape[-2], sequence.device)

    def check_resize(self, max_len: int, mode: str) -> None:
        """Raise ``ValueError`` where :meth:`resize_max_len` would."""
        check_new_length(max_len, mode, self.k)
        if self.projection not in PARAMETERLESS and "weight" not in {**self._parameters, **self._buffers}:
            raise ValueError(
                "the weight of this projection is computed from other parameters (a parametrization, weight_norm): "
                "remove that, resize_max_len, and put it back"
            )

    @torch.no_grad()
    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Let a trained map take sequences up to ``max_len``, longer or shorter than before; K stays.

        ``interpolate`` stretches E (or the kernel) over the new length, for documents of the same kind cut finer
        or coarser. ``keep`` keeps the first rows and draws new ones: with ``length_scaling`` an input that
        fitted before gives the same slots as before. The optimizer must be made anew: the parameter is new.

        Raises:
            ValueError: for an unknown ``mode``, ``max_len`` below K, or an E that is computed from other parameters
                (``torch.nn.utils.parametrize``, weight norm).
        """
        self.check_resize(max_len, mode)
        old, old_span = self.weight, self._span
        self.max_len = max_len
        if old is None:
            return
        dense = self.projection in DENSE
        rows = old if dense else old.unsqueeze(-1)
        new = resize_rows(rows, self._span, mode, std=self.init_std)
        shrink = math.sqrt(old_span / self._span)
        if mode == "interpolate":
            new *= shrink
        elif dense and self.length_scaling:
            new.narrow(-2, 0, min(old_span, self._span)).mul_(shrink)
        self._set_weight(new.view(self._weight_shape()), requires_grad=old.requires_grad)

    def extra_repr(self) -> str:
        heads = "" if self.num_heads is None else f", num_heads={self.num_heads}"
        return f"max_len={self.max_len}, k={self.k}, projection={self.projection!r}{heads}"

    def _weight_shape(self) -> tuple[int, ...]:
        heads = () if self.num_heads is None else (self.num_heads,)
        return (*heads, self._span, self.k) if self.projection in DENSE else (*heads, self._span)

    def _set_weight(self, weight: Tensor, requires_grad: bool = True) -> None:
        if self.projection == "random":
            self.register_buffer("weight", weight)
        else:
            self.weight = nn.Parameter(weight, requires_grad=requires_grad)


def resize_rows(rows: Tensor, size: int, mode: str, std: float) -> Tensor:
    """``(…, R, K)`` to ``(…, size, K)``: rows interpolated linearly, or kept with new ones drawn from N(0, std²)."""
    if mode == "keep":
        new = rows.new_empty(*rows.shape[:-2], size, rows.shape[-1]).normal_(0.0, std)
        kept = min(size, rows.shape[-2])
        new.narrow(-2, 0, kept).copy_(rows.narrow(-2, 0, kept))
        return new
    # Half precision has no such kernel.
    flat = rows.reshape(-1, *rows.shape[-2:]).transpose(-2, -1).to(torch.promote_types(rows.dtype, torch.float32))
    stretched = F.interpolate(flat, size=size, mode="linear", align_corners=False).transpose(-2, -1)
    return stretched.reshape(*rows.shape[:-2], size, rows.shape[-1]).to(rows.dtype).contiguous()

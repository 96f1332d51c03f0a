"""The slots of sequences that come chunk by chunk."""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_linformer.functional.padding import Padding, length_of
from torch_linformer.functional.slots.dense import check_length, scale_to_length
from torch_linformer.functional.slots.pooling import Pooled
from torch_linformer.nn.dynamic_projection import DynamicProjection, real_tokens
from torch_linformer.nn.maps import SequenceMap
from torch_linformer.nn.options import DENSE
from torch_linformer.nn.projection import SequenceProjection


def slots_of_chunks(projection: SequenceMap, like: Tensor, padding: Padding | None) -> "ProjectedChunks | PooledChunks":
    """What makes slots of sequences that come chunk by chunk; all have the length of ``like``."""
    if isinstance(projection, DynamicProjection):
        return PooledChunks(projection, like, padding)
    return ProjectedChunks(projection, like, padding)


class ProjectedChunks:
    """The slots that a :class:`SequenceProjection` makes of sequences chunk by chunk; all have the length of ``like``.

    Slots of a dense map are sums over all chunks; those of windows lie in one chunk each.
    """

    def __init__(self, projection: SequenceProjection, like: Tensor, padding: Padding | None) -> None:
        self.projection, self.length, self.padding = projection, length_of(like, padding), padding
        check_length(self.length, projection.max_len)
        self._parts: list[list[Tensor]] = []
        self._dtype = torch.get_default_dtype()

    def add(self, chunk: slice, scored: Tensor, sequences: Sequence[Tensor], padding: Padding | None) -> None:
        """Take the positions of ``chunk``, with this padding, of each sequence ``(B, m, C)`` or ``(B, H, m, D)``."""
        slots = [self.projection(piece, padding, all_slots=False, chunk=chunk) for piece in sequences]
        if self.projection.projection not in DENSE:
            self._parts.append(slots)
            return
        self._dtype = slots[0].dtype
        # Roundings of a sum grow with its terms: this one is kept in no less than float32.
        slots = [x.to(torch.promote_types(x.dtype, torch.float32)) for x in slots]
        if self._parts:
            slots = [total.add_(x) for total, x in zip(self._parts[0], slots, strict=True)]
        self._parts = [slots]

    def total(self) -> list[Tensor]:
        """The slots ``(B, ·, C)`` or ``(B, H, ·, D)`` that each whole sequence reaches."""
        if self.projection.projection not in DENSE:
            return [torch.cat(parts, dim=-2) for parts in zip(*self._parts, strict=True)]
        slots = self._parts[0]
        if self.projection.length_scaling:
            slots = [scale_to_length(x, self.projection.max_len, self.length, self.padding) for x in slots]
        return [x.to(self._dtype) for x in slots]


class PooledChunks:
    """The slots that a :class:`DynamicProjection` makes of sequences chunk by chunk: a softmax over all of them."""

    def __init__(self, projection: DynamicProjection, like: Tensor, padding: Padding | None) -> None:
        check_length(length_of(like, padding), projection.max_len)
        self.projection, self.tokens = projection, real_tokens(like, padding)
        self._pooled: Pooled | None = None
        self._like: list[Tensor] = []

    def add(self, chunk: slice, scored: Tensor, sequences: Sequence[Tensor], padding: Padding | None) -> None:
        """As :meth:`ProjectedChunks.add`."""
        pooled = self.projection(scored, sequences, padding, chunk=chunk, tokens=self.tokens)
        self._pooled = pooled if self._pooled is None else self._pooled.joined(pooled)
        self._like = [x[..., :0, :] for x in sequences]

    def total(self) -> list[Tensor]:
        """The slots of each whole sequence."""
        assert self._pooled is not None
        return self.projection.slots_like(self._pooled, self._like)

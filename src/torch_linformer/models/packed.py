"""Packed rows: several documents, one after another, in a row; positions that start again tell them apart."""

import torch
from torch import Tensor
from transformers.utils.import_utils import is_tracing

from torch_linformer.functional.padding import Padding
from torch_linformer.functional.pytorch import assert_async

SEVERAL = "position_ids begin again within a row (packed documents)"


class PackedRows:
    """Every document in its own row, with padding after it, and the way back; ``first`` is True where one begins."""

    def __init__(self, first: Tensor) -> None:
        columns = torch.arange(first.shape[1], device=first.device).expand_as(first)
        self.document = first.flatten().cumsum(dim=0).view(first.shape) - 1
        self.offset = columns - torch.where(first, columns, 0).cummax(dim=-1).values
        tokens = self.document.flatten().bincount().unsqueeze(-1)
        self.key_padding_mask = torch.arange(int(tokens.max()), device=first.device) >= tokens

    @property
    def justified(self) -> Padding:
        """The padding of what :meth:`justify` returns."""
        return Padding(self.key_padding_mask, in_order=True)

    @property
    def longest(self) -> int:
        """Tokens of the longest document."""
        return self.key_padding_mask.shape[1]

    def justify(self, tensor: Tensor) -> Tensor:
        """``(B, N)`` or ``(B, N, C)`` with one document per row, and zeros after it."""
        rows = tensor.new_zeros(*self.key_padding_mask.shape, *tensor.shape[2:])
        return rows.index_put((self.document, self.offset), tensor.expand(*self.document.shape, *tensor.shape[2:]))

    def restore(self, tensor: Tensor) -> Tensor:
        """``(B, N, C)`` or ``(B, H, N, K)`` with the documents where they were, from one document per row."""
        if tensor.dim() == 3:
            return tensor[self.document, self.offset]
        return tensor.transpose(1, 2)[self.document, self.offset].transpose(1, 2)

    def restore_keys(self, weights: Tensor) -> Tensor:
        """Weights ``(B, H, N, N)`` of ordinary attention from ``(B, H, N, longest)``: 0 at other documents."""
        keys = self.offset[:, None, None].expand(*weights.shape[:3], -1)
        same = self.document[:, None, :, None] == self.document[:, None, None, :]
        return weights.gather(-1, keys).masked_fill(~same, 0.0)


def packed_rows(position_ids: Tensor | None, batch: int) -> PackedRows | None:
    """The documents in ``B`` rows, or None if each row is one document.

    A row is packed if every position either follows the one before it or is the lowest of the row, and both occur:
    0 1 2 0 1. A compiled or exported graph cannot branch on this: there packed rows raise an error when it runs.
    """
    if position_ids is None:
        return None
    column = torch.arange(position_ids.shape[1], device=position_ids.device)
    follows = (position_ids == position_ids.roll(1, dims=-1) + 1) & (column > 0)
    begins = (position_ids == position_ids.amin(dim=-1, keepdim=True)) & ~follows & (column > 0)
    packed = follows.any(dim=-1) & begins.any(dim=-1) & (follows | begins | (column == 0)).all(dim=-1)
    if is_tracing(position_ids):
        assert_async(~packed.any(), f"{SEVERAL}: a compiled or exported model takes one document per row")
        return None
    if not packed.any():
        return None
    first = (begins & packed.unsqueeze(-1)) | (column == 0)
    return PackedRows(first.expand(batch, -1))


def refuse_packed_rows(position_ids: Tensor | None, attention_mask: Tensor | Padding | None, reason: str) -> None:
    """Raise ``ValueError``, with the reason, if a row holds several documents."""
    if attention_mask is None and packed_rows(position_ids, 1 if position_ids is None else len(position_ids)):
        raise ValueError(f"{SEVERAL}: {reason}")

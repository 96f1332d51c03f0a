"""How rows become batches: rows of similar lengths together, and batches computed in parts that memory holds."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Sampler

from torch_linformer.distributed import processes

BATCHES_GROUPED = 8  # documents of this many batches are sorted by length together; more would sort labels too
Batch = dict[str, Any]
TOKENS_AT_ONCE = 16_384  # with padding; more are computed in turn


class LengthGroupedSampler(Sampler[int]):
    """A shuffle in which the documents of a batch have similar lengths, drawn from only (seed, epoch).

    The longest batch comes first, so that memory runs out at the start or never.
    """

    def __init__(self, lengths: Sequence[int], batch_size: int, seed: int) -> None:
        self.lengths = torch.as_tensor(lengths)
        self.batch_size, self.seed, self.epoch = batch_size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + self.epoch)
        order = torch.randperm(len(self), generator=generator)
        batches: list[Tensor] = []
        for group in torch.split(order, self.batch_size * BATCHES_GROUPED):
            longest_first = group[torch.argsort(self.lengths[group], descending=True, stable=True)]
            batches.extend(torch.split(longest_first, self.batch_size))
        shuffled = [batches[i] for i in torch.randperm(len(batches), generator=generator)]
        # A batch that is not full must stay the last one: the loader cuts the order into batches by counting.
        shuffled.sort(key=lambda batch: len(batch) < self.batch_size)
        tokens = [int(self.lengths[batch].sum()) if len(batch) == self.batch_size else -1 for batch in shuffled]
        shuffled.insert(0, shuffled.pop(tokens.index(max(tokens))))
        yield from torch.cat(shuffled).tolist()


def parts_of(batch: Batch, tokens: int) -> list[Batch]:
    """The rows of a batch in parts of at most so many tokens with padding, at least a row each.

    Longest rows first; a batch that fits is left as it is. All processes make equally many parts, if they have equally
    many rows. Every tensor of the batch has a row for each text, its ``attention_mask`` ``(B, N)``.
    """
    mask: Tensor = batch["attention_mask"]
    rows = min(processes.gathered(max(1, tokens // mask.shape[1])))
    if len(mask) <= rows:
        return [batch]
    order = torch.argsort(mask.sum(dim=1), descending=True, stable=True)
    return [
        {name: x[numbers] if isinstance(x, Tensor) else x for name, x in batch.items()}
        for numbers in torch.split(order, rows)
    ]


def without_padding(batch: Batch) -> Batch:
    """A batch of tensors ``(B, N)`` without the columns that none of its rows needs."""
    real = batch["attention_mask"].any(dim=0)
    return {name: x[:, real] for name, x in batch.items()}

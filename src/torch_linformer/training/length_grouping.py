"""Batches of documents of similar length, so that little of a batch is padding."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import Sampler

BATCHES_GROUPED = 8  # documents of this many batches are sorted by length together; more would sort labels too


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
        longest = max(range(len(shuffled)), key=lambda i: self._tokens_of_full(shuffled[i]))
        shuffled.insert(0, shuffled.pop(longest))
        yield from torch.cat(shuffled).tolist()

    def _tokens_of_full(self, batch: Tensor) -> int:
        return int(self.lengths[batch].sum()) if len(batch) == self.batch_size else -1

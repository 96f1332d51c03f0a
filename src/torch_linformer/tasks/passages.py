"""Passages of documents, as queries that should find them."""

import math

import torch

SHORTEST, LONGEST = 8, 128  # tokens; their logarithms are drawn evenly


class Passages:
    """Passages of documents, drawn anew each epoch: which ones depends only on (seed, epoch, document).

    A resumed run draws the same ones, whatever its loader had fetched ahead. A passage keeps the special tokens that
    its document begins and ends with, and is no longer than half of the document.

    Args:
        number: passages of a document.
        special: ids of special tokens.
        seed: of the draws.

    Source: the inverse cloze task of arXiv 1906.00300; documents being long here, a passage stays in its own.
    """

    def __init__(self, number: int, special: list[int], seed: int) -> None:
        self.number, self.special, self.seed = number, frozenset(special), seed

    def of(self, ids: list[int], document: int, epoch: int) -> list[list[int]]:
        """The passages of a document's token ids; none of one that is too short for the shortest."""
        first, last = 0, len(ids)
        while first < last and ids[first] in self.special:
            first += 1
        while last > first and ids[last - 1] in self.special:
            last -= 1
        longest = min(LONGEST, (last - first) // 2)
        if longest < SHORTEST:
            return []
        generator = torch.Generator().manual_seed(hash((self.seed, epoch, document)) % 2**63)
        draws = torch.rand(self.number, 2, generator=generator, dtype=torch.float64).tolist()
        passages = []
        for size, place in draws:
            length = int(math.exp(math.log(SHORTEST) + size * math.log((longest + 1) / SHORTEST)))
            start = first + int(place * (last - first - length + 1))
            passages.append(ids[:first] + ids[start : start + length] + ids[last:])
        return passages

"""Documents of one length: the beginnings of those that are long enough."""

from typing import NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from torch_linformer.errors import InputError


class Beginnings(NamedTuple):
    """Documents cut to exactly ``length`` tokens, special tokens included.

    ``documents`` are ``(length,)`` token ids each; ``shorter`` counts those passed over for having fewer tokens.
    """

    length: int
    documents: list[Tensor]
    shorter: int

    def describe(self, wanted: int) -> str:
        """Their numbers in a sentence."""
        there = f"{len(self.documents):,} document{'' if len(self.documents) == 1 else 's'}"
        few = "" if len(self.documents) == wanted else f" of the {wanted:,} asked for"
        return f"{there}{few} of {self.length:,} tokens; {self.shorter:,} shorter ones passed over"


def beginnings(
    tokenizer: PreTrainedTokenizerBase, dataset: Dataset, length: int, number: int, seed: int = 0
) -> Beginnings:
    """The beginnings of ``number`` documents of at least ``length`` tokens, in a random order that the seed decides."""
    documents: list[Tensor] = []
    shorter = 0
    for index in np.random.default_rng(seed).permutation(len(dataset)):
        ids = tokenizer(dataset[int(index)]["text"], truncation=True, max_length=length)["input_ids"]
        if len(ids) < length:
            shorter += 1
            continue
        documents.append(torch.tensor(ids))
        if len(documents) == number:
            break
    if not documents:
        raise InputError(
            f"--length {length}: none of the {len(dataset):,} documents has that many tokens; take a shorter length"
        )
    return Beginnings(length, documents, shorter)

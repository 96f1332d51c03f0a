"""Documents of one length: the beginnings of those that are long enough."""

from dataclasses import dataclass, field

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from torch_linformer.errors import InputError


@dataclass
class Beginnings:
    """Documents cut to exactly ``length`` tokens.

    Attributes:
        length: tokens of each, the tokenizer's own marks included.
        documents: ``(length,)`` token ids each.
        shorter: how many documents were passed over because they have fewer tokens.
    """

    length: int
    documents: list[Tensor] = field(default_factory=list)
    shorter: int = 0

    def describe(self, wanted: int) -> str:
        """How many there are, in a sentence."""
        there = f"{len(self.documents):,} document{'' if len(self.documents) == 1 else 's'}"
        few = "" if len(self.documents) == wanted else f" of the {wanted:,} asked for"
        return f"{there}{few} of {self.length:,} tokens; {self.shorter:,} shorter ones passed over"


def beginnings(
    tokenizer: PreTrainedTokenizerBase, dataset: Dataset, length: int, number: int, seed: int = 0
) -> Beginnings:
    """The beginnings of ``number`` documents of at least ``length`` tokens, in a random order that the seed decides.

    Raises:
        InputError: no document is long enough.
    """
    found = Beginnings(length)
    for index in np.random.default_rng(seed).permutation(len(dataset)):
        ids = tokenizer(dataset[int(index)]["text"], truncation=True, max_length=length)["input_ids"]
        if len(ids) < length:
            found.shorter += 1
            continue
        found.documents.append(torch.tensor(ids))
        if len(found.documents) == number:
            break
    if not found.documents:
        raise InputError(
            f"--length {length}: none of the {len(dataset):,} documents has so many tokens; take a shorter length"
        )
    return found

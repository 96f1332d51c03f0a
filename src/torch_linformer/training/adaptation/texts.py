"""Texts made ready for a distillation: tokenised, some of them cut short."""

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher

from torch_linformer.training.reading.documents import quiet

CUT = 0.25  # share of the texts that are cut to a length of their own, so that the student learns every length
SHORTEST = 8  # tokens of such a text


def mix_lengths(windows: Dataset, after: list[int], seed: int) -> Dataset:
    """``windows`` with a quarter of them cut to a random length, evenly in its logarithm; ``after`` ends each text."""

    def cut(ids: list[int], number: int) -> dict[str, object]:
        draws = np.random.default_rng([seed, number])
        if draws.random() < CUT and len(ids) > SHORTEST:
            length = int(np.exp(draws.uniform(np.log(SHORTEST), np.log(len(ids) + 1))))
            ids = ids[: length - len(after)] + after
        return {"input_ids": ids, "length": len(ids)}

    with quiet():
        return windows.map(
            cut,
            input_columns=["input_ids"],
            with_indices=True,
            remove_columns=["document", "num_tokens", "text_from"],
            new_fingerprint=Hasher.hash([windows._fingerprint, after, seed, CUT, SHORTEST]),
        )

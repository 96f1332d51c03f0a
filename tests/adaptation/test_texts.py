"""Texts of every length in the mix."""

import numpy as np
from datasets import Dataset

from torch_linformer.adaptation.texts import mix_lengths

AFTER = [102, 103]


def windows(number, length=200):
    rows = [{"document": i, "input_ids": [7, *range(length), *AFTER], "length": length + 3} for i in range(number)]
    return Dataset.from_list([{**row, "num_tokens": row["length"], "text_from": 1} for row in rows])


def test_a_quarter_is_cut_and_ends_as_a_text_does():
    mixed = mix_lengths(windows(400), AFTER, seed=0)
    lengths = np.array(mixed["length"][:])
    cut = lengths < 203
    assert 0.2 < cut.mean() < 0.3
    assert lengths[cut].min() < 20 and lengths[cut].max() > 100 and lengths.min() >= 8
    for row in mixed:
        ids = row["input_ids"]
        assert len(ids) == row["length"] and ids[-2:] == AFTER
        assert ids[:-2] == [7, *range(200)][: len(ids) - 2]


def test_the_seed_decides():
    lengths = [mix_lengths(windows(60), AFTER, seed)["length"][:] for seed in (0, 0, 1)]
    assert lengths[0] == lengths[1] != lengths[2]


def test_short_texts_stay():
    assert set(mix_lengths(windows(50, length=4), AFTER, seed=0)["length"]) == {7}

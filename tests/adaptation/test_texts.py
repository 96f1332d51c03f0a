"""Texts of every length in the mix."""

import io
from types import SimpleNamespace

import numpy as np
import pytest
from datasets import Dataset
from rich.console import Console

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import mix_lengths, prepare_texts
from torch_linformer.adaptation.distillation import Teacher
from torch_linformer.data import windows as data_windows
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.reporting.screen import Screen

AFTER = [102, 103]


def windows(number, length=200, text_from=1):
    rows = [{"document": i, "input_ids": [7, *range(length), *AFTER], "length": length + 3} for i in range(number)]
    return Dataset.from_list([{**row, "num_tokens": row["length"], "text_from": text_from} for row in rows])


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


def test_a_prompt_stays_and_the_teacher_reads_what_is_cut_beside_longer_texts():
    """A text was cut within a prompt of more than 7 tokens, and no window of a teacher begins so."""
    lengths = mix_lengths(windows(400, length=60, text_from=21), AFTER, seed=0)["length"][:]
    assert 21 + 1 + len(AFTER) <= min(lengths) < 30
    Teacher._windows(SimpleNamespace(before=21, after=2, longest=40, shared=0.0), sorted(lengths))


@pytest.mark.parametrize(("fewest", "asks"), [(100, True), (101, False)])
def test_very_many_short_texts_are_a_question(monkeypatch, tokenizer, fewest, asks):
    """All parts count: those for validation and the test are of the same data."""
    monkeypatch.setattr(data_windows, "MANY_TEXTS", fewest)
    texts = Dataset.from_dict({"text": [f"wet grey mud {number}" for number in range(100)]})
    console = Console(file=io.StringIO(), width=1000)
    settings = AdaptSettings(data="t.csv")
    prepare_texts(
        texts.select(range(70)), texts.select(range(70, 100)), DocumentEncoder(tokenizer, 24), settings, Screen(console)
    )
    assert ("100 texts, median " in console.file.getvalue()) == asks

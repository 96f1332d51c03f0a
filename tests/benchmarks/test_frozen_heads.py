"""Heads on what a model makes of the first tokens: the sets, a small run beside TF-IDF, and what --freeze does."""

import json

import numpy as np
import pandas as pd
import pytest

from frozen_heads import LABELED, main
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import TrainSettings


def test_the_longest_quarter(reviews):
    known, held_out = LABELED["imdb-longest"](reviews)
    assert 100 <= len(known) < 130 and 25 <= len(held_out) < 35
    shortest = min(known.text.str.len())
    whole = pd.read_parquet(reviews / "imdb_train.parquet")
    assert (whole.text.str.len() > shortest).sum() < len(known)


@pytest.fixture(scope="module")
def results(reviews, masked_run, tmp_path_factory):
    """The folder of a small run."""
    output = tmp_path_factory.mktemp("heads")
    main(reviews, str(masked_run.folder), output, sets="imdb-longest", lengths="12,24", seeds=2, device="cpu")
    return output


def test_reading_on_helps_where_the_label_is_at_the_end(results):
    runs = [json.loads(line) for line in (results / "runs.jsonl").read_text().splitlines()]
    assert [(run["model"], run["length"]) for run in runs] == [("TF-IDF", None), ("run", 12), ("run", 24)]
    accuracy = [np.mean(run["tallies"], axis=(0, 1))[0] for run in runs]
    assert accuracy[1] < 0.75 < 0.95 < accuracy[2] and accuracy[0] > 0.95
    assert [len(run["tallies"]) for run in runs] == [1, 2, 2]
    page = (results / "results.md").read_text()
    assert "| imdb-longest | TF-IDF | all | " in page and "| imdb-longest | run | 24 | " in page and " ± " in page


def test_the_first_draw_is_the_run_of_the_command(results, masked_run, tmp_path):
    data, test = (str(results / f"imdb-longest-{part}.parquet") for part in ("train", "test"))
    kept = {
        "from_model": str(masked_run.folder),
        "max_length": 12,
        "freeze": True,
        "lexical": "none",
        "baseline": False,
    }
    train(TrainSettings(data=data, test=test, task="classify", output=str(tmp_path / "run"), **kept))
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    run = json.loads((results / "runs.jsonl").read_text().splitlines()[1])
    assert metrics["accuracy"] == pytest.approx(np.mean(run["tallies"][0], axis=0)[0])

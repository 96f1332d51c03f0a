"""Models trained on labelled documents: calls share the seeds, and the page has each seed, their mean and its error."""

import json

import pandas as pd
import pytest

from fine_tuned import LABELED, main, of_seeds


def test_the_mean_of_seeds_and_its_standard_error():
    assert of_seeds([0.5, 0.7]) == "0.6000 ± 0.1000 (0.5000 / 0.7000)"
    assert of_seeds([0.5]) == "0.5000 (0.5000)"


def test_the_longest_quarter(reviews):
    known, held_out = LABELED["imdb-longest"](reviews)
    assert 100 <= len(known) < 130 and 25 <= len(held_out) < 35
    shortest = min(known.text.str.len())
    whole = pd.read_parquet(reviews / "imdb_train.parquet")
    assert (whole.text.str.len() > shortest).sum() < len(known)


@pytest.fixture(scope="module")
def results(reviews, masked_run, tmp_path_factory):
    """The folder of two seeds, of which an earlier call had the second alone; when that one ended."""
    output = tmp_path_factory.mktemp("tuned")
    given = {"sets": "imdb-longest", "lengths": "24", "max_steps": 4, "freeze_layers": 1, "device": "cpu"}
    main(reviews, str(masked_run.folder), output, seeds="2", **given)
    ended = (output / "imdb-longest-run-24-2" / "metrics.json").stat().st_mtime_ns
    main(reviews, str(masked_run.folder), output, seeds="1,2", **given)
    return output, ended


def test_a_finished_seed_is_not_trained_again(results):
    output, ended = results
    assert (output / "imdb-longest-run-24-2" / "metrics.json").stat().st_mtime_ns == ended


def test_the_page_has_each_seed(results):
    output, _ = results
    runs = [output / f"imdb-longest-run-24-{seed}" for seed in (1, 2)]
    found = [json.loads((run / "metrics.json").read_text()) for run in runs]
    page = (output / "results.md").read_text()
    for part in ("accuracy", "words_accuracy"):
        assert of_seeds([each[part] for each in found]) in page
    assert of_seeds([each.get("network_accuracy", each.get("reader_accuracy")) for each in found]) in page
    assert "| imdb-longest | run | 24 | " in page


def test_the_options_reach_the_training(results):
    output, _ = results
    settings = [json.loads((output / f"imdb-longest-run-24-{seed}" / "run.json").read_text()) for seed in (1, 2)]
    assert [each["seed"] for each in settings] == [1, 2]
    assert all(each["max_steps"] == 4 and each["freeze_layers"] == 1 and each["max_length"] == 24 for each in settings)

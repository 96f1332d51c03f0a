import csv
import json

import pytest

from torch_linformer.errors import InputError
from torch_linformer.inference.evaluate import evaluate

SAME = {"device": "cpu", "precision": "fp32"}


def test_the_same_scores_as_the_run_has_on_the_same_documents(classifier_run, quick):
    folder = classifier_run.folder
    task, scores = evaluate(str(folder), quick["test"], batch_size=quick["batch_size"], **SAME)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert scores["documents"] == metrics["documents"]["test"] == 50
    for name in ("accuracy", "macro_f1", "per_label", "confusion_matrix"):
        assert scores[name] == metrics[name]
    assert set(task.headline) <= set(scores)


def test_the_same_scores_of_masked_language_modeling(masked_run, quick):
    folder = masked_run.folder
    _, scores = evaluate(str(folder), quick["test"], batch_size=5, seed=quick["seed"], **SAME)
    metrics = json.loads((folder / "metrics.json").read_text())
    assert scores["perplexity"] == pytest.approx(metrics["perplexity"], rel=1e-5)
    assert scores["bits_per_byte"] == pytest.approx(metrics["bits_per_byte"], rel=1e-5)
    _, other_masks = evaluate(str(folder), quick["test"], seed=quick["seed"] + 1, **SAME)
    assert other_masks["perplexity"] != pytest.approx(metrics["perplexity"], rel=1e-3)


def test_numbers_are_the_positions_of_the_labels(classifier_run, quick, tmp_path, write_csv):
    with open(quick["test"], encoding="utf-8", newline="") as file:
        rows = [(row["text"], ["rain", "snow", "sun"].index(row["label"])) for row in csv.DictReader(file)]
    (_, named), (_, numbered) = (
        evaluate(str(classifier_run.folder), data, **SAME)
        for data in (quick["test"], write_csv(tmp_path / "a.csv", rows))
    )
    assert named == numbered
    data = write_csv(tmp_path / "b.csv", [("wet", 3), ("wet", 0)])
    with pytest.raises(InputError, match=r"b\.csv: 1 document with label '3', which .* \(rain, snow, sun\)"):
        evaluate(str(classifier_run.folder), data, **SAME)


def test_a_label_the_model_does_not_know(classifier_run, tmp_path, write_csv):
    data = write_csv(tmp_path / "a.csv", [("wet", "rain"), ("loud", "thunder")])
    with pytest.raises(InputError, match=r"a\.csv: 1 document with label 'thunder', which .* \(rain, snow, sun\)"):
        evaluate(str(classifier_run.folder), data, **SAME)


def test_some_of_the_labels_are_enough(classifier_run, tmp_path, write_csv):
    data = write_csv(tmp_path / "a.csv", [("wet mud grey wet", "rain")])
    _, scores = evaluate(str(classifier_run.folder), data, **SAME)
    assert scores["documents"] == 1 and scores["accuracy"] in (0, 1)
    assert [row["support"] for row in scores["per_label"]] == [1, 0, 0]

import csv
import json

import pytest

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.errors import InputError
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.reporting.screen import Screen


class Said(Screen):
    """A screen that keeps what it is told."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, sentence):
        self.lines.append(sentence)


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
    for known, unknown in ((0, 3), ("rain", "thunder")):
        data = write_csv(tmp_path / "b.csv", [("wet", unknown), ("wet", known)])
        with pytest.raises(InputError, match=rf"b\.csv: 1 document with label '{unknown}', .* \(rain, snow, sun\)"):
            evaluate(str(classifier_run.folder), data, **SAME)


def test_some_of_the_labels_are_enough(classifier_run, tmp_path, write_csv):
    data = write_csv(tmp_path / "a.csv", [("wet mud grey wet", "rain")])
    _, scores = evaluate(str(classifier_run.folder), data, **SAME)
    assert scores["documents"] == 1 and scores["accuracy"] in (0, 1)
    assert [row["support"] for row in scores["per_label"]] == [1, 0, 0]


def test_labels_without_a_column_are_not_scored(linear_folder, tmp_path):
    """They are unknown; the column of a single label would be read as the numbers of labels."""
    names = {"id2label": {0: "rude", 1: "loud", 2: "late"}, "problem_type": "multi_label_classification"}
    folder = str(linear_folder("Bert", "ForSequenceClassification", **names))
    data = tmp_path / "a.csv"
    data.write_text("text,rude,loud\nwet mud,1,0\nwarm sand,0,\nice,1,1\nsnow,,\n")
    screen = Said()
    _, scores = evaluate(folder, str(data), options=DataOptions(label_column="rude,loud"), screen=screen, **SAME)
    assert [row["support"] for row in scores["per_label"]] == [2, 1, 0]
    assert scores["per_label"][2] == {"label": "late", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert scores["documents"] == 3 and screen.lines[1:] == [
        "left out 1 document of which no label is known",
        "empty cells are neither learned nor scored; loud: 1 of 3 rows unknown",
        "labels without a column are not scored: late",
    ]
    with pytest.raises(InputError, match=r"^--label-column rude: one label of several; name two columns at least$"):
        evaluate(folder, str(data), options=DataOptions(label_column="rude"), **SAME)

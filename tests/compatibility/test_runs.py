"""Folders that the command line left can be used as when they were made."""

import json
import shutil
import sys

import pytest
from recorded import RUNS
from run_commands import ADAPT, DOCUMENTS, EXACTLY, PREDICTIONS, TRAIN

from torch_linformer.cli import main
from torch_linformer.errors import FORMER_NAMES

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")  # an old folder may call a field by its old name


@pytest.fixture
def linformer(datasets_cache, tmp_path, monkeypatch, capsys):
    """A function: run `linformer` beside copies of the folders; returns what it printed."""
    shutil.copytree(RUNS, tmp_path / "runs")
    monkeypatch.chdir(tmp_path / "runs")
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["linformer", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        printed = capsys.readouterr()
        assert exit_.value.code == 0, printed.err
        return printed.out + printed.err

    return run


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def lines_of(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_evaluate_gives_the_scores_of_the_run(linformer, tmp_path):
    linformer("evaluate", "trained", "--data", DOCUMENTS, "--output", "scores.json", *EXACTLY)
    scores, metrics = read(tmp_path / "runs" / "scores.json"), read(RUNS / "trained" / "metrics.json")
    assert scores.pop("documents") == 60 and {"accuracy", "macro_f1", "confusion_matrix"} <= scores.keys()
    assert scores == {name: metrics[name] for name in scores}


def test_predict_says_what_it_said(linformer, tmp_path):
    linformer("predict", "trained", DOCUMENTS, "--output", "found.jsonl", *EXACTLY)
    found, expected = lines_of(tmp_path / "runs" / "found.jsonl"), lines_of(RUNS / PREDICTIONS)
    assert len(found) == len(expected) == 60
    for line, recorded in zip(found, expected, strict=True):
        scores = line.pop("probabilities"), recorded.pop("probabilities")
        assert line == recorded and scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize("run", [TRAIN, ADAPT], ids=lambda run: run.output)
def test_a_finished_run_is_known_to_be_finished(linformer, run):
    assert "already, and it is finished" in linformer(*run.arguments, *run.defaults.split(), "--resume")


def test_info_describes_it(linformer):
    lines = [" ".join(line.split()) for line in linformer("info", "trained").splitlines()]
    metrics = read(RUNS / "trained" / "metrics.json")
    assert {"class LinformerForSequenceClassification", "labels rain, snow, sun"} <= set(lines)
    assert {f"parameters {metrics['parameters']:,}", f"held-out accuracy {metrics['accuracy']:.4f}"} <= set(lines)


def test_info_describes_an_adapted_encoder(linformer):
    lines = [" ".join(line.split()) for line in linformer("info", "adapted").splitlines()]
    assert {"class LinformerModel", "longest input 24 tokens", "tokenizer 260 tokens"} <= set(lines)


def test_a_run_writes_the_names_that_it_wrote(train_quickly, no_fresh_process, tmp_path):
    train_quickly(tmp_path / "now", max_steps=2)
    for name in ("run.json", "metrics.json"):
        names = {FORMER_NAMES.get(key, key) for key in read(RUNS / "trained" / name)}
        missing = names - read(tmp_path / "now" / name).keys()
        assert not missing, f"{name} lacks {missing}: who reads such files looks for them"
    files = {path.name for path in (RUNS / "trained").iterdir()}
    assert files <= {path.name for path in (tmp_path / "now").iterdir()}

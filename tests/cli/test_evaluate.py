import json

import pytest

from torch_linformer.cli.app import run


@pytest.fixture
def evaluate(capsys, monkeypatch):
    """A function: what `linformer evaluate` prints."""
    monkeypatch.setenv("COLUMNS", "200")

    def show(*arguments):
        with pytest.raises(SystemExit) as exit_:
            run(["evaluate", *map(str, arguments), "--device", "cpu", "--precision", "fp32"])
        assert exit_.value.code == 0
        return capsys.readouterr()

    return show


def test_it_prints_the_scores_of_the_run_and_writes_them(evaluate, model_copy, quick):
    shown, error = evaluate(model_copy, "--data", quick["test"])
    metrics = json.loads((model_copy / "metrics.json").read_text())
    assert f"{metrics['accuracy']:.4f}" in shown and f"{metrics['macro_f1']:.4f}" in shown
    assert f"all scores are in {model_copy / 'evaluation.json'}" in shown and error == ""
    scores = json.loads((model_copy / "evaluation.json").read_text())
    assert scores["accuracy"] == metrics["accuracy"] and scores["documents"] == 50
    assert {"macro_f1", "per_label", "confusion_matrix"} <= scores.keys()


def test_the_scores_may_go_elsewhere(evaluate, classifier_run, quick, tmp_path):
    path = tmp_path / "new folder" / "scores.json"
    evaluate(classifier_run.folder, "--data", quick["test"], "--output", path, "--batch-size", "3")
    assert json.loads(path.read_text())["documents"] == 50
    assert not (classifier_run.folder / "evaluation.json").exists()


def test_masked_language_modeling(evaluate, masked_run, quick, tmp_path):
    path = tmp_path / "scores.json"
    shown, _ = evaluate(masked_run.folder, "--data", quick["test"], "--output", path)
    scores = json.loads(path.read_text())
    assert f"{scores['perplexity']:.4f}" in shown and f"{scores['bits_per_byte']:.4f}" in shown


def test_an_encoder_decoder(evaluate, seq2seq_run, tmp_path):
    named = ("--source-column", "article", "--target-column", "summary", "--output", tmp_path / "scores.json")
    shown, _ = evaluate(seq2seq_run.folder, "--data", seq2seq_run.options["test"], *named)
    assert f"{seq2seq_run.metrics['chrf']:.4f}" in shown and "rouge-l" in shown

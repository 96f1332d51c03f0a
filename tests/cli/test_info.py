import json

import pytest

from torch_linformer.cli.app import run


@pytest.fixture
def info(capsys, monkeypatch):
    """A function: what `linformer info` prints of a folder, in words separated by single spaces."""
    monkeypatch.setenv("COLUMNS", "200")

    def show(folder):
        with pytest.raises(SystemExit) as exit_:
            run(["info", str(folder)])
        assert exit_.value.code == 0
        return [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]

    return show


def test_a_classifier(info, classifier_run, quick):
    lines = info(classifier_run.folder)
    metrics = json.loads((classifier_run.folder / "metrics.json").read_text())
    config = json.loads((classifier_run.folder / "config.json").read_text())
    assert "class LinformerForSequenceClassification" in lines
    assert f"parameters {metrics['parameters']:,}" in lines
    assert f"attention K {quick['k']}, sharing headwise, projection linear" in lines
    assert f"longest input {quick['max_length']} tokens" in lines
    assert "labels rain, snow, sun" in lines
    assert f"tokenizer {config['vocab_size']} tokens" in lines
    assert f"held-out accuracy {metrics['accuracy']:.4f}" in lines
    assert f"held-out macro-f1 {metrics['macro_f1']:.4f}" in lines


def test_a_masked_language_model(info, masked_run):
    lines = info(masked_run.folder)
    metrics = json.loads((masked_run.folder / "metrics.json").read_text())
    assert "class LinformerForMaskedLM" in lines
    assert f"held-out perplexity {metrics['perplexity']:.4f}" in lines
    assert not [line for line in lines if line.startswith("labels")]


def test_a_causal_model(info, clm_run, quick):
    lines = info(clm_run.folder)
    metrics = json.loads((clm_run.folder / "metrics.json").read_text())
    assert "class LinformerForCausalLM" in lines and "attention K 6, causal, window 64" in lines
    assert f"longest input any, trained on {quick['max_length']} tokens" in lines
    assert f"held-out bits-per-byte {metrics['bits_per_byte']:.4f}" in lines


def test_an_encoder_decoder(info, seq2seq_run, quick):
    lines = info(seq2seq_run.folder)
    assert "class LinformerForConditionalGeneration" in lines and "longest target 12 tokens" in lines
    assert "attention K 6, projection mean" in lines
    assert "layers of the decoder 1, K 3, causal, window 64" in lines
    assert f"longest input {quick['max_length']} tokens" in lines
    assert f"held-out rouge-l {seq2seq_run.metrics['rouge_l']:.4f}" in lines


def test_a_model_without_scores_or_with_an_infinite_one(info, model_copy):
    path = model_copy / "metrics.json"
    path.write_text('{"accuracy": null, "perplexity": null}')
    assert not [line for line in info(model_copy) if line.startswith("held-out")]
    path.unlink()
    assert not [line for line in info(model_copy) if line.startswith("held-out")]


def test_full_attention_and_many_labels(info, model_copy):
    path = model_copy / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({**config, "attention": "full"}))
    assert "attention full" in info(model_copy)

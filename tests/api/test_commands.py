"""The commands as functions: the same options and files, and objects back."""

import inspect
import json
import os
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from transformers import AutoModel, AutoTokenizer

import torch_linformer
from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.cli.app import run as command
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.errors import InputError
from torch_linformer.training.train_settings import TrainSettings

OPTIONS = {"device": "cpu", "precision": "fp32", "probe": False}


@pytest.fixture(autouse=True, scope="module")
def surroundings(datasets_cache):
    """Caches of the session's own, and the hub switched off."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory, write_csv, weather):
    base = tmp_path_factory.mktemp("api")
    data = write_csv(base / "weather.csv", weather(120, seed=1))
    # A path, a number where the command takes text, no command line.
    options = {"max_length": 24, "k": 6, "tokenizer": "bpe:290", "max_steps": 4, "baseline": False, **OPTIONS}
    return torch_linformer.train(data, output=base / "run", **options)


def test_training_returns_a_run(trained):
    assert list(trained.scores) == ["accuracy", "macro_f1"] and trained.scores["accuracy"] == trained.result["accuracy"]
    assert trained.result == json.loads((trained.folder / "metrics.json").read_text())
    assert type(trained.model).__name__ == "LinformerForSequenceClassification" and not trained.model.training
    assert trained.model is trained.model and len(trained.tokenizer) <= trained.model.config.vocab_size
    assert os.fspath(trained) == str(trained.folder)
    call = f"torch_linformer.train({str(trained.folder.parent / 'weather.csv')!r}, output="
    assert call in (trained.folder / "README.md").read_text()


def test_tags_that_are_numbers_have_one_score(tmp_path):
    rows = [json.dumps({"tokens": ["wet", "mud"], "tags": [number % 2, 1]}) for number in range(20)]
    (tmp_path / "tags.jsonl").write_text("\n".join(rows))
    options = {"max_length": 16, "k": 4, "tokenizer": "bytes", "max_steps": 1, "baseline": False, **OPTIONS}
    run = torch_linformer.train(tmp_path / "tags.jsonl", task="token-classify", output=tmp_path / "run", **options)
    assert list(run.scores) == ["accuracy"]


def test_a_run_stands_for_its_folder(trained, capsys):
    """And what the functions give is what the commands write."""
    data = trained.folder.parent / "weather.csv"
    scores = torch_linformer.evaluate(trained, data, label_column="label", device="cpu", precision="fp32")
    command_line = ["evaluate", str(trained.folder), "--data", str(data), "--device", "cpu", "--precision", "fp32"]
    with pytest.raises(SystemExit, match="0"):
        command(command_line)
    assert scores == json.loads((trained.folder / "evaluation.json").read_text()) and scores["documents"] == 120
    again = torch_linformer.train(
        data, from_model=trained, freeze=False, output=trained.folder.parent / "again", baseline=False, **OPTIONS
    )
    assert again.result["method"] and again.scores.keys() <= trained.scores.keys()
    capsys.readouterr()


def test_texts_to_records_and_vectors(trained):
    texts = ["wet mud and the sea", "of warm sand", "cold ice"]
    predictor = torch_linformer.Predictor(trained, device="cpu", precision="fp32")
    records = predictor(texts)
    columns = predictor({"text": texts})
    assert [record["label"] for record in records] == columns["label"] and len(records) == 3
    assert records[0].keys() == {"label", "probabilities", "tokens", "cut"} and predictor([]) == []
    embedder = torch_linformer.Embedder(trained, device="cpu", precision="fp32")
    vectors = embedder(texts)
    assert vectors.shape == (3, embedder.width) and vectors.dtype == np.float32 and embedder.max_length == 24
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    assert embedder([]).shape == (0, embedder.width)
    np.testing.assert_allclose(embedder(texts[1:2]), vectors[1:2], atol=1e-6)
    for call in (predictor, embedder):
        with pytest.raises(InputError, match=r"^a list of texts is needed, got one text: give \['wet mud"):
            call(texts[0])


@pytest.mark.usefixtures("measured_once")
def test_an_adaptation_returns_a_run(tmp_path, save_source, masked_run, write_csv, weather):
    tokenizer = AutoTokenizer.from_pretrained(masked_run.folder)
    source = save_source(tmp_path / "small", tokenizer, pooling="cls_token")
    data = write_csv(tmp_path / "texts.csv", weather(220, seed=5))
    options = {"max_length": 24, "k": 4, "window": 4, "exact_below": 0, "steps": 2, "batch_size": 4, **OPTIONS}
    run = torch_linformer.adapt(source, data, output=tmp_path / "run", **options)
    assert run.scores == run.result["end"] and 0 < run.scores["cosine"] <= 1
    assert type(run.model).__name__ == "LinearBertModel" and isinstance(run.model, type(AutoModel.from_pretrained(run)))
    assert torch_linformer.Embedder(run, device="cpu")(["wet mud"]).shape == (1, run.model.config.hidden_size)


@pytest.mark.parametrize(
    ("function", "arguments", "options", "error", "message"),
    [
        ("train", ["a.csv"], {"epoch": 3}, TypeError, "train() has no option 'epoch'; did you mean 'epochs'?"),
        ("train", ["a.csv"], {"epochs": "three"}, InputError, "epochs must be a number, got 'three'"),
        ("train", ["a.csv"], {"max_length": 2}, InputError, "--max-length must be at least 4, got 2"),
        ("train", ["nowhere.csv"], {}, InputError, "nowhere.csv: "),
        ("adapt", ["a", "b.csv"], {"minute": 3}, TypeError, "adapt() has no option 'minute'; did you mean 'minutes'?"),
        ("adapt", ["a", "b.csv"], {"window": -1}, InputError, "--window must be at least 0, got -1"),
        (
            "evaluate",
            ["a", "b.csv"],
            {"labels_column": "x"},
            TypeError,
            "evaluate() has no option 'labels_column'; did",
        ),
        ("export", ["a"], {"format": "pdf"}, InputError, "--format must be one of onnx, torch, got 'pdf'"),
    ],
)
def test_what_cannot_be_used_is_refused_in_one_line(
    function, arguments, options, error, message, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(error, match=rf"^{re.escape(message)}[^\n]*$"):
        getattr(torch_linformer, function)(*arguments, **options)


@pytest.mark.parametrize(
    ("function", "settings", "places"),
    [("train", TrainSettings, ["data"]), ("adapt", AdaptSettings, ["source", "data"]), ("evaluate", DataOptions, None)],
)
def test_signatures_show_every_option_of_the_command(function, settings, places):
    parameters = inspect.signature(getattr(torch_linformer, function)).parameters
    fields = {name: field for name, field in settings.__dataclass_fields__.items() if name not in ("data", "trained")}
    assert {name: str(parameters[name].default) for name in fields} == {
        name: str(field.default) for name, field in fields.items()
    }
    assert [name for name, each in parameters.items() if each.kind is not each.KEYWORD_ONLY] == (
        places or ["model", "data"]
    )


def test_signatures_have_the_types_that_python_may_give():
    parameters = inspect.signature(torch_linformer.train).parameters
    assert parameters["k"].annotation == int | Sequence[int] | str | None
    assert parameters["test"].annotation == float | str | os.PathLike[str] and parameters["test"].default == 0.2
    for function in (torch_linformer.train, torch_linformer.adapt, torch_linformer.evaluate, torch_linformer.distill):
        annotations = [each.annotation for each in inspect.signature(function).parameters.values()]
        assert Any not in annotations and not any(isinstance(each, str) for each in annotations)

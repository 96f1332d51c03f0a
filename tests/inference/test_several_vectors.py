"""Several vectors of a document: trained or fitted, written a row each, searched by the largest product."""

import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from torch_linformer.errors import InputError
from torch_linformer.inference.answer_files import EmbedSettings, answer_files
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.inference.export import export_model
from torch_linformer.inference.predictor import Embedder
from torch_linformer.models import pieces as module
from torch_linformer.serving.answers import load_served
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import LEXICAL_WIDTH, TrainSettings

SAME = {"device": "cpu", "precision": "fp32"}
TOPICS = {"beach": ["warm", "sand", "sea"], "storm": ["wet", "grey", "mud"], "frost": ["ice", "cold", "white"]}


def written(path, columns, rows):
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def twelve_tokens():
    """A vector stands for twelve tokens at least, as the documents here are short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "LEAST_TOKENS", 12)
        yield


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    """Of a training on documents whose beginning and end have topics of their own, which queries ask for."""
    folder, draw = tmp_path_factory.mktemp("several"), random.Random(0)
    documents, queries = [], {"train": [], "test": []}
    for number in range(90):
        topics = [draw.choice(sorted(TOPICS)) for _ in range(2)]
        words = [word for topic in topics for word in draw.choices(TOPICS[topic], k=14)]
        documents.append((number, " ".join([*words, f"n{number}"])))
        queries["train" if number < 80 else "test"] += [
            (f"{topic} q{number * 1013 % 997}", number) for topic in set(topics)
        ]
    files = {part: written(folder / f"{part}.jsonl", ("query", "document_id"), rows) for part, rows in queries.items()}
    return {
        "task": "embed",
        "data": files["train"],
        "test": files["test"],
        "documents": written(folder / "documents.jsonl", ("id", "text"), documents),
        "max_length": 48,
        "max_steps": 20,
        "learning_rate": 0.01,
        "batch_size": 16,
        "vectors": 3,
    }


@pytest.fixture(scope="module")
def run(train_quickly, options, tmp_path_factory):
    """A finished run of three vectors with words. Not to be changed."""
    folder = tmp_path_factory.mktemp("several") / "run"
    train_quickly(folder, **options, lexical="always")
    return SimpleNamespace(folder=folder, metrics=json.loads((folder / "metrics.json").read_text()))


@pytest.fixture
def frozen(run, quick, options, datasets_cache, tmp_path):
    """A function: a finished run in which only the map was fitted, to the encoder of the other run."""

    def fit(source=run.folder, name="frozen", **more):
        same = {name: options[name] for name in ("task", "data", "test", "documents")}
        same |= {name: quick[name] for name in ("validation", "device", "precision")}
        folder = tmp_path / name
        train(TrainSettings(**same, **more, freeze=True, from_model=str(source), lexical="none", output=str(folder)))
        return SimpleNamespace(folder=folder, metrics=json.loads((folder / "metrics.json").read_text()))

    return fit


def embedded(folder, file, output):
    answer_files(EmbedSettings(model=str(folder), files=(file,), precision="fp32"), output, device="cpu")
    return pd.read_parquet(output)


def test_a_row_a_vector_finds_what_was_scored(run, options, tmp_path):
    file = written(
        tmp_path / "t.jsonl", ("id", "text"), [("a", "sea sand " * 20), ("b", "frost q7"), ("c", "ice " * 12)]
    )
    table = embedded(run.folder, file, tmp_path / "t.parquet")
    assert [*zip(table["id"], table["vector"], strict=True)] == [
        ("a", 0),
        ("a", 1),
        ("a", 2),
        ("b", 0),
        ("c", 0),
        ("c", 1),
    ]
    vectors = np.stack(table["embedding"])
    assert vectors.shape == (6, 128 + LEXICAL_WIDTH) and np.allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert np.allclose(vectors[:3, 128:], vectors[0, 128:])  # the words of the whole document
    of_texts = Embedder(str(run.folder), **SAME)(["frost q7", "ice " * 12])
    assert np.allclose(np.concatenate(of_texts), vectors[3:], atol=1e-5)
    assert Embedder(str(run.folder), **SAME)([]) == []
    in_half = Embedder(str(run.folder), device="cpu", precision="bf16")(["frost q7", "ice " * 12])
    assert np.allclose(np.concatenate(in_half), vectors[3:], atol=0.05)

    documents = [json.loads(line) for line in Path(options["documents"]).read_text().splitlines()][80:]
    pairs = [json.loads(line) for line in Path(options["test"]).read_text().splitlines()]
    there, asked = (
        Embedder(str(run.folder), **SAME)(texts)
        for texts in ([row["text"] for row in documents], [row["query"] for row in pairs])
    )
    scores = np.array([[(query @ document.T).max() for document in there] for query in asked])
    own = np.array([row["document_id"] - 80 for row in pairs])
    ranks = (-scores).argsort(axis=1, kind="stable").argsort(axis=1)[np.arange(len(own)), own]
    # Scores count words one by one, and these vectors have a sketch of them.
    assert np.where(ranks < 10, 1 / np.log2(ranks + 2), 0).mean() == pytest.approx(run.metrics["ndcg_at_10"], abs=0.1)
    _, again = evaluate(str(run.folder), options["test"], documents=options["documents"], batch_size=3, **SAME)
    assert again["ndcg_at_10"] == pytest.approx(run.metrics["ndcg_at_10"], rel=1e-4)


def test_a_row_without_text_has_one_vector_of_nan(run, tmp_path):
    file = written(tmp_path / "t.jsonl", ("id", "text"), [("a", ""), ("b", "frost")])
    table = embedded(run.folder, file, tmp_path / "t.parquet")
    assert table["id"].tolist() == ["a", "b"] and np.isnan(np.stack(table["embedding"])[0]).all()


@pytest.mark.parametrize("more", [{"vectors": 3}, {"vectors": 1}, {"vectors": 3, "read_window": 16}], ids=str)
def test_a_map_is_fitted_to_an_encoder_that_stays(run, frozen, options, more):
    found = frozen(**more)
    first, last = (load_file(folder / "model.safetensors") for folder in (run.folder, found.folder))
    assert all(torch.equal(first[name], last[name]) for name in first)
    config, own = json.loads((found.folder / "1_PieceVectors" / "config.json").read_text()), more.get("read_window")
    marks = [len(config.pop(name)) for name in ("before", "after")]
    assert config == {"channels": 128, "most": more["vectors"], "window": own} and marks == [bool(own)] * 2
    weight = load_file(found.folder / "1_PieceVectors" / "model.safetensors")["map.weight"]
    _, again = evaluate(str(found.folder), options["test"], documents=options["documents"], **SAME)
    assert again["ndcg_at_10"] == pytest.approx(found.metrics["ndcg_at_10"], rel=1e-4)
    settings = (
        json.loads((found.folder / "config_sentence_transformers.json").read_text()) if more["vectors"] > 1 else {}
    )
    assert settings.get("model_type") == ("MultiVectorEncoder" if settings else None)
    of_one = more["vectors"] == 1 and "read_window" not in more
    assert ("import Embedder" in (found.folder / "README.md").read_text()) != of_one
    if not torch.equal(weight, torch.eye(128)):  # a map that won
        with pytest.raises(InputError, match="a map was fitted to its vectors, which another training would drop"):
            frozen(found.folder, "again", **more)


def test_what_has_one_vector_is_refused(run, options, tmp_path):
    settings = {"model": str(run.folder), "files": (options["test"],)}
    with pytest.raises(InputError, match=r"v.npy: the rows of an array have no names, .* write a .parquet file"):
        answer_files(EmbedSettings(**settings), tmp_path / "v.npy", device="cpu")
    with pytest.raises(InputError, match="--overflow windows: this model makes 3 vectors of length 1 of one window"):
        answer_files(EmbedSettings(**settings, overflow="windows"), tmp_path / "v.parquet", device="cpu")
    with pytest.raises(InputError, match="makes 3 vectors of a text, and an answer of this server has one: linformer"):
        load_served(str(run.folder), device="cpu")
    with pytest.raises(InputError, match="makes 3 vectors of a text, and a program makes one: linformer embed"):
        export_model(str(run.folder), tmp_path / "program", "torch")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"vectors": 33}, "--vectors must be at most 32, got 33"),
        ({"vectors": 0}, "--vectors must be at least 1, got 0"),
        ({"vectors": 2, "task": "classify"}, "--vectors goes with --task embed, not classify"),
        ({"read_window": 64}, "--read-window 64 goes with --vectors or --freeze: leave it out"),
        ({"read_window": 8, "vectors": 2}, "--read-window must be at least 16, got 8"),
    ],
)
def test_options_without_effect_are_refused(options, said):
    with pytest.raises(InputError, match=said):
        TrainSettings(**{"task": "embed", "data": "x.csv", **options})

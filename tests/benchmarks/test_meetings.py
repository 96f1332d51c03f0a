"""The tables of meetings and questions, and a small run of the command."""

import json

import pandas as pd
import pytest

from meetings import joined, main

MEETINGS = [("Bdb001", "train"), ("ES2002a", "train"), ("covid_1", "val"), ("IS1000a", "val"), ("Bro003", "test")]
TOPICS = {"Bdb001": "speech", "ES2002a": "remote", "covid_1": "school", "IS1000a": "button", "Bro003": "noise"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of the names and columns of the real ones."""
    folder = tmp_path_factory.mktemp("data")
    rows = [(name, split, f"A: hello B: {TOPICS[name]} " * 6) for name, split in MEETINGS]
    pd.DataFrame(rows, columns=["meeting", "split", "text"]).to_parquet(folder / "qmsum_meetings.parquet")
    asked = [(f"what about the {TOPICS[name]}", name, split, "specific") for name, split in MEETINGS]
    asked += [("summarize the whole meeting", name, split, "general") for name, split in MEETINGS]
    table = pd.DataFrame(asked, columns=["query", "meeting", "split", "kind"])
    table.to_parquet(folder / "qmsum_queries.parquet")
    return folder


@pytest.fixture(scope="module", autouse=True)
def surroundings(datasets_cache):
    """Caches of the session's own, and the hub switched off."""


def test_without_models_it_writes_the_tables(data, tmp_path):
    main(data, tmp_path)
    tables = {path.stem: pd.read_parquet(path) for path in tmp_path.iterdir()}
    assert {name: (len(table), *table.columns) for name, table in tables.items()} == {
        "documents": (5, "meeting", "text"),
        "texts": (2, "text"),
        "held_out_texts": (3, "text"),
        "known": (2, "query", "meeting"),
        "held_out": (3, "query", "meeting"),
    }


def test_models_at_each_length_beside_what_they_must_beat(data, masked_run, train_quickly, tmp_path):
    main(data, tmp_path)
    options = {"task": "embed", "documents": str(tmp_path / "documents.parquet"), "document_column": "meeting"}
    options |= {"data": str(tmp_path / "known.parquet"), "test": str(tmp_path / "held_out.parquet"), "max_steps": 1}
    train_quickly(tmp_path / "model", **{**options, "validation": "0.5"})
    main(data, tmp_path, models=str(tmp_path / "model"), lengths="8,24", device="cpu")
    rows = {row["method"]: row for row in json.loads((tmp_path / "results.json").read_text())}
    of_embedder = ["the embedder's first 512 tokens", "the mean of its chunks", "its best chunk, a vector each"]
    joined = [f"BM25 and {name}" for name in ("TF-IDF", *of_embedder)]
    assert list(rows) == ["TF-IDF", "BM25", *of_embedder, *joined, "model, 8 tokens", "model, 24 tokens"]
    assert rows["BM25 and TF-IDF"]["ndcg_at_10"] == 1
    assert rows["TF-IDF"]["ndcg_at_10"] == rows["TF-IDF"]["committee"] == 1 and rows["TF-IDF"]["vectors"] is None
    assert rows["its best chunk, a vector each"]["vectors"] >= 1 and rows["model, 24 tokens"]["seconds"] > 0
    assert rows["model, 24 tokens"]["ndcg_at_10"] == pytest.approx(
        sum(rows["model, 24 tokens"][kind] for kind in ("product", "academic", "committee")) / 3
    )
    assert "| model, 24 tokens |" in (tmp_path / "results.md").read_text()


def test_passages_of_novels_are_asked_for_by_sentences_taken_out_of_them(tmp_path):
    """Of two novels the first is held out; what asks for a passage no longer stands in it."""
    told = [f"The {word} {'went on and on ' * 9}until it came to number {n}. " for n in range(60) for word in ("man",)]
    texts = {"text": ["".join(told), "".join(told).replace("man", "woman")], "title": ["One", "Two"]}
    pd.DataFrame(texts).to_parquet(tmp_path / "novels.parquet")
    main(tmp_path, tmp_path / "out", collection="novels")
    held_out, documents = (pd.read_parquet(tmp_path / "out" / f"{name}.parquet") for name in ("held_out", "documents"))
    assert {*held_out.meeting} == {"One 0", "One 1"} and len(held_out) == 14
    passages = dict(zip(documents.meeting, documents.text, strict=True))
    assert all(
        query.startswith("The man") and query not in passages[name]
        for name, query in zip(held_out.meeting, held_out["query"], strict=True)
    )


def test_joined_ranks():
    """1 / 61 + 1 / 62 for the first and second place; of equal similarities the first document comes first."""
    both = joined(lambda begin, end: [[3, 2, 1]], lambda begin, end: [[1, 5, 1]])(0, 1)
    assert both[0].tolist() == pytest.approx([1 / 61 + 1 / 62, 1 / 62 + 1 / 61, 1 / 63 + 1 / 63])

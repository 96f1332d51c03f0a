"""Words that are given as such: each has its tag, and what is read of a text is what is read of its words."""

import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from torch_linformer import LinformerConfig, LinformerForTokenClassification
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.words import word_spans
from torch_linformer.errors import InputError
from torch_linformer.inference import Predictor
from torch_linformer.inference.answer_files import PredictSettings, answer_files
from torch_linformer.inference.document_model import TaskPredictor
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.opening.load import load_model, load_tokenizer

SAME = {"device": "cpu", "precision": "fp32"}
NAMES = ["B-LOC", "B-PER", "I-PER", "O"]
SENTENCES = [["visitors", "to", "U.S.", "AT&T", "rain"], ["O'Hara", "दिल्ली", "北京"], ["Anna-Maria"]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model that tags at random, but always in the same way."""
    path = str(tmp_path_factory.mktemp("tagger"))
    tokenizer = build_tokenizer("bpe:300", [" ".join(words) for words in SENTENCES], max_length=64)
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=64,
        k=8,
        id2label=dict(enumerate(NAMES)),
        label2id={name: number for number, name in enumerate(NAMES)},
        initializer_range=1.0,
    )
    LinformerForTokenClassification(config).save_pretrained(path)
    tokenizer.save_pretrained(path)
    return path


@pytest.fixture
def predictor(folder):
    return TaskPredictor(load_model(folder), load_tokenizer(folder), batch_size=4, **SAME)


def write(path, sentences, tags=None):
    """Sentences in the format of the suffix."""
    tags = tags or [["O"] * len(words) for words in sentences]
    if path.suffix == ".conll":
        sentences = zip(sentences, tags, strict=True)
        text = "\n".join("".join(f"{word}\t{tag}\n" for word, tag in zip(*pair, strict=True)) for pair in sentences)
        path.write_text(text, encoding="utf-8")
    elif path.name.endswith("_lists.csv"):  # as pandas writes them, in a column of any name
        pd.DataFrame({"text": sentences}).to_csv(path)
    elif path.suffix == ".csv":
        path.write_text("words\n" + "".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"tokens": words}) + "\n" for words in sentences), encoding="utf-8")
    else:
        pq.write_table(pa.table({"tokens": sentences}), path)
    return str(path)


def predicted(folder, files, tmp_path):
    output = tmp_path / "out.jsonl"
    answer_files(PredictSettings(model=folder, files=files, precision="fp32"), output, device="cpu")
    return [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("suffix", [".conll", ".csv", "_lists.csv", ".jsonl", ".parquet"])
def test_files_of_words_have_a_tag_for_each(folder, predictor, tmp_path, suffix):
    found = predicted(folder, (write(tmp_path / f"new{suffix}", SENTENCES),), tmp_path)
    expected = list(predictor.answers(Document("", " ".join(words), None, tuple(words)) for words in SENTENCES))
    assert [{**record, "document": ""} for record in found] == expected
    assert [len(record["tags"]) for record in found] == [5, 3, 1]
    for record, words in zip(found, SENTENCES, strict=True):
        for entity in record["entities"]:
            assert " ".join(words)[entity["start"] : entity["end"]] == entity["text"]


def test_the_tags_are_those_that_are_scored(folder, tmp_path):
    plain = predicted(folder, (write(tmp_path / "new.jsonl", SENTENCES),), tmp_path)
    tags = [record["tags"] for record in plain]
    assert len({tag for row in tags for tag in row}) > 1
    _, scores = evaluate(folder, write(tmp_path / "known.conll", SENTENCES, tags), **SAME)
    assert scores["accuracy"] == 1.0


@pytest.mark.parametrize("text", ["Ann (Lee), naïve:\n\n 3.5", "दिल्ली में", "我住在北京。", "a\u00a0b\u200dc"])
def test_a_text_is_read_as_its_words_are(predictor, text):
    spans = word_spans(text)
    words = tuple(text[start:end] for start, end in spans)
    given, plain = predictor.answers([Document("", " ".join(words), None, words), Document("", text)])
    assert "tags" in given and "tags" not in plain
    joined = 0
    places = {}
    for start, end in spans:
        places[joined], places[joined + end - start] = start, end
        joined += end - start + 1
    moved = [{**entity, "start": places[entity["start"]], "end": places[entity["end"]]} for entity in given["entities"]]
    assert [{**entity, "text": text[entity["start"] : entity["end"]]} for entity in moved] == plain["entities"]
    assert given["tokens"] == plain["tokens"]


def test_words_and_texts_side_by_side(folder, tmp_path):
    (tmp_path / "a.txt").write_text("visitors to Rome")
    files = (str(tmp_path / "a.txt"), write(tmp_path / "b.conll", SENTENCES))
    assert ["tags" in record for record in predicted(folder, files, tmp_path)] == [False, True, True, True]


@pytest.mark.parametrize("rows", [list, np.array, tuple])
def test_columns_of_words(folder, predictor, rows):
    given = {"tokens": [rows(words) for words in SENTENCES]}
    found = Predictor(folder, text_column="tokens", **SAME)(given)
    assert list(found) == ["tags", "entities", "tokens", "cut"]
    expected = predictor.answers(Document("", " ".join(words), None, tuple(words)) for words in SENTENCES)
    assert found["tags"] == [record["tags"] for record in expected]


@pytest.mark.parametrize("words", [[], [""], ["a", None], ["a", 3.5]], ids=repr)
def test_lists_of_something_else_are_refused(folder, tmp_path, words):
    with pytest.raises(InputError, match=r"^row 0 of a batch: no text in column 'text', but .*; filter it$"):
        Predictor(folder, **SAME)({"text": [words]})
    if words:
        file = write(tmp_path / "bad.jsonl", [words])
        with pytest.raises(InputError, match=r"line 1: column 'tokens' holds .*, no list of words or tags$"):
            predicted(folder, (file,), tmp_path)

"""The function of columns that everything runs: what goes in, what comes out, and what it is when it is sent."""

import json
import pickle

import numpy as np
import pytest
import torch
from datasets import Dataset

from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference import Embedder, Predictor
from torch_linformer.inference.answer_files import EmbedSettings, PredictSettings, answer_files
from torch_linformer.inference.document_model import TaskPredictor
from torch_linformer.models import LinformerForQuestionAnswering
from torch_linformer.opening.load import load_config, load_tokenizer

SAME = {"device": "cpu", "precision": "fp32"}
TEXTS = ["wet grey mud", "naïve sand and sea", "ice " * 60]


@pytest.fixture(scope="module")
def folder(classifier_run):
    return str(classifier_run.folder)


@pytest.fixture
def file(tmp_path):
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return str(tmp_path / "t.jsonl")


def test_it_gives_the_lines_of_linformer_predict(folder, file, tmp_path):
    answer_files(PredictSettings(model=folder, files=(file,), precision="fp32"), tmp_path / "o.jsonl", device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    found = Predictor(folder, text_column="body", **SAME)({"id": [7, 8, 9], "body": np.array(TEXTS, dtype=object)})
    assert list(found) == ["id", "label", "probabilities", "tokens", "cut"] and found.pop("id") == [7, 8, 9]
    assert found == {name: [line[name] for line in lines] for name in found}


def test_it_gives_the_vectors_of_linformer_embed(folder, file, tmp_path):
    for normalize in (True, False):
        settings = EmbedSettings(model=folder, files=(file,), precision="fp32", normalize=normalize)
        answer_files(settings, tmp_path / "o.npy", device="cpu")
        found = Embedder(folder, normalize=normalize, **SAME)({"text": TEXTS})
        assert list(found) == ["embedding", "tokens", "cut"] and found["cut"] == [False, False, True]
        assert found["embedding"].dtype == np.float32 and found["embedding"].shape == (3, 256)
        assert np.array_equal(found["embedding"], np.load(tmp_path / "o.npy"))


def test_it_is_sent_as_its_name_and_options(folder):
    predictor = Embedder(folder, overflow="windows", stride=3, batch_size=2, **SAME)
    sent = pickle.dumps(predictor)
    assert len(sent) < 1000
    copy = pickle.loads(sent)
    assert copy.options == predictor.options and copy.model == folder
    assert np.array_equal(copy({"text": TEXTS})["embedding"], predictor({"text": TEXTS})["embedding"])


def test_datasets_maps_it(folder):
    dataset = Dataset.from_dict({"text": TEXTS, "id": [1, 2, 3]}).map(Predictor(folder, **SAME), batched=True)
    assert dataset["label"][:] == ["rain", "sun", "snow"] and dataset["text"][:] == TEXTS


@pytest.mark.parametrize("bad", ["", " \n", None, 3])
def test_a_row_without_text_is_refused(folder, bad):
    predictor = Predictor(folder, **SAME)
    with pytest.raises(InputError, match=r"^row 1 of a batch: no text in column 'text', but .*; filter it"):
        predictor({"text": ["wet mud", bad]})
    with pytest.raises(InputError, match=r"^no column 'text' in a batch with 'body'; name it with text_column"):
        predictor({"body": TEXTS})


def test_options_of_something_else_are_refused(folder):
    with pytest.raises(InputError, match=r"^questions are for models trained with --task qa"):
        Predictor(folder, question_column="question", **SAME)


def test_labels_are_predicted_where_the_model_is_sure_of_them(folder, file, tmp_path):
    """Below --threshold there is none; --top-k tells the highest probabilities."""
    usual = Predictor(folder, **SAME)(TEXTS)
    highest = [max(record["probabilities"].values()) for record in usual]
    between = sorted(highest)[1] - 1e-6
    settings = PredictSettings(model=folder, files=(file,), precision="fp32", threshold=between, top_k=2)
    answer_files(settings, tmp_path / "o.jsonl", device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()]
    for line, record, best in zip(lines, usual, highest, strict=True):
        assert line["label"] == (record["label"] if best > between else None)
        told = sorted(record["probabilities"].items(), key=lambda item: -item[1])[:2]
        assert list(line["probabilities"].items()) == told
    assert [line["label"] for line in lines].count(None) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threshold": 1.0}, "--threshold must lie between 0 and 1, got 1"),
        ({"top_k": 0}, "--top-k must be at least 1, got 0"),
    ],
)
def test_what_no_choice_of_labels_is(folder, options, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        Predictor(folder, **options, **SAME)


def test_an_empty_batch_stays_empty(folder):
    assert Predictor(folder, **SAME)({"id": [], "text": []}) == {"id": []}


def test_questions_are_columns_too(folder, tmp_path):
    torch.manual_seed(0)
    model, tokenizer = LinformerForQuestionAnswering(load_config(folder)), load_tokenizer(folder)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    predictor = Predictor(str(tmp_path), question_column="asked", **SAME)
    found = predictor({"text": TEXTS, "asked": ["where?", "what mud?", "why?"]})
    assert list(found) == ["asked", "answer", "start", "end", "score", "tokens", "cut"]
    documents = [Document("", *each) for each in zip(TEXTS, found["asked"], strict=True)]
    expected = TaskPredictor(model, tokenizer, batch_size=16, **SAME).answers(documents)
    assert found["score"] == [record["score"] for record in expected]
    with pytest.raises(InputError, match="no column 'asked' in a batch with 'text'"):
        predictor({"text": TEXTS})

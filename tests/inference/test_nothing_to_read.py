"""Texts of which a tokenizer leaves no token are texts of nothing, as empty ones are, to every command."""

import json
import shutil

import numpy as np
import pytest
from datasets import Dataset
from serving import requests

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import prepare_texts
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.inference import Embedder, Predictor
from torch_linformer.inference.answer_files import EmbedSettings, PredictSettings, answer_files
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.opening.load import load_tokenizer
from torch_linformer.serving.answers import load_served
from torch_linformer.serving.application import Application
from torch_linformer.serving.limits import Limits
from torch_linformer.training.prepared import prepare
from torch_linformer.training.splits import load_splits
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen

SAME = {"device": "cpu", "precision": "fp32"}
NOTHING = ["", " \n", "\u200b", "\ufeff", "\u00ad", "\x00", "\x00\u00ad" * 40]
NAMES = {"id2label": {0: "rain", 1: "sun"}}


@pytest.fixture(scope="module")
def folder(linear_folder, tmp_path_factory):
    """A classifier whose tokenizer leaves control characters out, as those of BERT do."""
    folder = tmp_path_factory.mktemp("clean") / "model"
    shutil.copytree(linear_folder("Bert", "ForSequenceClassification", **NAMES), folder)
    file = folder / "tokenizer.json"
    cleaning = {"clean_text": True, "handle_chinese_chars": False, "strip_accents": False, "lowercase": False}
    normalizer = {"type": "BertNormalizer", **cleaning}
    file.write_text(json.dumps({**json.loads(file.read_text()), "normalizer": normalizer}))
    return str(folder)


@pytest.fixture
def file(tmp_path):
    rows = [{"text": text, "label": "rain"} for text in ["wet mud", *NOTHING, "sand"]]
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / "t.jsonl")


def encoder_of(folder):
    return DocumentEncoder(load_tokenizer(folder), 96)


@pytest.mark.parametrize("text", NOTHING)
def test_from_python_they_are_refused(folder, text):
    assert encoder_of(folder).reads(["mud", text, " " * 200 + "mud"]) == [True, False, True]
    with pytest.raises(InputError, match="row 1 of a batch: no text in column 'text', but "):
        Embedder(folder, **SAME)(["mud", text])
    with pytest.raises(InputError, match="row 1 of a batch: no text in column 'text', but "):
        Predictor(folder, **SAME)(["mud", text])
    kept = Embedder(folder, keep_empty=True, **SAME)({"text": ["mud", text]})["embedding"]
    assert np.isfinite(kept[0]).all() and np.isnan(kept[1]).all()


def test_in_files_they_are_counted(folder, file, tmp_path):
    embed = EmbedSettings(model=folder, files=(file,), precision="fp32")
    assert "7 without text, whose vectors are NaN" in answer_files(embed, tmp_path / "o.npy", device="cpu")
    assert np.isnan(np.load(tmp_path / "o.npy")).all(axis=1).tolist() == [False, *[True] * 7, False]
    predict = PredictSettings(model=folder, files=(file,), precision="fp32")
    assert "7 skipped, without text" in answer_files(predict, tmp_path / "o.jsonl", device="cpu")
    lines = (tmp_path / "o.jsonl").read_text().splitlines()
    assert [json.loads(line)["document"].rpartition(" ")[2] for line in lines] == ["1", "9"]


def test_a_server_refuses_them(folder):
    application = Application(load_served(folder, **SAME), Limits(truncate=True), print)
    for text in NOTHING:
        status, content = requests.post(application, "/v1/embeddings", {"input": ["mud", text]})
        assert status == 400 and "input[1] has no text" in content["error"]["message"]
    status, content = requests.post(application, "/v1/embeddings", {"input": [[2]]})  # a special token
    assert status == 400 and "input[0] has no text" in content["error"]["message"]


class Said(TrainingScreen):
    def __init__(self):
        super().__init__()
        self.lines = []

    def say(self, sentence):
        self.lines.append(sentence)


SKIPPED = "without text: the tokenizer has no token for it"


def test_nothing_is_learned_of_them_or_scored(folder, file, tmp_path, write_csv):
    screen = Said()
    _, scores = evaluate(folder, file, screen=screen, **SAME)
    # What no tokenizer reads is left out where the file is read.
    assert scores["documents"] == 2 and {"skipped 4 documents without text", f"skipped 3 documents {SKIPPED}"} <= {
        *screen.lines
    }
    rows = [(f"mud {number}", "rain") for number in range(30)] + [("\u00ad" * number, "sun") for number in range(1, 5)]
    parts = {"validation": write_csv(tmp_path / "v.csv", rows[:20]), "test": write_csv(tmp_path / "t.csv", rows[9:29])}
    data = write_csv(tmp_path / "a.csv", rows)
    settings = TrainSettings(data=data, tokenizer=folder, max_length=96, **parts)
    screen = Said()
    prepared = prepare(settings, None, load_splits(settings), None, screen)
    assert f"skipped 4 documents {SKIPPED}" in screen.lines
    assert len(prepared.splits.train) == len(prepared.train.windows) == 30
    texts = Dataset.from_dict({"text": [text for text, _ in rows] * 2})
    screen = Said()
    adapted = prepare_texts(texts, texts, encoder_of(folder), AdaptSettings(data=data), screen)
    assert screen.lines[:2] == [f"skipped 8 documents {SKIPPED}"] * 2
    assert min(adapted.train["length"]) > 2 and len(adapted.test.documents) == 60
    nothing = write_csv(tmp_path / "n.csv", rows[30:])
    with pytest.raises(InputError, match="no document has any text: to this tokenizer all 4 are empty"):
        evaluate(folder, nothing, **SAME)

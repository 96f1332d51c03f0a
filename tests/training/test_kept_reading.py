"""States that are read once: the same as the model gives, kept by row and by what reads, whatever was interrupted."""

import numpy as np
import pytest
import torch

from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.training import kept_reading
from torch_linformer.training.kept_reading import FOLDER, KeptReading, pooled_states
from torch_linformer.training.training_screen import TrainingScreen

ROWS = [[3, 4, 5], [7] * 20, [2, 9], [3, 4, 5], [8, 8, 8, 1], list(range(1, 17))]


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


@pytest.fixture
def kept(model):
    return lambda other=model, precision="fp32": pooled_states(other, 0, "cpu", precision)


@torch.no_grad()
def expected(model, rows):
    pooled = [
        model.pooler(model.linformer(torch.tensor([row])).last_hidden_state.float(), torch.ones(1, len(row)))
        for row in rows
    ]
    return torch.cat(pooled).numpy()


def test_states_are_those_of_the_model(model, kept):
    np.testing.assert_allclose(
        torch.cat(kept().of(ROWS, TrainingScreen())), expected(model, ROWS), rtol=1e-4, atol=1e-5
    )


def test_batches_of_few_tokens_change_nothing(model, kept, monkeypatch):
    monkeypatch.setattr(kept_reading, "AT_ONCE", 8)
    monkeypatch.setattr(kept_reading, "TOGETHER", 6)
    np.testing.assert_allclose(
        torch.cat(kept().of(ROWS, TrainingScreen())), expected(model, ROWS), rtol=1e-4, atol=1e-5
    )


def reads(monkeypatch):
    read = []
    usual = KeptReading._read
    monkeypatch.setattr(KeptReading, "_read", lambda self, rows: read.extend(map(tuple, rows)) or usual(self, rows))
    return read


def test_only_new_rows_are_read(kept, monkeypatch):
    first = torch.cat(kept().of(ROWS, TrainingScreen()))
    read = reads(monkeypatch)
    again = torch.cat(kept().of([*ROWS[::-1], [11, 12]], TrainingScreen()))
    assert read == [(11, 12)]
    assert torch.equal(again[:-1], first.flip(0))


def test_another_model_or_precision_reads_anew(model, kept, monkeypatch):
    kept().of(ROWS, TrainingScreen())
    read = reads(monkeypatch)
    with torch.no_grad():
        model.get_input_embeddings().weight[3, 0] += 1
    kept().of(ROWS[:1], TrainingScreen())
    kept(precision="bf16").of(ROWS[:1], TrainingScreen())
    assert read == [(3, 4, 5)] * 2


def test_a_classifier_on_the_same_encoder_has_the_same_states(model, kept, monkeypatch):
    kept().of(ROWS, TrainingScreen())
    read = reads(monkeypatch)
    with torch.no_grad():
        model.classifier.weight += 1
    kept().of(ROWS, TrainingScreen())
    assert not read


def test_what_was_read_before_an_interruption_is_kept(kept, monkeypatch):
    monkeypatch.setattr(kept_reading, "AT_ONCE", 20)
    usual, calls = KeptReading._read, []

    def interrupted(self, rows):
        calls.append(rows)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return usual(self, rows)

    with monkeypatch.context() as patch:
        patch.setattr(KeptReading, "_read", interrupted)
        with pytest.raises(KeyboardInterrupt):
            kept().of(ROWS, TrainingScreen())
    read = reads(monkeypatch)
    kept().of(ROWS, TrainingScreen())
    assert tuple(ROWS[1]) not in read and len(set(read)) == len({*map(tuple, ROWS)}) - 1


def test_a_damaged_file_is_read_again(model, kept, cache, monkeypatch):
    kept().of(ROWS, TrainingScreen())
    (path,) = cache.glob("*/*.safetensors")
    path.write_bytes(path.read_bytes()[:-7])
    read = reads(monkeypatch)
    np.testing.assert_allclose(
        torch.cat(kept().of(ROWS, TrainingScreen())), expected(model, ROWS), rtol=1e-4, atol=1e-5
    )
    assert len(read) >= 5


def test_no_rows(kept):
    assert kept().of([], TrainingScreen()) == []

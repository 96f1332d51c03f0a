"""A step whose memory does not grow with its batch: in parts, with the gradients of the whole."""

import re

import pytest
import torch
from datasets import Dataset
from torch.testing import assert_close
from transformers import BertForMaskedLM

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import Adaptation
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.errors import InputError
from torch_linformer.measuring.step import SavedBytes
from torch_linformer.training import micro_batches
from torch_linformer.training.micro_batches import fit_micro_batches
from torch_linformer.training.training_screen import TrainingScreen


@pytest.fixture(params=["embed", "mlm"])
def trainer(request, tmp_path, save_source, tokenizer, weather):
    """Of a student and a teacher in float64, one of them with a head."""
    more = {"model_class": BertForMaskedLM} if request.param == "mlm" else {}
    source = save_source(tmp_path / "small", tokenizer, **more)
    texts = Dataset.from_dict({"text": [text for text, _ in weather(200, seed=3)]})
    settings = AdaptSettings(
        data="texts",
        task=request.param,
        max_length=32,
        k=4,
        window=4,
        exact_below=0,
        device="cpu",
        precision="fp32",
        steps=2,
    )
    adaptation = Adaptation(load_encoder(str(source), request.param), texts, texts, settings, TrainingScreen())
    made = adaptation._trainer(tmp_path / "run")
    made.model.double()
    made.teacher.model.double()
    return made


def gradients(trainer, batch, tokens_at_once):
    trainer.tokens_at_once = tokens_at_once
    trainer.model.zero_grad()
    loss = trainer.compute_loss(trainer.model, dict(batch))
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


def test_a_batch_in_parts_has_the_gradients_of_the_whole(trainer):
    rows = [trainer.train_dataset[number] for number in range(7)]
    batch = trainer.data_collator(rows)
    assert len({len(row["input_ids"]) for row in rows}) > 3
    loss, whole = gradients(trainer, batch, 10**6)
    assert len(whole) > 20
    for tokens_at_once in (2 * batch["input_ids"].shape[1], 1):
        loss_in_parts, in_parts = gradients(trainer, batch, tokens_at_once)
        assert_close(loss_in_parts, loss, rtol=1e-6, atol=0)  # a head's divergence is computed in float32
        assert in_parts.keys() == whole.keys()
        for name, gradient in whole.items():
            assert_close(in_parts[name], gradient, rtol=1e-5, atol=1e-9)


def test_memory_decides_how_many_texts_are_read_at_once(trainer, monkeypatch):
    """What is free besides the state of the optimizer, at most as many tokens as are read at once anywhere."""
    longest = max(trainer.train_dataset["length"])
    drawn = torch.get_rng_state()
    whole = fit_micro_batches(trainer)
    assert (whole.texts_at_once, trainer.tokens_at_once) == (16, 16_384) and "at once" not in whole.describe()
    assert all(p.grad is None for p in trainer.model.parameters())
    assert torch.equal(torch.get_rng_state(), drawn)
    monkeypatch.setattr(micro_batches, "device_bytes", lambda device: int(0.75 * whole.bytes / 0.8))
    parts = fit_micro_batches(trainer)
    assert 4 <= parts.texts_at_once < 16 and parts.bytes < whole.bytes
    assert trainer.tokens_at_once < (parts.texts_at_once + 1) * longest
    shown = r"a step of 16 texts, \d+ at once: about [\d.]+ [kM]B of the [\d.]+ [kM]B that are free, and [\d.]+ m?s"
    assert re.fullmatch(shown, parts.describe())
    monkeypatch.setattr(micro_batches, "device_bytes", lambda device: 1000)
    with pytest.raises(
        InputError, match=rf"--max-length {longest}, --batch-size 16: a step takes about .* lower one of"
    ):
        fit_micro_batches(trainer)


def test_what_a_forward_pass_keeps_is_counted():
    """The input, and what the activation returns; not the weights."""
    model = torch.nn.Sequential(torch.nn.Linear(7, 11), torch.nn.Tanh(), torch.nn.Linear(11, 3))
    with SavedBytes(model) as saved:
        model(torch.ones(5, 7))
    assert saved.bytes == 4 * 5 * (7 + 11)

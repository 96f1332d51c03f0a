"""A training --from another model that keeps its word embeddings and lowest layers as they are (--freeze-layers)."""

import json

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.opening.load import load_model
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.whole_documents import Classification
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.initial_model import build_model
from torch_linformer.training.train_settings import TrainSettings

LOWEST = {"freeze": False, "freeze_layers": 1}
NEW = {"tokenizer": "bpe:8192", "k": None, "model": None, "max_length": None}  # options of new models only


def test_what_is_kept_is_as_it_was_and_the_rest_learns(masked_run, train_quickly, tmp_path):
    shown = train_quickly(tmp_path / "run", **NEW, from_model=str(masked_run.folder), **LOWEST, max_steps=10)
    assert "the word embeddings stay, and of its layers the lowest 1" in shown and "encoder is kept" in shown, shown
    first, weights = (load_file(folder / "model.safetensors") for folder in (masked_run.folder, tmp_path / "run"))
    below = [name for name in weights if name.startswith(("linformer.embeddings.", "linformer.encoder.layers.0."))]
    above = [name for name in weights if name in first and name not in below]
    assert len(below) > 10 and all(torch.equal(weights[name], first[name]) for name in below)
    assert above and not any(torch.equal(weights[name], first[name]) for name in above)
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["accuracy"] > 0.8
    assert all(weight.requires_grad for weight in load_model(str(tmp_path / "run")).parameters())


@pytest.mark.parametrize("activation_memory", ["none", "checkpoint", "reversible"])
def test_the_rest_has_the_gradients_that_it_has_in_a_training_of_all(tmp_path, activation_memory):
    """However activations are kept, and although nothing that goes into the first trained layer has a gradient."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32, "k": 4}
    config = LinformerConfig(
        vocab_size=260,
        max_position_embeddings=16,
        norm_first=True,
        activation_memory=activation_memory,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        **sizes,
    )
    first = LinformerForSequenceClassification(config)
    first.save_pretrained(tmp_path / "first")
    task = task_of(first, build_tokenizer("bytes", (), max_length=16))
    ids, found = torch.randint(1, 50, (3, 12)), []
    for number in (0, 1):
        options = {**LOWEST, "freeze_layers": number, "max_length": 16}
        settings = TrainSettings(from_model=str(tmp_path / "first"), **options)
        model = build_model(settings, FirstModel.of(settings), task, None).double().train()
        model(input_ids=ids, labels=torch.tensor([0, 1, 1])).loss.backward()
        found.append({name: x.grad for name, x in model.named_parameters()})
    of_all, of_rest = found
    kept = [name for name in of_rest if of_rest[name] is None and of_all[name] is not None]
    assert kept and all(name.startswith(("linformer.embeddings.", "linformer.encoder.layers.0.")) for name in kept)
    trained = [name for name in of_rest if of_rest[name] is not None]
    assert any("layers.1." in name for name in trained) and not any("layers.0." in name for name in trained)
    for name in trained:
        torch.testing.assert_close(of_rest[name], of_all[name])


def test_the_lowest_layers_of_an_encoder_that_reads_in_windows(plain_encoder):
    """Its attention is the ordinary one."""
    settings = TrainSettings(from_model=str(plain_encoder), **LOWEST, max_length=64)
    tokenizer = AutoTokenizer.from_pretrained(plain_encoder)
    model = build_model(settings, FirstModel.of(settings), Classification(tokenizer, ["a", "b"]), None)
    assert model.config.read_window == 16
    kept = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    below = ("linformer.body.embeddings.", "linformer.body.encoder.layer.0.")
    assert kept == {name for name, _ in model.named_parameters() if name.startswith(below)} and len(kept) > 10


def test_more_layers_than_there_are_cannot_be_kept(masked_run, train_quickly, tmp_path):
    """And that is said before any text is read."""
    with pytest.raises(InputError, match=r"--from .*: --freeze-layers 99 is more than its \d+ layers"):
        train_quickly(tmp_path / "run", **NEW, from_model=str(masked_run.folder), **{**LOWEST, "freeze_layers": 99})
    assert not (tmp_path / "run").exists()

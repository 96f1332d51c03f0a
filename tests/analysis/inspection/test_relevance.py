"""Integrated gradients add up to the change of the score, and are exact where the score is linear."""

import pytest
import torch

from torch_linformer.analysis.inspection.relevance import integrated_gradients

IDS = torch.tensor([[2, 4, 5, 6, 7, 4, 3]])
OF_TEXT = torch.tensor([[False, True, True, True, True, True, False]])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention": "full"},
        {"projection": "dynamic", "exact_first": 1, "slot_mass": "learned"},
        {"position_embedding": "none", "pooling": "cls"},
    ],
    ids=str,
)
def test_they_add_up(build, fields):
    model = build(**fields)
    found = integrated_gradients(
        lambda: model(IDS).logits[0, [3, 1]], model.linformer.embeddings, IDS, OF_TEXT, steps=64
    )
    assert found.values.shape == (2, 7)
    torch.testing.assert_close(found.scores, model(IDS).logits[0, [3, 1]].detach())
    torch.testing.assert_close(found.values.sum(-1), found.scores - found.blank_scores, rtol=1e-4, atol=1e-4)
    assert (found.scores - found.blank_scores).abs().min() > 1e-2  # there is something to add up


def test_blank_words_leave_positions_and_special_tokens(build):
    model = build()
    words = model.get_input_embeddings()(IDS).detach()
    words[0, 1:6] = 0
    found = integrated_gradients(lambda: model(IDS).logits[0], model.linformer.embeddings, IDS, OF_TEXT, steps=2)
    torch.testing.assert_close(found.blank_scores, model(inputs_embeds=words).logits[0].detach())
    assert not found.values[:, [0, 6]].any()
    assert found.values[:, 1:6].all()


def test_a_linear_score_needs_one_step(build):
    embeddings = build().linformer.embeddings
    weight = torch.randn(7, 12, dtype=torch.float64)
    score = lambda: (embeddings(IDS, None, None, None) * weight).sum()[None]  # noqa: E731
    found = integrated_gradients(score, embeddings, IDS, OF_TEXT, steps=1)
    with torch.no_grad():
        blank = embeddings.word_embeddings(IDS).masked_fill(OF_TEXT[..., None], 0.0)
        difference = embeddings(IDS, None, None, None) - embeddings(None, blank, None, None)
    torch.testing.assert_close(found.values, (difference * weight).sum(-1))


def test_the_model_is_left_as_it_was(build):
    model = build()
    before = model(IDS).logits
    integrated_gradients(lambda: model(IDS).logits[0], model.linformer.embeddings, IDS, OF_TEXT, steps=1)
    assert torch.equal(model(IDS).logits, before)
    assert all(parameter.grad is None for parameter in model.parameters())

"""A document seen from inside a model, the figures of it, and what is refused."""

import io

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from transformers import BertConfig, BertModel

from torch_linformer.analysis import attention_plots, inspect_text, plot_attention, plot_projections
from torch_linformer.analysis.inspection import MOST_ANSWERS
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.models import (
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerModel,
    LinformerSeq2SeqConfig,
)

TEXT = "wet  mud < script > sea"


def test_everything_about_a_document(build, words):
    model = build()
    seen = inspect_text(model, words, TEXT)
    assert seen.tokens == ["[CLS]", "wet", "mud", "<", "script", ">", "sea", "[SEP]"]
    assert [TEXT[start:end] for start, end in seen.spans] == ["", "wet", "mud", "<", "script", ">", "sea", ""]
    assert seen.num_tokens == 8 and seen.text == TEXT
    assert list(seen.layers) == [0, 1] and seen.layers[1].weights.shape == (3, 8, 7)
    with torch.no_grad():
        probabilities = model(torch.tensor([[2, 4, 5, 8, 9, 10, 6, 3]])).logits[0].softmax(-1)
    best = probabilities.argsort(descending=True)[:MOST_ANSWERS]
    assert seen.answer.labels == [f"LABEL_{number}" for number in best]
    assert seen.answer.probabilities == pytest.approx(probabilities[best].tolist())
    assert seen.answer.relevance.values.shape == (3, 8)


@pytest.mark.parametrize(
    ("fields", "labels", "probability"),
    [
        ({"problem_type": "regression", "num_labels": 1}, 1, None),
        ({"problem_type": "multi_label_classification"}, 3, torch.sigmoid),
    ],
    ids=["regression", "several labels"],
)
def test_other_answers(build, words, fields, labels, probability):
    answer = inspect_text(build(**fields), words, TEXT).answer
    assert len(answer.labels) == labels
    wanted = None if probability is None else pytest.approx(probability(answer.relevance.scores).tolist())
    assert answer.probabilities == wanted


def test_models_without_an_answer(build, words):
    shared = build(LinformerModel).config.to_dict()
    side = {"num_hidden_layers": 1, "position_embedding": "rotary", "window": 4, "max_position_embeddings": 16, "k": 3}
    sides = {"encoder": {**shared, "causal": False}, "decoder": {**shared, **side, "causal": True}}
    torch.manual_seed(0)
    config = LinformerSeq2SeqConfig(**sides, memory_k=3, bos_token_id=2, eos_token_id=3)
    for model in (build(LinformerModel), build(LinformerForMaskedLM), LinformerForConditionalGeneration(config)):
        seen = inspect_text(model, words, TEXT)
        assert seen.answer is None and len(seen.layers) == 2


def test_the_model_computes_as_before_and_one_matrix_stays_one(build, words):
    model = build(chunk_size=3, hidden_dropout_prob=0.5, sharing="kv").train()
    seen = inspect_text(model, words, TEXT, layers=[1])
    assert model.training and list(seen.layers) == [1]
    again = inspect_text(model.eval(), words, TEXT, layers=[1])
    assert torch.equal(seen.layers[1].weights, again.layers[1].weights) and not model.training
    assert seen.layers[1].proj_k is seen.layers[1].proj_v


@pytest.mark.parametrize("projection", ["linear", "random", "conv", "mean", "max"])
def test_a_document_of_one_token(build, projection):
    tokenizer = build_tokenizer("bytes", [], max_length=29)
    model = build(projection=projection, vocab_size=len(tokenizer))
    seen = inspect_text(model, tokenizer, "a")
    assert len(seen.tokens) == 3
    tokenizer.backend_tokenizer.post_processor = None
    alone = inspect_text(model, tokenizer, "a")
    assert alone.tokens == ["a"] and alone.layers[0].weights.shape == (3, 1, 7)
    torch.testing.assert_close(alone.layers[0].weights.sum(-1), torch.ones(3, 1, dtype=torch.float64))


def test_special_tokens_in_the_text_are_text(build):
    tokenizer = build_tokenizer("bytes", [], max_length=29)
    seen = inspect_text(build(vocab_size=len(tokenizer)), tokenizer, "<sep>")
    assert seen.tokens == ["<cls>", *"<sep>", "<sep>"]


def test_a_text_that_is_too_long(build, words):
    model, text = build(), "mud " * 30
    with pytest.raises(
        ValueError, match=r"^the text has 32 tokens, the model reads 29: shorten it, or read its beginning"
    ):
        inspect_text(model, words, text)
    seen = inspect_text(model, words, text, cut=True)
    assert (len(seen.tokens), seen.num_tokens, seen.tokens[-1]) == (29, 32, "[SEP]")
    assert inspect_text(model, words, "mud " * 27).num_tokens == 29


def test_what_cannot_be_inspected(build, words):
    bert = BertModel(BertConfig(vocab_size=12, hidden_size=6, num_hidden_layers=1, num_attention_heads=2))
    causal = build(LinformerForCausalLM, causal=True, window=4)
    for model, text, layers, message in (
        (build(), "", None, r"^the text is empty: give one with at least one word$"),
        (build(), " \n\t", None, r"^the text is empty"),
        (build(), TEXT, [2], r"^layers must lie between 0 and 1, got 2$"),
        (build(), TEXT, [0, -1], r"^layers must lie between 0 and 1, got -1$"),
        (bert, TEXT, None, r"^a BertModel has no Linformer attention"),
        (causal, TEXT, None, r"^a causal model has no E and F to show"),
    ):
        with pytest.raises(ValueError, match=message):
            inspect_text(model, words, text, layers=layers)


# Figures


@pytest.fixture
def look(build, words):
    return lambda **fields: inspect_text(build(**fields), words, "wet mud < script > sea")


def images(figure):
    assert isinstance(figure, Figure)
    figure.savefig(io.BytesIO())
    return {axes.get_title(loc="left"): axes.images[0].get_array() for axes in figure.axes if axes.images}


def test_the_attention_of_a_head(look):
    seen = look()
    found = images(plot_attention(seen, layer=1, head=2))
    assert list(found) == ["Tokens to slots, P̄: layer 1, head 2", "Tokens to tokens, P̄ Fᵀ: layer 1, head 2"]
    slots, tokens = found.values()
    np.testing.assert_allclose(slots, seen.layers[1].weights[2], rtol=1e-6)
    np.testing.assert_allclose(tokens, seen.layers[1].token_map(2), rtol=1e-5)


def test_its_projections(look):
    seen = look()
    found = images(plot_projections(seen, layer=1, head=2))
    assert list(found) == [f"Slots to positions, {name}: layer 1, head 2" for name in "EF"]
    np.testing.assert_allclose(found.popitem()[1], seen.layers[1].proj_v[2].mT, rtol=1e-6)
    assert list(images(plot_projections(look(sharing="kv")))) == ["Slots to positions, E = F: layer 0, head 0"]


def test_a_long_document_is_drawn_in_blocks(look, monkeypatch):
    monkeypatch.setattr(attention_plots, "MOST_CELLS", 4)
    seen = look()
    tokens = images(plot_attention(seen))["Tokens to tokens, P̄ Fᵀ: layer 0, head 0"]
    assert tokens.shape == (4, 4)
    np.testing.assert_allclose(tokens[1, 2], seen.layers[0].token_map(0)[2:4, 4:6].mean(), rtol=1e-5)


def test_other_attentions(look):
    assert list(images(plot_attention(look(projection="max")))) == ["Tokens to slots, P̄: layer 0, head 0"]
    assert list(images(plot_attention(look(attention="full")))) == ["Tokens to tokens, P: layer 0, head 0"]
    assert list(images(plot_attention(look(k=0, window=4)))) == ["Tokens to tokens, P: layer 0, head 0"]
    for fields, why in (
        ({"projection": "max"}, "no linear map"),
        ({"attention": "full"}, "ordinary attention has no slots"),
        ({"k": 0, "window": 4}, "a window by itself has no slots"),
    ):
        with pytest.raises(ValueError, match=rf"^layer 0 has no E and F: .*{why}"):
            plot_projections(look(**fields))


def test_what_is_not_there(look):
    seen = look()
    with pytest.raises(ValueError, match=r"^layer must be one that was inspected \(0, 1\), got 2$"):
        plot_attention(seen, layer=2)
    with pytest.raises(ValueError, match=r"^head must lie between 0 and 2, got 3$"):
        plot_projections(seen, head=3)

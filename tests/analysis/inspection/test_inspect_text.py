"""A document seen from inside a model, and what is refused."""

import pytest
import torch
from transformers import BertConfig, BertModel

from torch_linformer.analysis import inspect_text
from torch_linformer.analysis.inspection.inspect_text import MOST_ANSWERS
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
    config = build(LinformerModel).config
    decoder = {
        "num_hidden_layers": 1,
        "position_embedding": "rotary",
        "window": 4,
        "max_position_embeddings": 16,
        "k": 3,
    }
    sides = {
        name: {**config.to_dict(), **more, "causal": False} for name, more in (("encoder", {}), ("decoder", decoder))
    }
    sides["decoder"]["causal"] = True
    torch.manual_seed(0)
    pair = LinformerForConditionalGeneration(
        LinformerSeq2SeqConfig(**sides, memory_k=3, bos_token_id=2, eos_token_id=3)
    )
    for model in (build(LinformerModel), build(LinformerForMaskedLM), pair):
        seen = inspect_text(model, words, TEXT)
        assert seen.answer is None and len(seen.layers) == 2


def test_the_model_computes_as_before(build, words):
    model = build(chunk_size=3, hidden_dropout_prob=0.5).train()
    seen = inspect_text(model, words, TEXT, layers=[1])
    assert model.training and list(seen.layers) == [1]
    again = inspect_text(model.eval(), words, TEXT, layers=[1])
    assert torch.equal(seen.layers[1].weights, again.layers[1].weights) and not model.training


def test_one_matrix_stays_one(build, words):
    layer = inspect_text(build(sharing="kv"), words, TEXT).layers[0]
    assert layer.proj_k is layer.proj_v


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


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_text(build, words, text):
    with pytest.raises(ValueError, match=r"^the text is empty: give one with at least one word$"):
        inspect_text(build(), words, text)


@pytest.mark.parametrize("layers", [[2], [0, -1]])
def test_a_layer_that_is_not_there(build, words, layers):
    with pytest.raises(ValueError, match=rf"^layers must lie between 0 and 1, got {layers[-1]}$"):
        inspect_text(build(), words, TEXT, layers=layers)


def test_models_that_cannot_be_inspected(build, words):
    bert = BertModel(BertConfig(vocab_size=12, hidden_size=6, num_hidden_layers=1, num_attention_heads=2))
    with pytest.raises(ValueError, match=r"^a BertModel has no Linformer attention"):
        inspect_text(bert, words, TEXT)
    with pytest.raises(ValueError, match=r"^a causal model has no E and F to show"):
        inspect_text(build(LinformerForCausalLM, causal=True, window=4), words, TEXT)

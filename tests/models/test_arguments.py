"""Arguments that no model has are refused by name; those that transformers passes around are taken."""

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
    LinformerSeq2SeqConfig,
)

MODELS = [
    LinformerModel,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
]


@pytest.fixture
def any_model(build, tiny, token_ids):
    """A function: a tiny model of a class, and its least inputs."""

    def make(model_class):
        if model_class is LinformerForConditionalGeneration:
            config = LinformerSeq2SeqConfig(encoder=tiny(), decoder=tiny(causal=True), decoder_start_token_id=1)
            return model_class(config).eval(), {"input_ids": token_ids(2, 11), "decoder_input_ids": token_ids(2, 5)}
        shape = (2, 3, 11) if model_class is LinformerForMultipleChoice else (2, 11)
        return build(model_class), {"input_ids": token_ids(*shape)}

    return make


@pytest.mark.parametrize("model_class", MODELS)
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("atention_mask", ". Did you mean 'attention_mask'?"),
        ("output_hiden_states", ". Did you mean 'output_hidden_states'?"),
        ("head_mask", ""),
        ("quux", ""),
    ],
)
def test_a_misspelt_argument_is_refused(any_model, model_class, name, hint):
    model, inputs = any_model(model_class)
    with pytest.raises(TypeError) as error:
        model(**inputs, **{name: None})
    expected = f"{model_class.__name__}.forward() got an unexpected keyword argument {name!r}{hint}"
    assert str(error.value) == expected


def test_the_hint_is_of_the_model_that_was_called(build, token_ids):
    with pytest.raises(TypeError, match=r"'label'\. Did you mean 'labels'\?"):
        build(LinformerForMaskedLM)(token_ids(2, 11), label=token_ids(2, 11))


@pytest.mark.parametrize("model_class", MODELS)
@torch.no_grad()
def test_what_transformers_passes_around_is_taken(any_model, model_class):
    model, inputs = any_model(model_class)
    passed = {
        "output_hidden_states": True,
        "output_attentions": False,
        "use_cache": False,
        "cache_position": torch.arange(11),
        "cu_seq_lens_q": None,
        "max_length_k": None,
        "return_dict": False,
    }
    assert isinstance(model(**inputs, **passed), tuple)


@pytest.mark.parametrize("model_class", MODELS)
@torch.no_grad()
def test_what_others_hand_to_every_model_changes_nothing(any_model, model_class):
    model, inputs = any_model(model_class)
    shape = inputs["input_ids"].shape
    handed = {
        "tokenizer": object(),
        "special_tokens_mask": torch.ones(shape, dtype=torch.long),
        "offset_mapping": torch.zeros(*shape, 2, dtype=torch.long),
        "overflow_to_sample_mapping": torch.zeros(shape[0], dtype=torch.long),
        "length": torch.tensor([11, 11]),
        "token_embeddings": torch.ones(*shape, 15),
        "sentence_embedding": torch.ones(shape[0], 15),
    }
    expected, found = (model(**inputs, **more).to_tuple()[0] for more in ({}, handed))
    assert torch.equal(found, expected)


@pytest.mark.parametrize("items", [7, torch.tensor(7)])
def test_labels_shifted_already_and_the_items_of_a_step(build, token_ids, items):
    model = build(LinformerForCausalLM)
    ids = token_ids(2, 11)
    labels = ids.masked_fill(ids % 5 == 0, -100)
    shifted = torch.cat([labels[:, 1:], torch.full((2, 1), -100)], dim=1)
    loss = model(ids, labels=labels).loss
    assert_close(model(ids, shift_labels=shifted).loss, loss, rtol=0, atol=1e-12)
    assert_close(model(ids, labels=ids, shift_labels=shifted).loss, loss, rtol=0, atol=1e-12)
    counted = (shifted != -100).sum()
    divided = model(ids, labels=labels, num_items_in_batch=items).loss
    assert_close(divided, loss * counted / 7, rtol=0, atol=1e-12)


def test_the_items_of_a_step_of_an_encoder_decoder(any_model, token_ids):
    model, inputs = any_model(LinformerForConditionalGeneration)
    labels = token_ids(2, 5)
    loss = model(**inputs, labels=labels).loss
    assert_close(model(**inputs, labels=labels, num_items_in_batch=20).loss, loss / 2)


def test_items_of_a_step_are_refused_where_the_loss_is_a_mean(build, token_ids):
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'num_items_in_batch'$"):
        build(LinformerForMaskedLM)(token_ids(2, 11), labels=token_ids(2, 11), num_items_in_batch=3)

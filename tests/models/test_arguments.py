"""Labels and arguments that single models take: what each is, and what is refused."""

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.models import LinformerForCausalLM, LinformerForConditionalGeneration, LinformerForMaskedLM


def test_the_hint_is_of_the_model_that_was_called(build, token_ids):
    with pytest.raises(TypeError, match=r"'label'\. Did you mean 'labels'\?"):
        build(LinformerForMaskedLM)(token_ids(2, 11), label=token_ids(2, 11))


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


def test_the_items_of_a_step_of_an_encoder_decoder(build, token_ids):
    model, ids, labels = build(LinformerForConditionalGeneration), token_ids(2, 11), token_ids(2, 5)
    assert_close(model(ids, labels=labels, num_items_in_batch=20).loss, model(ids, labels=labels).loss / 2)


def test_items_of_a_step_are_refused_where_the_loss_is_a_mean(build, token_ids):
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'num_items_in_batch'$"):
        build(LinformerForMaskedLM)(token_ids(2, 11), labels=token_ids(2, 11), num_items_in_batch=3)

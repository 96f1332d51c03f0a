"""Every family: what stands at padding changes nothing, short rows are exact, and slots of one token are attention."""

import pytest
import torch
from encoders.families import (
    FAMILIES,
    LENGTH,
    ROTARY,
    TEXTS,
    TOKENS,
    hidden,
    inputs_of,
    linear,
    original,
    padded,
    padded_mask,
)
from torch.testing import assert_close

MIXED = 12  # tokens: some rows of the padded batch are read exactly, others not
EXACT = {"rtol": 0, "atol": 1e-9}  # float64
ATTENTION = {"rtol": 0, "atol": 1e-5}  # the original's own, whose rotary positions are float32

every_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)
every_text = pytest.mark.parametrize("family", TEXTS, ids=repr)


@torch.no_grad()
@pytest.mark.parametrize("exact_below", [0, MIXED])
@every_text
def test_a_padded_row_is_the_row_alone(family, exact_below):
    """On any side and with holes. Positions count real tokens, where a family counts columns by itself."""
    model, mask = linear(original(family), exact_below=exact_below), padded_mask()
    batch = padded(family, mask)
    output = hidden(model, **batch)
    assert output.isfinite().all()
    for row, tokens in enumerate(TOKENS[:-1]):
        ids = batch["input_ids"][row, mask[row] == 1][None]
        positions = torch.arange(tokens)[None] + family.first
        expected = hidden(model, input_ids=ids, position_ids=positions)
        assert_close(output[row, mask[row] == 1], expected[0], **EXACT)


@torch.no_grad()
@every_text
def test_without_positions(family):
    """As most users call a model: padding after a text, or before it where the family counts real tokens.

    Rotary families count columns. Slots that the input chooses score keys after rotary positions, so that a text after
    padding needs ``position_ids``; read exactly it does not, as distances are the same.
    """
    mask = padded_mask()[:3]
    batch = padded(family, mask)
    del batch["position_ids"]
    exact = family in ROTARY
    model = linear(original(family), exact_below=TOKENS[2] if exact else 0)
    output = hidden(model, **batch)
    for row in range(3 if family.counts or exact else 2):
        expected = hidden(model, input_ids=batch["input_ids"][row, mask[row] == 1][None])
        assert_close(output[row, mask[row] == 1], expected[0], **(EXACT if row < 2 else ATTENTION))


@torch.no_grad()
@every_text
def test_nan_at_padding_changes_nothing(family):
    """Where a model multiplies its embeddings by the mask (ESM), too."""
    model, mask = linear(original(family), exact_below=MIXED), padded_mask()
    batch = padded(family, mask)
    embedded = model.get_input_embeddings()(batch.pop("input_ids"))
    expected = hidden(model, inputs_embeds=embedded, **batch)
    embedded[mask == 0] = float("nan")
    output = hidden(model, inputs_embeds=embedded, **batch)
    assert_close(output[mask == 1], expected[mask == 1], rtol=0, atol=0)


@every_text
def test_gradients_at_padding_are_zero_and_all_are_finite(family):
    model, mask = linear(original(family), exact_below=MIXED), padded_mask()
    batch = padded(family, mask)
    embedded = model.get_input_embeddings()(batch.pop("input_ids")).detach().requires_grad_()
    hidden(model, inputs_embeds=embedded, **batch)[mask == 1].square().sum().backward()
    assert (embedded.grad[mask == 0] == 0).all() and embedded.grad[mask == 1].any(dim=-1).all()
    gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    slots = [name for name, _ in model.named_parameters() if ".linformer." in name]
    assert slots and all(gradients[name].any() for name in slots)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@every_family
def test_gradients_without_padding_in_training_mode(family):
    model = linear(original(family)).train()
    hidden(model, **inputs_of(family)).square().sum().backward()
    gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    slots = [name for name, _ in model.named_parameters() if ".linformer." in name]
    assert slots and all(gradients[name].any() for name in slots)
    assert all(gradient.isfinite().all() for gradient in gradients.values())


@torch.no_grad()
@every_text
def test_short_rows_are_read_as_the_original_reads_them(family):
    """Beside long ones, and with padding after them or before."""
    mask = padded_mask()[:3]
    batch = padded(family, mask)
    expected = hidden(original(family), **batch)
    output = hidden(linear(original(family), exact_below=LENGTH), **batch)
    assert_close(output[mask == 1], expected[mask == 1], **ATTENTION)
    mixed = hidden(linear(original(family), exact_below=TOKENS[1]), **batch)
    short = mask.clone()
    short[0] = 0
    assert_close(mixed[short == 1], expected[short == 1], **ATTENTION)
    assert (mixed[0] - expected[0]).abs().max() > 1e-3, "slots are not attention to all tokens"


@torch.no_grad()
@pytest.mark.parametrize("family", [family for family in FAMILIES if family.name != "MPNet"], ids=repr)
def test_a_slot_for_every_position_is_the_original(family):
    """But for MPNet, which tells a slot no distance."""
    slots = {"projection": "mean", "k": family.length, "max_length": family.length}
    model = linear(original(family), **slots, window=0, exact_first=0, exact_last=0)
    inputs = inputs_of(family)
    assert_close(hidden(model, **inputs), hidden(original(family), **inputs), **ATTENTION)


@torch.no_grad()
@every_family
def test_what_is_exact_by_itself(family):
    options = linear(original(family)).config.linear_options
    assert (options.exact_first, options.exact_last) == (family.exact_first, int(family in TEXTS))
    assert hidden(linear(original(family)), **inputs_of(family)).shape[1] == family.length


@torch.no_grad()
@every_family
def test_weights_over_slots_exact_tokens_and_window(family):
    """Of one softmax: they are all, and each is at most 1."""
    inputs = {**inputs_of(family), "output_attentions": True}
    for weights in linear(original(family)).eval()(**inputs).attentions:
        assert weights.shape[2] == family.length and weights.shape[3] < family.length
        assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]), rtol=0, atol=1e-6)
        assert (weights >= 0).all()


def test_local_layers_have_no_slots():
    family = TEXTS[-1]
    model = linear(original(family), exact_below=LENGTH)
    layers = model.layers
    of_all, local = (layer.attn.linformer for layer in layers)
    assert of_all.k == 7 and of_all.exact_below == LENGTH
    assert (local.k, local.window, local.exact_below) == (0, 8, 0) and not [*local.parameters()]


@torch.no_grad()
def test_weights_of_rows_that_are_read_differently_are_refused():
    family = TEXTS[0]
    batch = padded(family, padded_mask()[:2])
    with pytest.raises(ValueError, match=r"exact_below = 20 tokens, and attend to all .*: give both in"):
        linear(original(family), exact_below=20)(**batch, output_attentions=True)
    weights = linear(original(family), exact_below=LENGTH)(**batch, output_attentions=True).attentions[0]
    assert weights.shape == (2, 3, LENGTH, LENGTH) and not weights[1, :, :, TOKENS[1] :].any()

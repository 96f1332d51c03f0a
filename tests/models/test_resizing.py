"""Growing and shrinking a trained model: its length, and its vocabulary."""

import numpy as np
import pytest
import torch
from budgets import EXACT
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForSequenceClassification,
    LinformerModel,
)

MODELS = {
    "headwise": {},
    "none": {"sharing": "none"},
    "layerwise": {"sharing": "layerwise", "norm_first": True},
    "random": {"projection": "random"},
    "nonuniform": {"k": [3, 7]},
    "unscaled": {"length_scaling": False},
    "conv": {"projection": "conv"},
    "mean": {"projection": "mean"},
    "max": {"projection": "max"},
    "dynamic": {"projection": "dynamic", "slot_mass": "learned"},
    "sinusoidal": {"position_embedding": "sinusoidal"},
    "full": {"attention": "full"},
}
# All but the windowed ones: their windows are wider in a longer model.
KEPT_EXACTLY = ("headwise", "none", "layerwise", "random", "nonuniform", "unscaled", "dynamic", "sinusoidal", "full")


@pytest.mark.parametrize(("mode", "max_len"), [("interpolate", 58), ("keep", 17)])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_resized_models_take_the_new_length_and_no_more(build, token_ids, tmp_path, name, max_len, mode):
    model = build(LinformerForSequenceClassification, **MODELS[name])
    trainable = {key for key, p in model.named_parameters() if p.requires_grad}
    model.resize_max_len(max_len, mode)
    assert model.config.max_position_embeddings == max_len
    assert {key for key, p in model.named_parameters() if p.requires_grad} == trainable
    logits = model(token_ids(2, max_len)).logits
    assert logits.isfinite().all()
    with pytest.raises(ValueError, match=f"{max_len + 1} positions but max_len is {max_len}"):
        model(token_ids(2, max_len + 1))
    model.save_pretrained(tmp_path)
    loaded = LinformerForSequenceClassification.from_pretrained(tmp_path)
    assert loaded.config.max_position_embeddings == max_len
    assert_close(loaded(token_ids(2, max_len)).logits, logits, rtol=0, atol=EXACT)


@pytest.mark.parametrize("max_len", [58, 17])
@pytest.mark.parametrize("name", KEPT_EXACTLY)
@torch.no_grad()
def test_keeping_leaves_what_fits_as_it_was(build, token_ids, name, max_len):
    model = build(LinformerForSequenceClassification, pooling="mean_max", **MODELS[name])
    ids = token_ids(2, 13)
    mask = torch.tensor([[0] * 4 + [1] * 9, [1] * 13])
    before = [model(ids).logits, model(ids, attention_mask=mask).logits]
    model.resize_max_len(max_len, "keep")
    assert_close([model(ids).logits, model(ids, attention_mask=mask).logits], before, rtol=0, atol=EXACT)


def stretched(rows, size):
    """Rows interpolated linearly: the centre of new row i is at (i + ½) · R / size − ½ of the R old ones."""
    old = len(rows)
    centres = (np.arange(size) + 0.5) * old / size - 0.5
    columns = [np.interp(centres, np.arange(old), column) for column in rows.T.cpu().numpy()]
    return torch.tensor(np.stack(columns, axis=1))


@pytest.mark.parametrize("max_len", [58, 41, 17])
@pytest.mark.parametrize("attention", ["linformer", "full"])
@torch.no_grad()
def test_learned_positions_are_stretched(build, attention, max_len):
    model = build(LinformerModel, attention=attention)
    old = model.embeddings.position_embeddings.weight
    model.resize_max_len(max_len)
    new = model.embeddings.position_embeddings
    assert new.num_embeddings == max_len
    assert_close(new.weight.data, stretched(old, max_len), rtol=0, atol=1e-12)


@pytest.mark.parametrize("max_len", [307, 17])
@pytest.mark.parametrize("attention", ["linformer", "full"])
@torch.no_grad()
def test_learned_positions_are_kept(build, attention, max_len):
    model = build(LinformerModel, attention=attention, initializer_range=0.5)
    old = model.embeddings.position_embeddings.weight
    model.resize_max_len(max_len, "keep")
    new = model.embeddings.position_embeddings.weight
    kept = min(29, max_len)
    assert new.shape == (max_len, 15)
    assert torch.equal(new[:kept], old[:kept])
    if max_len > 29:
        assert new[29:].std().item() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize("max_len", [58, 17])
@pytest.mark.parametrize("sharing", ["headwise", "kv", "layerwise"])
@torch.no_grad()
def test_every_projection_is_stretched(build, sharing, max_len):
    """At 1/√2 of the size when twice as long, so that a slot of twice the tokens has the same variance."""
    model = build(LinformerModel, sharing=sharing, k=[3, 7] if sharing != "layerwise" else 7)
    before = {name: p.clone() for name, p in model.named_parameters() if "proj_" in name or "shared_" in name}
    assert len(before) == {"headwise": 4, "kv": 2, "layerwise": 1}[sharing]
    model.resize_max_len(max_len)
    for name, old in before.items():
        new = model.get_parameter(name)
        assert_close(new.data, stretched(old, max_len) * (29 / max_len) ** 0.5, rtol=0, atol=1e-12)


@pytest.mark.parametrize("fields", [{"k": [3, 7]}, {"k": 7, "attention": "full"}, {"sharing": "layerwise"}])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((6,), "max_len must be at least k = 7, got 6"),
        ((58, "stretch"), "mode must be 'interpolate' or 'keep', got 'stretch'"),
        ((40.5,), r"max_len must be a whole number, got 40\.5"),
    ],
)
@torch.no_grad()
def test_a_refused_size_leaves_the_model_as_it_was(build, token_ids, fields, arguments, message):
    model = build(LinformerModel, **fields)
    before = model(token_ids(2, 29)).last_hidden_state
    with pytest.raises(ValueError, match=message):
        model.resize_max_len(*arguments)
    assert model.config.max_position_embeddings == 29
    assert torch.equal(model(token_ids(2, 29)).last_hidden_state, before)


def test_a_model_holds_its_exact_tokens(build):
    model = build(LinformerModel, exact_first=5, exact_last=4)
    with pytest.raises(
        ValueError, match="exact_first \\+ exact_last = 9 tokens, but the longest sequence has max_len = 8"
    ):
        model.resize_max_len(8)
    assert model.config.max_position_embeddings == 29
    model.resize_max_len(9)


@pytest.mark.parametrize("arguments", [(6,), (58, "stretch"), (40.5,)])
@pytest.mark.parametrize(("k", "memory_k"), [(7, 3), (3, 7)])
@torch.no_grad()
def test_a_refused_size_leaves_an_encoder_decoder_as_it_was(build, token_ids, k, memory_k, arguments):
    model = build(LinformerForConditionalGeneration, k=k, memory_k=memory_k, decoder={"k": 7})
    before, weights = model.config.to_dict(), {name: x.clone() for name, x in model.state_dict().items()}
    for part in (model, model.encoder, model.decoder):
        if (arguments, part, k) == ((6,), model.encoder, 3):
            continue  # which k = 3 allows
        with pytest.raises(ValueError, match=r"max_len must be|mode must be"):
            part.resize_max_len(*arguments)
    assert model.config.to_dict() == before
    assert_close(model.state_dict(), weights, rtol=0, atol=0)
    assert model(token_ids(2, 29), labels=token_ids(2, 29)).loss.isfinite()


@torch.no_grad()
def test_an_encoder_decoder_is_resized_whole_or_not_at_all(build):
    model = build(LinformerForConditionalGeneration)
    torch.nn.utils.parametrizations.weight_norm(model.decoder.decoder.layers[1].multihead_attn.context.proj_v)
    shapes = {name: x.shape for name, x in model.state_dict().items()}
    with pytest.raises(ValueError, match=r"weight of this projection is computed from other parameters"):
        model.resize_max_len(40)
    assert {name: x.shape for name, x in model.state_dict().items()} == shapes
    assert model.config.max_position_embeddings == 29


@torch.no_grad()
def test_a_causal_model_has_only_its_learned_positions_to_resize(build, token_ids):
    model = build(LinformerForCausalLM, position_embedding="learned")
    before = model(token_ids(2, 29)).logits
    model.resize_max_len(40, mode="keep")
    assert_close(model(token_ids(2, 29)).logits, before, rtol=0, atol=0)
    assert model(token_ids(2, 40)).logits.isfinite().all()
    rotary = build(LinformerForCausalLM, position_embedding="rotary")
    with pytest.raises(ValueError, match=r"^nothing to resize: .* position_embedding='rotary' reads inputs"):
        rotary.resize_max_len(40)
    assert rotary.config.max_position_embeddings == 29

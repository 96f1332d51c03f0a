"""Fields of the configuration that models trained elsewhere need: what each adds or leaves out, and that it works."""

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.models import LinformerForMaskedLM, LinformerModel

LEFT_OUT = {
    "embedding_norm": {"linformer.embeddings.norm.weight", "linformer.embeddings.norm.bias"},
    "final_norm": {"linformer.encoder.norm.weight", "linformer.encoder.norm.bias"},
    "lm_head_transform": {f"lm_head.{part}.{kind}" for part in ("dense", "norm") for kind in ("weight", "bias")},
}


@pytest.mark.parametrize("attention", ["linformer", "full"])
@pytest.mark.parametrize("field", LEFT_OUT)
def test_a_field_that_is_off_leaves_its_part_out_and_nothing_else(build, token_ids, field, attention):
    fields = {"norm_first": True, "attention": attention}
    whole = build(LinformerForMaskedLM, **fields)
    part = build(LinformerForMaskedLM, **fields, **{field: False})
    assert whole.state_dict().keys() - part.state_dict().keys() == LEFT_OUT[field]
    part.load_state_dict({name: whole.state_dict()[name] for name in part.state_dict()})
    ids = token_ids(2, 11)
    if field == "lm_head_transform":
        expected = whole.lm_head.decoder(whole.linformer(ids).last_hidden_state)
    else:
        owner = whole.linformer.embeddings if field == "embedding_norm" else whole.linformer.encoder
        owner.norm.forward = lambda hidden: hidden
        expected = whole(ids).logits
    assert_close(part(ids).logits, expected, rtol=0, atol=0)


@pytest.mark.parametrize("attention", ["linformer", "full"])
def test_heads_of_a_width_of_their_own(build, token_ids, attention):
    model = build(LinformerModel, head_dim=7, num_attention_heads=4, num_key_value_heads=2, attention=attention)
    layer = model.encoder.layers[0].self_attn
    assert (layer.q_proj.weight.shape, layer.v_proj.weight.shape) == ((28, 15), (14, 15))
    assert model(token_ids(2, 11)).last_hidden_state.shape == (2, 11, 15)


def test_slot_biases_are_saved_and_missing_ones_are_zero(build, token_ids, tmp_path, poisoned_memory):
    model = build(LinformerModel, dtype=torch.float32, slot_bias=True, k=[3, 7], num_key_value_heads=1)
    assert [layer.self_attn.context.slot_terms.bias_v.shape for layer in model.encoder.layers] == [(1, 3, 5), (1, 7, 5)]
    model.save_pretrained(tmp_path / "with")
    loaded = LinformerModel.from_pretrained(tmp_path / "with")
    assert_close(dict(loaded.state_dict()), dict(model.state_dict()), rtol=0, atol=0)

    plain = build(LinformerModel, dtype=torch.float32)
    plain.save_pretrained(tmp_path / "without")
    loaded = LinformerModel.from_pretrained(tmp_path / "without", slot_bias=True)
    ids = token_ids(2, 11)
    assert_close(loaded(ids).last_hidden_state, plain(ids).last_hidden_state, rtol=0, atol=0)


def test_resizing_keeps_slot_biases(build, token_ids):
    model = build(LinformerModel, slot_bias=True)
    before = [layer.self_attn.context.slot_terms.bias_k.clone() for layer in model.encoder.layers]
    model.resize_max_len(43)
    assert_close([layer.self_attn.context.slot_terms.bias_k for layer in model.encoder.layers], before, rtol=0, atol=0)
    assert model(token_ids(2, 43)).last_hidden_state.isfinite().all()

"""Models whose slots are chosen by the input: first values, slots put into another model, a memory read by them."""

import torch
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)

DYNAMIC = {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", "exact_first": 1, "exact_last": 1}


def is_of_slots(name):
    return ".proj_" in name or "slot_terms.mass" in name


def assert_is_new(name, tensor):
    """Learned queries are drawn with a deviation of 0.02, and the rest is 0."""
    if name.endswith("weight"):
        assert 0.015 < tensor.std().item() < 0.025, name
    else:
        assert not tensor.any(), name


def test_first_values(tiny, poisoned_memory):
    torch.manual_seed(0)
    found = {name: x for name, x in LinformerModel(tiny(**DYNAMIC)).named_parameters() if is_of_slots(name)}
    parts = {name.rpartition("self_attn.")[2] for name in found}
    slots = {"proj_k.weight", "proj_k.shift", "proj_k.log_steepness", "slot_terms.mass"}
    assert parts == {f"context.{name}" for name in slots}
    for name, tensor in found.items():
        assert_is_new(name, tensor)


def test_slots_put_into_a_saved_model_of_full_attention(build, tmp_path, poisoned_memory):
    source = build(LinformerForSequenceClassification, dtype=torch.float32, attention="full")
    source.save_pretrained(tmp_path)
    fields = {"attention": "linformer", **DYNAMIC}
    model, info = LinformerForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True, **fields)
    assert info["missing_keys"] == {name for name in model.state_dict() if is_of_slots(name)} != set()
    for name in info["missing_keys"]:
        assert_is_new(name, model.state_dict()[name])


@torch.no_grad()
def test_an_encoder_decoder_writes_with_a_cache_what_it_does_without(build, token_ids):
    memory = {"memory_projection": "dynamic", "memory_sharing": "kv_per_head"}
    slots = {**dict.fromkeys(DYNAMIC), "projection": "linear", "sharing": "headwise", "slot_mass": "none"}
    decoder = {**slots, "exact_first": 0, "exact_last": 0, "window": 3}
    model = build(LinformerForConditionalGeneration, **memory, **DYNAMIC, window=4, decoder=decoder)
    padded = {"input_ids": token_ids(2, 11), "attention_mask": torch.tensor([[0] * 4 + [1] * 7, [1] * 11])}
    written = [model.generate(**padded, max_new_tokens=6, num_beams=2, use_cache=cache) for cache in (True, False)]
    assert torch.equal(*written)


@torch.no_grad()
def test_recorded_attentions_are_of_slots_exact_tokens_and_window(build, token_ids):
    model = build(LinformerForMaskedLM, window=4, **DYNAMIC)
    mask = torch.tensor([[0, 0] + [1] * 9, [1] * 11])
    weights = model(token_ids(2, 11), attention_mask=mask, output_attentions=True).attentions
    for each in weights:
        assert each.shape == (2, 3, 11, 7 + 2 + 5)
        assert_close(each.sum(dim=-1)[1], torch.ones(3, 11, dtype=torch.float64))

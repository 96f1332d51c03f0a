"""Models whose slots are chosen by the input: first values, slots put into another model, a memory read by them."""

import torch
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
    LinformerSeq2SeqConfig,
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
def test_an_encoder_decoder_reads_its_memory_by_them(tiny, token_ids, tmp_path):
    encoder, decoder = tiny(window=4, **DYNAMIC), tiny(causal=True, window=3)
    fields = {"memory_projection": "dynamic", "memory_sharing": "kv_per_head", "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(0)
    config = LinformerSeq2SeqConfig(encoder=encoder, decoder=decoder, **fields)
    model, ids = LinformerForConditionalGeneration(config).double().eval(), token_ids(2, 11)
    mask = torch.tensor([[0] * 4 + [1] * 7, [1] * 11])
    padded = {"input_ids": ids, "attention_mask": mask}
    target = {"decoder_input_ids": ids[:, :5]}
    alone = model(input_ids=ids[:1, 4:], decoder_input_ids=ids[:1, :5]).logits
    assert_close(model(**padded, **target).logits[:1], alone)
    written = [model.generate(**padded, max_new_tokens=6, num_beams=2, use_cache=cache) for cache in (True, False)]
    assert torch.equal(*written)
    model.save_pretrained(tmp_path)
    loaded = LinformerForConditionalGeneration.from_pretrained(tmp_path)
    assert_close(loaded(**padded, **target).logits, model(**padded, **target).logits)


@torch.no_grad()
def test_recorded_attentions_are_of_slots_exact_tokens_and_window(build, token_ids):
    model = build(LinformerForMaskedLM, window=4, **DYNAMIC)
    mask = torch.tensor([[0, 0] + [1] * 9, [1] * 11])
    weights = model(token_ids(2, 11), attention_mask=mask, output_attentions=True).attentions
    for each in weights:
        assert each.shape == (2, 3, 11, 7 + 2 + 5)
        assert_close(each.sum(dim=-1)[1], torch.ones(3, 11, dtype=torch.float64))

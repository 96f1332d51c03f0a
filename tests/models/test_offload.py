"""Weights that are brought to memory only while the module that owns them runs: the model stays the one it is."""

import pytest
import torch
from accelerate import cpu_offload, disk_offload
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForSequenceClassification,
    LinformerModel,
)

pytestmark = pytest.mark.cpu("weights are offloaded from it to disk")
PROJECTIONS = ("linear", "random", "conv", "max", "dynamic")
LONG = {"max_position_embeddings": 97, "k": 3}  # the sequence is compressed before the channels are mixed
KINDS = [
    *((LinformerModel, {"projection": projection, **LONG}) for projection in PROJECTIONS),
    *((LinformerModel, {"sharing": sharing, "chunk_size": 5, **LONG}) for sharing in ("none", "kv", "layerwise")),
    (LinformerModel, {"attention": "full", "chunk_size": 5}),
    (LinformerModel, {"window": 5}),
    (LinformerModel, {"window": 5, "chunk_size": 5, "slot_bias": True}),
    (LinformerModel, {"slot_bias": True}),
    (LinformerModel, {"projection": "dynamic", "slot_mass": "learned", "exact_first": 2, "chunk_size": 5}),
    (LinformerModel, {"activation_memory": "reversible", "norm_first": True, "chunk_size": 5, **LONG}),
    (LinformerForCausalLM, {}),
    (LinformerForCausalLM, {"chunk_size": 5}),
    (LinformerForSequenceClassification, {}),
    (LinformerForConditionalGeneration, {}),
    (LinformerForConditionalGeneration, {"memory_sharing": "layerwise", "chunk_size": 5}),
]


def from_disk(model, folder):
    """What `device_map="auto"` makes of it where the memory is too small for it."""
    model.save_pretrained(folder / "saved")
    kilobytes = sum(x.nbytes for x in model.state_dict().values()) // 2000
    options = {"device_map": "auto", "max_memory": {"cpu": f"{kilobytes}KB"}, "offload_folder": folder / "offloaded"}
    loaded = type(model).from_pretrained(folder / "saved", dtype=torch.float64, **options)
    assert "disk" in loaded.hf_device_map.values()
    return loaded


WAYS = {
    "cpu_offload": lambda model, folder: cpu_offload(model, execution_device="cpu"),
    "disk_offload": lambda model, folder: disk_offload(model, folder, execution_device="cpu"),
    "device_map": from_disk,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("model_class", "fields"), KINDS, ids=lambda value: getattr(value, "__name__", str(value)))
@torch.no_grad()
def test_an_offloaded_model_is_the_model(build, token_ids, tmp_path, way, model_class, fields):
    model = build(model_class, **fields)
    inputs = {"input_ids": token_ids(2, 23), "attention_mask": torch.arange(23) < torch.tensor([[23], [17]])}
    if model_class is LinformerForConditionalGeneration:
        inputs["decoder_input_ids"] = token_ids(2, 11)
    expected = model(**inputs)[0]
    offloaded = WAYS[way](model, tmp_path)
    assert any(parameter.is_meta for parameter in offloaded.parameters())
    assert_close(offloaded(**inputs)[0], expected)

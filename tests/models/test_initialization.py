"""First values: every parameter gets one of the right size, also where a saved folder has none."""

import math

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)

# Large enough that a measured deviation is within 5 % of the one drawn with.
ROOMY = {
    "vocab_size": 211,
    "hidden_size": 39,
    "intermediate_size": 53,
    "max_position_embeddings": 97,
    "k": 31,
}
MODELS = {
    "headwise": {},
    "none": {"sharing": "none"},
    "layerwise": {"sharing": "layerwise", "norm_first": True, "gated": True},
    "random": {"projection": "random"},
    "conv": {"projection": "conv", "sharing": "none"},
    "mean": {"projection": "mean"},
    "dynamic": {"projection": "dynamic", "slot_mass": "learned"},
    "full": {"attention": "full"},
    "slot_bias": {"slot_bias": True},
    "dense before the classifier": {"classifier_hidden_act": "tanh"},
}


def is_projection(name: str) -> bool:
    return ".proj_" in name or "shared_projection" in name


def assert_drawn_with(tensor, std):
    assert tensor.std().item() == pytest.approx(std, rel=0.12)
    assert abs(tensor.mean().item()) < 5 * std / math.sqrt(tensor.numel())


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("model_class", [LinformerForSequenceClassification, LinformerForMaskedLM])
def test_every_tensor_has_a_value(tiny, poisoned_memory, model_class, name):
    model = model_class(tiny(**MODELS[name]))
    assert all(tensor.isfinite().all() for tensor in model.state_dict().values())


@pytest.mark.parametrize("initializer_range", [0.02, 0.5])
def test_first_values(tiny, poisoned_memory, initializer_range):
    torch.manual_seed(0)
    model = LinformerForMaskedLM(tiny(**ROOMY, initializer_range=initializer_range))
    for name, parameter in model.named_parameters():
        if is_projection(name):
            assert parameter.shape == (97, 31)
            assert_drawn_with(parameter, 1 / math.sqrt(97))
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        elif "word_embeddings" in name:
            assert (parameter[0] == 0).all(), "the padding token"
            assert_drawn_with(parameter[1:], initializer_range)
        else:
            assert_drawn_with(parameter, initializer_range)


@pytest.mark.parametrize(
    ("fields", "std"),
    [
        ({"projection": "random", "k": 31}, 1 / math.sqrt(97)),
        ({"projection": "linear", "sharing": "layerwise", "k": 31}, 1 / math.sqrt(97)),
        ({"projection": "conv", "sharing": "none", "k": 2}, 1 / math.sqrt(49)),
    ],
)
def test_projections_keep_the_variance_of_a_token(tiny, poisoned_memory, fields, std):
    torch.manual_seed(0)
    model = LinformerModel(tiny(**{**ROOMY, **fields}))
    drawn = [tensor for name, tensor in model.state_dict().items() if is_projection(name)]
    assert_drawn_with(torch.cat([tensor.flatten() for tensor in drawn]), std)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("source_class", [LinformerModel, LinformerForMaskedLM])
def test_a_classifier_on_a_saved_backbone(build, tmp_path, poisoned_memory, source_class, name):
    fields = {**MODELS[name], "num_labels": 5}
    source = build(source_class, dtype=torch.float32, **fields)
    source.save_pretrained(tmp_path)
    model, info = LinformerForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    layers = ["classifier", *(["pooler.dense"] if "classifier_hidden_act" in fields else [])]
    assert info["missing_keys"] == {f"{layer}.{part}" for layer in layers for part in ("weight", "bias")}
    assert all(key.startswith("lm_head.") for key in info["unexpected_keys"])
    assert bool(info["unexpected_keys"]) == (source_class is LinformerForMaskedLM)
    assert not info["mismatched_keys"]
    assert_close(dict(model.linformer.state_dict()), dict(source.base_model.state_dict()), rtol=0, atol=0)
    assert model.classifier.weight.shape == (5, 15)
    for layer in map(model.get_submodule, layers):
        assert 0.5 * 0.02 < layer.weight.std() < 1.5 * 0.02
        assert (layer.bias == 0).all()


def test_a_backbone_out_of_a_saved_head(build, tmp_path):
    source = build(LinformerForMaskedLM)
    source.save_pretrained(tmp_path)
    model, info = LinformerModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not info["missing_keys"]
    assert_close(dict(model.state_dict()), dict(source.linformer.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize(
    "fields", [{}, {"sharing": "layerwise"}, {"sharing": "none"}, {"projection": "random"}], ids=str
)
def test_linformer_attention_put_into_a_saved_ordinary_model(build, tmp_path, poisoned_memory, fields):
    source = build(LinformerForSequenceClassification, dtype=torch.float32, attention="full", **ROOMY)
    source.save_pretrained(tmp_path)
    torch.manual_seed(0)
    model, info = LinformerForSequenceClassification.from_pretrained(
        tmp_path, attention="linformer", output_loading_info=True, **fields
    )
    state = model.state_dict()
    drawn = {name for name in state if is_projection(name)}
    assert drawn and info["missing_keys"] == drawn
    for name in drawn:
        assert_drawn_with(state[name], 1 / math.sqrt(97))
    kept = {name: tensor for name, tensor in state.items() if name not in drawn}
    assert_close(kept, dict(source.state_dict()), rtol=0, atol=0)

"""Saving and loading through safetensors: nothing lost, nothing twice, in every dtype."""

import pytest
import torch
from budgets import EXACT
from safetensors.torch import load_file
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)

# Matrices of 2 layers with 3 heads: E and F a head, E and F a layer, E = F a layer, E = F for all.
MATRICES = {"none": 12, "headwise": 4, "kv": 2, "layerwise": 1}


def assert_equal_models(loaded, model):
    assert type(loaded) is type(model)
    assert_close(dict(loaded.state_dict()), dict(model.state_dict()), rtol=0, atol=0)


def assert_same_answers(loaded, model, ids):
    """To rounding: memory mapped from a file lies otherwise, and sums run in another order."""
    assert_close(loaded(ids)[0], model(ids)[0], rtol=0, atol=EXACT)


@pytest.mark.parametrize("projection", ["linear", "random"])
@pytest.mark.parametrize("sharing", MATRICES)
@torch.no_grad()
def test_each_projection_is_saved_once(build, token_ids, tmp_path, sharing, projection):
    model = build(LinformerForSequenceClassification, sharing=sharing, projection=projection, norm_first=True)
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    dense = [tensor for tensor in tensors.values() if tensor.shape[-2:] == (29, 7)]
    matrices = torch.cat([tensor.view(-1, 29, 7) for tensor in dense])
    assert len(matrices) == MATRICES[sharing]
    for values in (matrices, tensors.values()):
        assert len({tuple(tensor.flatten().tolist()) for tensor in values}) == len(values), "saved twice"
    loaded = LinformerForSequenceClassification.from_pretrained(tmp_path)
    assert_equal_models(loaded, model)
    assert_same_answers(loaded, model, token_ids(3, 11))


@pytest.mark.parametrize(
    ("sharing", "shapes"),
    [("none", [(3, 5)] * 4), ("headwise", [(5,)] * 4), ("kv", [(5,)] * 2), ("layerwise", [(5,)])],
)
@torch.no_grad()
def test_each_kernel_is_saved_once(build, token_ids, tmp_path, sharing, shapes):
    model = build(LinformerModel, sharing=sharing, projection="conv")
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    kernels = [tensor for name, tensor in tensors.items() if ".proj_" in name or "shared_projection" in name]
    assert [kernel.shape for kernel in kernels] == shapes
    loaded = LinformerModel.from_pretrained(tmp_path)
    assert_equal_models(loaded, model)
    assert_same_answers(loaded, model, token_ids(3, 11))


@pytest.mark.parametrize("sharing", MATRICES)
def test_random_projections_are_kept_but_not_trained(build, tmp_path, sharing):
    model = build(LinformerModel, sharing=sharing, projection="random")
    assert not [name for name, _ in model.named_parameters() if ".proj_" in name or "shared_" in name]
    drawn = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert len(drawn) == {"none": 4, "headwise": 4, "kv": 2, "layerwise": 1}[sharing]
    model.save_pretrained(tmp_path)
    torch.manual_seed(99)
    assert_close(dict(LinformerModel.from_pretrained(tmp_path).named_buffers()), drawn, rtol=0, atol=0)


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_embeddings_tied_or_not_survive(build, token_ids, tmp_path, tied):
    model = build(LinformerForMaskedLM, tie_word_embeddings=tied)
    model.save_pretrained(tmp_path)
    vocabulary = [t for t in load_file(tmp_path / "model.safetensors").values() if t.shape == (37, 15)]
    assert len(vocabulary) == (1 if tied else 2)
    loaded = LinformerForMaskedLM.from_pretrained(tmp_path)
    for one in (model, loaded):
        assert (one.lm_head.decoder.weight is one.get_input_embeddings().weight) == tied
        assert one.get_output_embeddings() is one.lm_head.decoder
    assert torch.equal(loaded.lm_head.decoder.weight, loaded.get_input_embeddings().weight) == tied
    assert_same_answers(loaded, model, token_ids(3, 11))


@pytest.mark.parametrize(
    ("projection", "dtype"),
    [
        *(("linear", dtype) for dtype in (torch.float64, torch.float32, torch.bfloat16)),
        *((projection, torch.float16) for projection in ("random", "conv", "mean", "max", "dynamic")),
    ],
)
@torch.no_grad()
def test_loading_in_another_dtype(build, token_ids, tmp_path, dtype, projection):
    model = build(LinformerForSequenceClassification, projection=projection, pooling="mean_max")
    model.save_pretrained(tmp_path)
    loaded = LinformerForSequenceClassification.from_pretrained(tmp_path, dtype=dtype)
    ids, mask = token_ids(2, 11), torch.tensor([[0] * 4 + [1] * 7, [1] * 11])
    expected = model(ids, attention_mask=mask).logits
    assert_equal_models(loaded, model.to(dtype))
    logits = loaded(ids, attention_mask=mask).logits
    assert logits.dtype == dtype
    # Over 300 such models the error was 14 roundings of the largest logit at most, and 2 in the mean.
    error = (logits.double() - expected).abs().max() / expected.abs().max()
    assert error <= 32 * torch.finfo(dtype).eps

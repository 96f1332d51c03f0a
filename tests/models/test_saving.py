"""Saving and loading through safetensors: nothing lost, nothing twice, in every dtype."""

import pytest
import torch
from budgets import EXACT
from safetensors.torch import load_file
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
)

# Shapes in a folder of 2 layers with 3 heads: E and F a head, E and F a layer, E = F a layer, E = F for all.
TIMES = {"none": 4, "headwise": 4, "kv": 2, "layerwise": 1}


def assert_same_answers(loaded, model, ids):
    """To rounding: memory mapped from a file lies otherwise, and sums run in another order."""
    assert_close(dict(loaded.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    assert_close(loaded(ids)[0], model(ids)[0], rtol=0, atol=EXACT)


@pytest.mark.parametrize(("projection", "shape"), [("linear", (29, 7)), ("random", (29, 7)), ("conv", (5,))])
@pytest.mark.parametrize("sharing", TIMES)
@torch.no_grad()
def test_each_map_is_saved_once(build, token_ids, tmp_path, sharing, projection, shape):
    model = build(LinformerForSequenceClassification, sharing=sharing, projection=projection, norm_first=True)
    trained = [name for name, _ in model.named_parameters() if ".proj_" in name or "shared_" in name]
    assert len(trained) == (0 if projection == "random" else TIMES[sharing])
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    maps = [tensor for name, tensor in tensors.items() if ".proj_" in name or "shared_projection" in name]
    assert [tuple(tensor.shape) for tensor in maps] == [((3,) if sharing == "none" else ()) + shape] * TIMES[sharing]
    for values in (torch.cat([tensor.view(-1, *shape) for tensor in maps]), tensors.values()):
        assert len({tuple(tensor.flatten().tolist()) for tensor in values}) == len(values), "saved twice"
    torch.manual_seed(99)  # what is drawn is kept
    assert_same_answers(LinformerForSequenceClassification.from_pretrained(tmp_path), model, token_ids(3, 11))


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
    assert_close(dict(loaded.state_dict()), dict(model.to(dtype).state_dict()), rtol=0, atol=0)
    logits = loaded(ids, attention_mask=mask).logits
    assert logits.dtype == dtype
    # Over 300 such models the error was 14 roundings of the largest logit at most, and 2 in the mean.
    error = (logits.double() - expected).abs().max() / expected.abs().max()
    assert error <= 32 * torch.finfo(dtype).eps

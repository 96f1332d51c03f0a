"""Pooling by hand: one vector a row, of which padding is no part."""

import pytest
import torch
from budgets import EXACT
from torch.testing import assert_close

from torch_linformer.models import LinformerForMultipleChoice, LinformerForSequenceClassification
from torch_linformer.models.pooling import pool

NAN = float("nan")
# Three rows of four tokens of two channels; padding holds what would win or poison a careless pool.
HIDDEN = torch.tensor(
    [
        [[1.0, -2.0], [3.0, -5.0], [-7.0, -11.0], [99.0, 99.0]],
        [[NAN, NAN], [99.0, -99.0], [-2.0, 4.0], [-6.0, 10.0]],
        [[99.0, 99.0], [-3.0, -4.0], [NAN, 99.0], [-5.0, -1.0]],
    ]
)
MASK = torch.tensor([[1, 1, 1, 0], [0, 0, 1, 1], [0, 1, 0, 1]])
POOLED = {
    "mean": [[-1.0, -6.0], [-4.0, 7.0], [-4.0, -2.5]],
    "cls": [[1.0, -2.0], [-2.0, 4.0], [-3.0, -4.0]],
    "last": [[-7.0, -11.0], [-6.0, 10.0], [-5.0, -1.0]],
    "max": [[3.0, -2.0], [-2.0, 10.0], [-3.0, -1.0]],
    "mean_max": [[-1.0, -6.0, 3.0, -2.0], [-4.0, 7.0, -2.0, 10.0], [-4.0, -2.5, -3.0, -1.0]],
}


@pytest.mark.parametrize("pooling", POOLED)
@pytest.mark.parametrize("dtype", [torch.long, torch.bool, torch.float32])
def test_pooling_by_hand(pooling, dtype):
    assert pool(HIDDEN, MASK.to(dtype), pooling).tolist() == POOLED[pooling]


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ("mean", [24.0, 20.25]),
        ("cls", [1.0, -2.0]),
        ("last", [99.0, 99.0]),
        ("max", [99.0, 99.0]),
        ("mean_max", [24.0, 20.25, 99.0, 99.0]),
    ],
)
def test_pooling_without_a_mask_takes_every_token(pooling, expected):
    assert pool(HIDDEN[:1], None, pooling).tolist() == [expected]


@pytest.mark.parametrize("pooling", POOLED)
def test_pooling_nothing_gives_zeros(pooling):
    pooled = pool(HIDDEN, torch.zeros(3, 4), pooling)
    assert torch.equal(pooled, torch.zeros(3, 4 if pooling == "mean_max" else 2))


@pytest.mark.parametrize("model_class", [LinformerForSequenceClassification, LinformerForMultipleChoice])
def test_a_causal_model_classifies_from_what_has_read_the_text(build, token_ids, model_class):
    with pytest.raises(ValueError, match=r"pooling='cls' of a causal model reads .* use pooling='last'"):
        build(model_class, causal=True, window=5, pooling="cls")
    model = build(model_class, causal=True, window=5, pooling="last")
    shape = (1, 2, 11) if model_class is LinformerForMultipleChoice else (1, 11)
    ids = token_ids(*shape)
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs_embeds=embeds).logits.square().sum(), embeds)
    assert gradient.abs().sum(dim=-1).gt(0).all(), "the logits depend on every token"
    padded = torch.cat([torch.zeros_like(ids)[..., :3], ids, torch.zeros_like(ids)[..., :5]], dim=-1)
    mask = torch.zeros_like(padded)
    mask[..., 3:14] = 1
    assert_close(model(padded, attention_mask=mask).logits, model(ids).logits, rtol=0, atol=EXACT)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("masked", [False, True])
def test_the_mean_of_a_long_document_fits_into_half_precision(dtype, masked):
    hidden = torch.full((1, 70_000, 2), 1.5, dtype=dtype)
    pooled = pool(hidden, torch.ones(1, 70_000) if masked else None, "mean")
    assert pooled.dtype == dtype
    assert pooled.tolist() == [[1.5, 1.5]]

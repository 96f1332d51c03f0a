"""Padding is exact on every side: a row gives what it gives alone, and nothing of padding gets through."""

import pytest
import torch
from budgets import EXACT
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)

LENGTH = 11
REAL_TOKENS = (11, 7, 5, 1)
MODELS = {
    "headwise": {},
    "none": {"sharing": "none"},
    "kv": {"sharing": "kv"},
    "layerwise": {"sharing": "layerwise"},
    "random": {"projection": "random"},
    "conv": {"projection": "conv"},
    "conv-none": {"projection": "conv", "sharing": "none"},
    "mean": {"projection": "mean"},
    "max": {"projection": "max"},
    "dynamic": {"projection": "dynamic", "sharing": "kv", "slot_mass": "learned"},
    "dynamic-window": {
        "projection": "dynamic",
        "sharing": "kv_per_head",
        "window": 4,
        "exact_first": 1,
        "exact_last": 2,
    },
    "no-slots": {"k": 0, "window": 4, "exact_first": 1},
    "multi-query": {"num_key_value_heads": 1, "sharing": "none"},
    "unscaled": {"length_scaling": False},
    "nonuniform": {"k": [3, 13]},
    "prenorm": {"norm_first": True, "gated": True},
    "prenorm-layerwise": {"norm_first": True, "sharing": "layerwise"},
    "sinusoidal": {"position_embedding": "sinusoidal"},
    "no-positions": {"position_embedding": "none"},
    "full": {"attention": "full"},
    "full-prenorm": {"attention": "full", "norm_first": True, "num_key_value_heads": 1},
    "full-sinusoidal": {"attention": "full", "position_embedding": "sinusoidal"},
    "causal": {"causal": True},
    "causal-rotary": {"causal": True, "position_embedding": "rotary", "norm_first": True},
    "causal-window": {"causal": True, "window": 3, "exact_first": 1},
    "causal-full": {"attention": "full", "causal": True, "position_embedding": "rotary"},
}
PLACEMENTS = ("right", "left", "mixed")
IN_OTHER_WAYS = (
    "headwise",
    "dynamic-window",
    "no-positions",
    "full",
    "causal-rotary",
)  # for each, rows on one side too
PLACED = [(name, placement) for name in MODELS for placement in (PLACEMENTS if name in IN_OTHER_WAYS else ("mixed",))]
POOLINGS = ("mean", "cls", "max", "mean_max")


def columns_of(placement: str, row: int) -> list[int]:
    """Where the real tokens of a row stand."""
    tokens = REAL_TOKENS[row]
    if placement == "mixed":
        placement = ("right", "scattered", "middle", "left")[row]
    if placement == "right":
        return list(range(tokens))
    if placement == "left":
        return list(range(LENGTH - tokens, LENGTH))
    if placement == "middle":
        head = tokens // 2
        return [*range(head), *range(LENGTH - (tokens - head), LENGTH)]
    return sorted((5 * i + 2) % LENGTH for i in range(tokens))


def mask_of(placement: str) -> torch.Tensor:
    mask = torch.zeros(len(REAL_TOKENS), LENGTH, dtype=torch.long)
    for row in range(len(REAL_TOKENS)):
        mask[row, columns_of(placement, row)] = 1
    return mask


@pytest.fixture(params=PLACEMENTS)
def placement(request):
    return request.param


@pytest.fixture
def rows(token_ids):
    """Inputs of four rows; at padding too there stand valid ids, types and positions, for nothing."""
    shape = (len(REAL_TOKENS), LENGTH)
    generator = torch.Generator(torch.get_default_device()).manual_seed(2)
    return {
        "input_ids": token_ids(*shape),
        "token_type_ids": torch.randint(4, shape, generator=generator),
        "position_ids": torch.randint(29, shape, generator=generator),
    }


def close(actual, expected):
    assert_close(actual, expected, rtol=0, atol=EXACT)


@pytest.mark.parametrize(("name", "placement"), PLACED)
@torch.no_grad()
def test_a_padded_row_gives_what_the_row_alone_gives(build, rows, placement, name):
    model = build(LinformerModel, **MODELS[name])
    del rows["position_ids"]
    recorded = {"output_hidden_states": True, "output_attentions": True}
    mask = mask_of(placement)
    padded = model(**rows, attention_mask=mask, **recorded)
    # Recording takes another path, to the same end: the weights are those that made the output.
    plain = model(**rows, attention_mask=mask).last_hidden_state
    close(plain[mask == 1], padded.last_hidden_state[mask == 1])
    for row in range(len(REAL_TOKENS)):
        real = columns_of(placement, row)
        alone = model(**{key: value[row : row + 1, real] for key, value in rows.items()}, **recorded)
        close(padded.last_hidden_state[row, real], alone.last_hidden_state[0])
        assert len(padded.hidden_states) == len(alone.hidden_states) == 3
        for states, expected in zip(padded.hidden_states, alone.hidden_states, strict=True):
            close(states[row, real], expected[0])
        assert len(padded.attentions) == len(alone.attentions) == 2
        for weights, expected in zip(padded.attentions, alone.attentions, strict=True):
            of_row = weights[row][:, real]
            close(of_row.sum(dim=-1), torch.ones_like(of_row[..., 0]))
            if model.config.attention == "full":
                padding = [column for column in range(LENGTH) if column not in real]
                assert (of_row[..., padding] == 0).all()
                of_row = of_row[..., real]
            close(of_row, expected[0])


@pytest.mark.parametrize("position_embedding", ["learned", "sinusoidal", "none"])
@torch.no_grad()
def test_explicit_positions_move_with_their_tokens(build, rows, placement, position_embedding):
    model = build(LinformerModel, position_embedding=position_embedding)
    padded = model(**rows, attention_mask=mask_of(placement)).last_hidden_state
    for row in range(len(REAL_TOKENS)):
        real = columns_of(placement, row)
        alone = model(**{key: value[row : row + 1, real] for key, value in rows.items()})
        close(padded[row, real], alone.last_hidden_state[0])


@given(mask=st.lists(st.lists(st.booleans(), min_size=13, max_size=13), min_size=1, max_size=3))
@settings(max_examples=40, deadline=None)
@torch.no_grad()
def test_any_mask(build, token_ids, mask):
    model = build(LinformerModel, projection="conv", sharing="kv")
    mask = torch.tensor(mask)
    ids = token_ids(*mask.shape)
    padded = model(ids, attention_mask=mask).last_hidden_state
    assert padded.isfinite().all()
    for row in range(mask.shape[0]):
        if mask[row].any():
            close(padded[row, mask[row]], model(ids[row, mask[row]][None]).last_hidden_state[0])


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_rows_do_not_see_each_other(build, rows, name):
    model = build(LinformerForSequenceClassification, pooling="mean_max", **MODELS[name])
    order = torch.tensor([2, 0, 3, 1])
    inputs = {**rows, "attention_mask": mask_of("mixed")}
    permuted = model(**{key: value[order] for key, value in inputs.items()}).logits
    close(permuted, model(**inputs).logits[order])


@pytest.mark.parametrize(("name", "placement"), PLACED)
@torch.no_grad()
def test_what_stands_at_padding_is_irrelevant(build, rows, placement, name):
    model = build(LinformerForSequenceClassification, pooling="mean_max", **MODELS[name])
    mask = mask_of(placement)
    others = {
        key: torch.where(mask == 1, value, (value + 1) % (29 if key == "position_ids" else 4))
        for key, value in rows.items()
    }
    assert not torch.equal(others["input_ids"], rows["input_ids"])
    assert torch.equal(model(**others, attention_mask=mask).logits, model(**rows, attention_mask=mask).logits)


@pytest.mark.parametrize("name", MODELS)
def test_nan_at_padding_changes_nothing(build, rows, name):
    model = build(LinformerForSequenceClassification, pooling="mean_max", num_labels=5, **MODELS[name])
    mask = mask_of("mixed")
    labels = torch.tensor([4, 0, 2, 3])
    embeds = model.get_input_embeddings()(rows.pop("input_ids")).detach()
    poison = torch.tensor([float("nan"), float("inf"), -1e300]).repeat(embeds.shape[-1] // 3)
    results = []
    for numbers in (torch.zeros_like(poison), poison):
        model.zero_grad()
        leaf = torch.where((mask == 0).unsqueeze(-1), numbers, embeds).requires_grad_()
        outputs = model(inputs_embeds=leaf, attention_mask=mask, labels=labels, **rows)
        outputs.loss.backward()
        assert (leaf.grad[mask == 0] == 0).all()
        gradients = {key: p.grad for key, p in model.named_parameters() if p.grad is not None}
        assert len(gradients) > 20
        results.append((outputs.loss, outputs.logits, leaf.grad, gradients))
    assert all(gradient.isfinite().all() for gradient in results[1][3].values())
    assert_close(results[1], results[0], rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "pooling"),
    [
        *((name, "mean_max") for name in MODELS),
        *(("headwise", pooling) for pooling in POOLINGS[:3]),
        ("causal", "last"),
    ],
)
def test_a_row_of_padding_alone(build, rows, name, pooling):
    model = build(LinformerForSequenceClassification, pooling=pooling, num_labels=5, **MODELS[name])
    mask = mask_of("left")
    with torch.no_grad():
        before = model(**rows, attention_mask=mask).logits
    mask[1] = 0
    outputs = model(**rows, attention_mask=mask, labels=torch.tensor([4, 0, 2, 3]), output_attentions=True)
    outputs.loss.backward()
    others = [0, 2, 3]
    close(outputs.logits[others], before[others])
    close(outputs.logits[1], model.classifier.bias)
    assert outputs.loss.isfinite()
    assert all(weights.isfinite().all() for weights in outputs.attentions)
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("fields", [{"projection": "mean"}, {"attention": "full"}], ids=str)
def test_a_batch_of_padding_alone(build, rows, fields):
    model = build(LinformerForMaskedLM, **fields)
    nothing = torch.zeros(len(REAL_TOKENS), LENGTH)
    outputs = model(**rows, attention_mask=nothing, labels=rows["input_ids"])
    outputs.loss.backward()
    assert outputs.logits.isfinite().all()
    assert outputs.loss.isfinite()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_mask_without_padding_is_no_mask(build, rows, name):
    model = build(LinformerForSequenceClassification, **MODELS[name])
    close(model(**rows, attention_mask=torch.ones(4, LENGTH)).logits, model(**rows).logits)


@torch.no_grad()
def test_the_mask_may_have_any_dtype_and_any_mark_but_zero_is_a_real_token(build, rows):
    model, mask = build(LinformerForSequenceClassification, pooling="mean_max"), mask_of("mixed")
    expected = model(**rows, attention_mask=mask).logits
    dtypes = (torch.bool, torch.uint8, torch.int32, torch.float32, torch.float64)
    for other in (*(mask.to(dtype) for dtype in dtypes), *(mask * mark for mark in (2, -1, 0.5))):
        assert torch.equal(model(**rows, attention_mask=other).logits, expected)


@pytest.mark.parametrize("shape", [(11,), (4, 10), (3, 11), (4, 1, 1, 11), (4, 11, 11)])
def test_a_mask_of_another_shape_is_refused(build, rows, shape):
    model = build(LinformerForSequenceClassification)
    with pytest.raises(ValueError, match=r"attention_mask must have shape \(B, N\) = \(4, 11\), got \("):
        model(**rows, attention_mask=torch.ones(shape))


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"norm_first": True, "sharing": "layerwise"},
        {"activation_memory": "checkpoint"},
        {"chunk_size": 3},
        {"attention": "full"},
        {"attention": "full", "causal": True, "position_embedding": "rotary"},
        {"window": 4},
        {"causal": True, "window": 5},
    ],
    ids=str,
)
def test_what_is_recorded_leads_to_the_output(build, token_ids, fields, masked):
    model = build(LinformerModel, **fields).train()
    mask = torch.tensor([[0] * 4 + [1] * 7, [1] * 11, [1] * 5 + [0] * 6]) if masked else None
    outputs = model(token_ids(3, 11), attention_mask=mask, output_hidden_states=True, output_attentions=True)
    assert outputs.hidden_states[-1] is outputs.last_hidden_state
    copied = "window" in fields  # slots and window, put side by side
    kept = [*outputs.hidden_states, *(() if copied else outputs.attentions)]
    for tensor in kept:
        tensor.retain_grad()
    outputs.last_hidden_state[0, -1].square().sum().backward()
    for tensor in kept:
        assert tensor.grad is not None and tensor.grad[0].any()
        assert not tensor.grad[1:].any()

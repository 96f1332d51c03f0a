"""Slots chosen by the input: against the literal definition, forward and every gradient, in float64."""

import pytest
import torch
from budgets import MORE_ROUNDINGS, POOL_ROUNDINGS
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close

from torch_linformer.functional import reference
from torch_linformer.functional.dynamic import SegmentPrior, pool, pooling_weights

DOUBLE = {"dtype": torch.float64}
MAX_LEN = 7


def draw_inputs(seed, batch, heads, length, num_slots, width, v_widths):
    """Learned queries, d, a, what is scored and what is pooled: float64, all wanting a gradient; None for one head."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    shapes = [(*([] if heads is None else [heads]), num_slots, width), (num_slots,), (num_slots,)]
    shapes += [(batch, heads or 1, length, x) for x in (width, *v_widths)]
    return [torch.randn(shape, generator=generator, requires_grad=True, **DOUBLE) for shape in shapes]


def trailing(tokens, length):
    return torch.arange(length) >= torch.tensor(tokens)[:, None]


def pooled_by(inputs, tokens=None, **options):
    """:func:`pool` of inputs as :func:`draw_inputs` gives them, rows with so many real tokens."""
    queries, shift, log_steepness, scored, *pooled = inputs
    length, mask = scored.shape[2], None
    if tokens is not None:
        mask = trailing(tokens, length)
    number = torch.tensor([length] if tokens is None else tokens)
    return pool(queries, SegmentPrior.of(shift, log_steepness), scored, pooled, number, padding_mask=mask, **options)


def literal(inputs, tokens=None):
    """One row, one head, one slot at a time, and the padding dropped."""
    queries, *prior, scored = inputs[:4]
    batch, heads, length = scored.shape[:3]
    tokens = [length] * batch if tokens is None else tokens

    def slots(sequence, row, head):
        weight = queries[head] if queries.dim() == 3 else queries
        return reference.dynamic_row(scored[row, head], sequence[row, head], weight, *prior, list(range(tokens[row])))

    return [
        torch.stack([torch.stack([slots(sequence, row, head) for head in range(heads)]) for row in range(batch)])
        for sequence in inputs[4:]
    ]


@st.composite
def pooling_inputs(draw):
    """Inputs of any small sizes, length 0 among them; real tokens of each row, or None; scores at a time."""
    batch, length = draw(st.integers(1, 3)), draw(st.integers(0, MAX_LEN))
    heads, num_slots, width = draw(st.none() | st.integers(1, 2)), draw(st.integers(1, 5)), draw(st.integers(1, 3))
    v_widths = draw(st.lists(st.integers(1, 3), min_size=1, max_size=2))
    sizes = (batch, heads, length, num_slots, width, v_widths)
    rows = st.lists(st.integers(0, length), min_size=batch, max_size=batch)
    return (
        draw_inputs(draw(st.integers(0, 999)), *sizes),
        draw(st.none() | rows),
        draw(st.sampled_from([1, 9, 30, 999])),
    )


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(pooling_inputs())
def test_slots_and_every_gradient_are_those_of_the_definition(gradients, take_at_once, case):
    inputs, tokens, at_once = case
    with pytest.MonkeyPatch.context() as patch:
        take_at_once(patch, pooled_scores=at_once)
        actual = torch.cat(pooled_by(inputs, tokens).slots, dim=-1)
        expected = torch.cat(literal(inputs, tokens), dim=-1)
        assert_close(actual, expected)
        if inputs[3].shape[2] > 0 and (tokens is None or any(tokens)):
            assert_close(gradients(actual, inputs), gradients(expected, inputs))
        else:
            assert not any(gradient.any() for gradient in gradients(actual, inputs))


def test_the_prior_by_hand():
    """Two slots of a row of four tokens, which stand at ¼, ¾, 5/4 and 7/4 segments; the centers at ½ and 3/2."""
    prior = SegmentPrior.of(torch.tensor([0.0, 0.25]), torch.tensor([0.0, 0.5]))
    scores = prior.scores(prior.distances(slice(0, 4), torch.tensor([4])))[0]
    first = [-2 * x**2 for x in (-0.25, 0.25, 0.75, 1.25)]
    second = [-2 * 1.6487213 * x**2 for x in (-1.5, -1.0, -0.5, 0.0)]
    assert_close(scores, torch.tensor([first, second]))


def test_weights_to_look_at_are_those_that_pool():
    inputs = draw_inputs(0, 2, 2, 7, 3, 4, [5])
    queries, shift, log_steepness, scored, sequence = inputs
    mask = trailing([7, 2], 7)
    weights = pooling_weights(queries, SegmentPrior.of(shift, log_steepness), scored, torch.tensor([7, 2]), mask)
    assert_close(weights @ sequence, pooled_by(inputs, [7, 2]).slots[0])
    assert not weights[1, ..., 2:].any()
    assert_close(weights.sum(dim=-1), torch.ones(2, 2, 3, **DOUBLE))


@pytest.mark.parametrize("tokens", [None, [7, 2, 0]], ids=["whole", "padded"])
@pytest.mark.parametrize("cuts", [(3,), (1, 2, 6), (0, 7)], ids=str)
@pytest.mark.parametrize("v_widths", [[5, 1], [4, 4]], ids=["in place", "by SDPA"])
@torch.no_grad()
def test_slots_of_parts_are_joined_to_those_of_the_whole(v_widths, cuts, tokens):
    inputs = draw_inputs(0, 3, None, 7, 3, 4, v_widths)
    inputs[3].mul_(9)  # scores far apart, so that a maximum of one part is no maximum of another
    queries, shift, log_steepness, scored, *pooled = inputs
    mask = None if tokens is None else trailing(tokens, 7)
    number, joined = torch.tensor([7] if tokens is None else tokens), None
    for start, stop in zip((0, *cuts), (*cuts, 7), strict=True):
        prior, part = SegmentPrior.of(shift, log_steepness), slice(start, stop)
        there = None if mask is None else mask[:, part]
        sequences = [x[:, :, part] for x in pooled]
        found = pool(queries, prior, scored[:, :, part], sequences, number, first=start, padding_mask=there)
        joined = found if joined is None else joined.joined(found)
    assert_close(list(joined.slots), literal(inputs, tokens))


@pytest.mark.parametrize("at_once", [40, 2**21], ids=["blocks", "at-once"])
def test_nothing_at_padding_takes_part(gradients, monkeypatch, take_at_once, at_once):
    take_at_once(monkeypatch, pooled_scores=at_once)
    inputs = draw_inputs(0, 3, 2, 7, 3, 4, [4])
    mask = trailing([7, 2, 0], 7)[:, None, :, None]
    found = []
    for value in (0.0, 1e100):  # what stands there is finite: modules put zeros there
        with torch.no_grad():
            for sequence in inputs[3:]:
                sequence.masked_fill_(mask, value)
        slots = pooled_by(inputs, [7, 2, 0]).slots[0]
        found.append([slots, *gradients(slots, inputs)])
        assert not any(gradient.masked_select(mask).any() for gradient in found[-1][4:])
    assert_close(*found, rtol=0.0, atol=0.0)


def test_no_scores_are_kept_for_the_backward_pass():
    sizes = {"heads": 2, "length": 512, "num_slots": 64, "width": 4}
    inputs, kept = draw_inputs(0, 1, *sizes.values(), [3]), []
    with saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        result = pooled_by(inputs)
    results = [*result.slots, result.log_mass]
    assert kept and sum(kept) <= sum(x.numel() for x in [*inputs, *results]) < 512 * 64


def test_gradients_of_gradients_are_refused():
    inputs = draw_inputs(0, 1, None, 5, 2, 3, [3])
    total = pooled_by(inputs).slots[0].square().sum()
    (gradient,) = torch.autograd.grad(total, inputs[:1], create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def test_the_transforms_of_torch_func_give_the_same(gradients):
    inputs = draw_inputs(0, 2, 2, 7, 3, 4, [5])
    plain = [x.detach() for x in inputs]

    def total(*given):
        return pooled_by(given, [7, 2]).slots[0].square().sum()

    expected = torch.autograd.grad(total(*inputs), inputs)
    assert_close(torch.func.grad(total, argnums=tuple(range(5)))(*plain), expected)
    stacked = torch.stack([plain[4], 2 * plain[4]])
    mapped = torch.func.vmap(lambda sequence: pooled_by([*plain[:4], sequence]).slots[0])(stacked)
    assert_close(mapped[1], pooled_by([*plain[:4], 2 * plain[4]]).slots[0])


def low_precision_results(function, inputs, gradients):
    """Slots and gradients in float64, of a function of the inputs."""
    slots = function(inputs)
    return [x.double() for x in [slots, *gradients(slots, inputs)]]


def plainly(inputs):
    """The definition in the type of the inputs, with a softmax in float32 as PyTorch's own."""
    queries, shift, log_steepness, scored, sequence = inputs
    prior = SegmentPrior.of(shift, log_steepness)
    scores = (queries @ scored.mT).to(torch.promote_types(scored.dtype, torch.float32))
    scores = scores + prior.scores(prior.distances(slice(0, scored.shape[2]), torch.tensor([scored.shape[2]])))
    return (torch.softmax(scores, dim=-1).to(sequence.dtype) @ sequence).to(scores.dtype)


EXTREMES = {
    "as drawn": lambda queries, *others: queries,
    "large scores": lambda queries, *others: queries.mul_(30),
    "huge scores": lambda queries, *others: queries.mul_(1000),
    "steep priors": lambda queries, shift, log_steepness, *others: log_steepness.add_(5),
    "far shifts": lambda queries, shift, *others: shift.mul_(100),
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("at_once", [2**9, 2**21], ids=["blocks", "at-once"])
@pytest.mark.parametrize("extreme", EXTREMES)
def test_errors_stay_within_three_times_those_of_the_plain_form(
    gradients, monkeypatch, take_at_once, dtype, at_once, extreme
):
    take_at_once(monkeypatch, pooled_scores=at_once)
    exact = [x.detach().to(dtype).double() for x in draw_inputs(0, 4, None, 300, 16, 16, [16])]
    EXTREMES[extreme](*exact)
    exact = [x.to(dtype).double().requires_grad_() for x in exact]
    low = [x.detach().to(dtype).requires_grad_() for x in exact]
    truth = low_precision_results(plainly, exact, gradients)
    naive = low_precision_results(plainly, low, gradients)
    actual = low_precision_results(lambda inputs: pooled_by(inputs).slots[0], low, gradients)
    for true, plain, fast in zip(truth, naive, actual, strict=True):
        rounding = torch.finfo(dtype).eps * true.square().mean().sqrt()
        allowed = MORE_ROUNDINGS * (plain - true).square().mean().sqrt() + rounding
        assert (fast - true).square().mean().sqrt() <= allowed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_runs_forward_and_backward(dtype):
    inputs = [x.detach().float().requires_grad_() for x in draw_inputs(0, 2, 2, 7, 3, 4, [4])]
    with torch.autocast(torch.get_default_device().type, dtype=dtype):
        slots = pooled_by(inputs, [7, 2]).slots[0]
    slots.square().sum().backward()
    expected = literal(inputs, [7, 2])[0]
    assert_close(slots, expected, atol=POOL_ROUNDINGS * torch.finfo(dtype).eps, rtol=0.0)
    assert all(x.grad.dtype == torch.float32 and x.grad.isfinite().all() for x in inputs)


def test_float16_holds_the_slots_of_many_tokens():
    """One slot of 70,000 values of 8: their sum is beyond the largest number of float16, 65,504."""
    sequence = torch.full((1, 1, 70_000, 2), 8.0, dtype=torch.float16)
    nothing = torch.zeros(1, 2, dtype=torch.float16)
    found = pooled_by([nothing, nothing[:, 0], nothing[:, 0], sequence, sequence])
    assert_close(found.slots[0], torch.full((1, 1, 1, 2), 8.0), atol=0.01, rtol=0.0)

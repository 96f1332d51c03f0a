"""Slots and a local window in one softmax: against the literal definition, forward and every gradient."""

import pytest
import torch
from budgets import JOINED, ROUNDINGS, TWICE
from calls import attend, attend_with_window
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.functional import reference, use_implementation, window

DOUBLE = {"dtype": torch.float64}


def draw_inputs(seed, batch, heads, queries, positions, num_slots, width, v_width):
    """Query, slots of keys and values, keys and values: float64, all wanting a gradient."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    shapes = [(queries, width), (num_slots, width), (num_slots, v_width), (positions, width), (positions, v_width)]
    return [torch.randn(batch, heads, *s, generator=generator, requires_grad=True, **DOUBLE) for s in shapes]


def sees_something(inputs, reach, slot_padding, key_padding, offset):
    """Bool ``(B, N)``: whether a query has a slot or a position to attend to."""
    query, slots_k, _, key, _ = inputs
    slots = torch.full((1, slots_k.shape[2]), False) if slot_padding is None else slot_padding
    padding = torch.full((1, key.shape[2]), False) if key_padding is None else key_padding
    distance = (torch.arange(query.shape[2]).unsqueeze(-1) + offset - torch.arange(key.shape[2])).abs()
    near = ((distance <= reach) & ~padding.unsqueeze(1)).any(dim=-1)
    return ((~slots).any(dim=-1, keepdim=True) | near).expand(query.shape[0], -1)


def assert_is_the_definition(inputs, reach, gradients, **options):
    expected = reference.windowed_attention(*inputs, reach, **options)
    seen = sees_something(
        inputs, reach, options.get("slot_padding"), options.get("key_padding"), options.get("offset", 0)
    )
    theirs = expected.transpose(1, 2)[seen]
    expected_gradients = gradients(theirs, inputs) if seen.any() else None
    for need_weights in (False, True):
        actual, weights = attend_with_window(*inputs, reach, need_weights=need_weights, **options)
        assert actual.isfinite().all()
        mine = actual.transpose(1, 2)[seen]
        assert_close(mine, theirs)
        if expected_gradients is not None:
            assert_close(gradients(mine, inputs), expected_gradients)
    with torch.no_grad():  # by two softmaxes, where values are as wide as keys
        inferred, _ = attend_with_window(*inputs, reach, **options)
    assert inferred.isfinite().all()
    assert_close(inferred.transpose(1, 2)[seen], theirs)
    num_slots = inputs[1].shape[2]
    assert weights.shape == (*actual.shape[:3], num_slots + 2 * reach + 1)
    assert_close(weights.sum(dim=-1), torch.ones(actual.shape[:3], **DOUBLE))
    assert_weights_give(actual, weights, inputs, reach, options.get("offset", 0))


def assert_weights_give(output, weights, inputs, reach, offset):
    """Slots first, then the positions from ``reach`` before a query to ``reach`` behind it."""
    _, _, slots_v, key, value = inputs
    expected = weights[..., : slots_v.shape[2]] @ slots_v
    for query in range(output.shape[2]):
        for step in range(2 * reach + 1):
            position = offset + query + step - reach
            weight = weights[:, :, query, slots_v.shape[2] + step].unsqueeze(-1)
            if 0 <= position < key.shape[2]:
                expected[:, :, query] += weight * value[:, :, position]
    assert_close(expected, output)


@st.composite
def windowed_inputs(draw):
    """Inputs of any small sizes, queries that stand anywhere, and masks of slots and of positions, or None."""
    batch, positions, num_slots = draw(st.integers(1, 2)), draw(st.integers(1, 9)), draw(st.integers(1, 3))
    offset = draw(st.integers(0, min(positions, 4)))
    sizes = (batch, draw(st.integers(1, 2)), draw(st.integers(1, 9)), positions, num_slots)
    inputs = draw_inputs(draw(st.integers(0, 999)), *sizes, draw(st.integers(1, 3)), draw(st.integers(1, 3)))

    def mask_of(rows, size):
        row = st.lists(st.booleans(), min_size=size, max_size=size)
        return torch.tensor([draw(row) for _ in range(rows)])

    options = {"offset": offset}
    if draw(st.booleans()):
        options["slot_padding"] = mask_of(batch, num_slots)
    if draw(st.booleans()):
        options["key_padding"] = mask_of(batch, positions)
    return inputs, options


@settings(max_examples=80, deadline=None, derandomize=True, database=None)
@given(case=windowed_inputs(), reach=st.integers(0, 11))
def test_output_weights_and_every_gradient_are_those_of_the_definition(gradients, case, reach):
    inputs, options = case
    assert_is_the_definition(inputs, reach, gradients, **options)


@pytest.mark.parametrize(("block", "scores"), [(2, 2**21), (2, 1), (2, 300), (3, 2**21), (64, 2**21)])
@pytest.mark.parametrize("reach", [0, 1, 5, 23])
def test_sizes_of_distinct_primes_in_blocks_of_any_size(gradients, monkeypatch, take_at_once, reach, block, scores):
    """Of blocks of 2 there are four, worked on together, one at a time, and for the shorter windows two at a time."""
    take_at_once(monkeypatch, window_block=block, window_scores=scores)
    inputs = draw_inputs(0, 2, 3, 7, 17, 5, 11, 13)
    options = {
        "slot_padding": torch.tensor([[False] * 5, [True, False, True, False, True]]),
        "key_padding": torch.arange(17) >= torch.tensor([[17], [6]]),
        "offset": 3,
    }
    assert_is_the_definition(inputs, reach, gradients, **options)


def test_one_row_of_slot_padding_serves_the_batch(gradients):
    inputs = draw_inputs(0, 3, 2, 7, 7, 3, 2, 5)
    padding = torch.tensor([[False, True, False]])
    actual, _ = attend_with_window(*inputs, 1, slot_padding=padding)
    expected = reference.windowed_attention(*inputs, 1, slot_padding=padding.expand(3, -1))
    assert_close(actual, expected)


def test_a_window_over_everything_is_attention_over_slots_and_positions(gradients):
    inputs = draw_inputs(0, 2, 3, 7, 7, 5, 2, 11)
    query, slots_k, slots_v, key, value = inputs
    actual, _ = attend_with_window(*inputs, 7)
    expected = F.scaled_dot_product_attention(query, torch.cat([slots_k, key], 2), torch.cat([slots_v, value], 2))
    assert_close(actual, expected)
    assert_close(gradients(actual, inputs), gradients(expected, inputs))


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_without_slots_to_see_it_is_ordinary_attention(gradients, padded):
    inputs = draw_inputs(0, 2, 3, 7, 7, 5, 2, 11)
    wanted = [inputs[0], *inputs[3:]]
    mask = torch.arange(7) >= torch.tensor([[7], [3]]) if padded else None
    none = torch.ones(2, 5, dtype=torch.bool)
    actual, _ = attend_with_window(*inputs, 6, slot_padding=none, key_padding=mask)
    expected, _ = attend(*wanted, padding_mask=mask)
    assert_close(actual, expected)
    assert_close(gradients(actual, wanted), gradients(expected, wanted))


@pytest.mark.parametrize("padded", [False, True], ids=["beyond", "padding"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_without_slots_a_query_that_reaches_no_key_gets_nothing(gradients, padded, need_weights):
    inputs = draw_inputs(0, 2, 3, 9, 4, 0, 5, 5)
    mask = torch.tensor([[False, True, True, True], [False] * 4]) if padded else None
    slot_padding = torch.ones(1, 0, dtype=torch.bool) if padded else None
    options = {"key_padding": mask, "slot_padding": slot_padding, "need_weights": need_weights}
    output, weights = attend_with_window(*inputs, 1, **options)
    seen = torch.arange(9) < torch.tensor([[2] if padded else [5], [5]])
    assert not output.transpose(1, 2)[~seen].any()
    if weights is not None:
        assert_close(weights.sum(dim=-1), seen[:, None].expand(2, 3, 9).double())
    of_query = gradients(output, inputs)[0]
    assert of_query.isfinite().all() and not of_query.transpose(1, 2)[~seen].any()


def test_rows_of_padding_alone_are_finite_and_so_are_their_gradients(gradients):
    inputs = draw_inputs(0, 2, 2, 7, 7, 3, 2, 5)
    masks = [torch.tensor([[True] * size, [False] * size]) for size in (3, 7)]
    output, _ = attend_with_window(*inputs, 1, slot_padding=masks[0], key_padding=masks[1])
    assert all(x.isfinite().all() for x in [output, *gradients(output, inputs)])


@pytest.mark.parametrize("length", [0, 1, 70])
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_a_batch_without_rows(length, dropout_p):
    inputs = draw_inputs(0, 0, 2, length, length, 7, 3, 5)
    output, _ = attend_with_window(*inputs, 1, dropout_p=dropout_p)
    _, weights = attend_with_window(*inputs, 1, need_weights=True)
    assert output.shape == (0, 2, length, 5) and weights.shape == (0, 2, length, 7 + 3)
    output.sum().backward()


def test_scale_takes_the_place_of_the_width_under_the_root():
    inputs = draw_inputs(0, 2, 2, 7, 7, 3, 4, 5)
    expected, _ = attend_with_window(2 * inputs[0], *inputs[1:], 1)
    assert_close(attend_with_window(*inputs, 1, scale=1.0)[0], expected)


def test_dropout_scales_what_is_left_so_that_the_mean_stays():
    torch.manual_seed(0)
    query, slots = torch.zeros(500, 2, 7, 3), torch.zeros(500, 2, 5, 3)
    ones = (torch.ones(500, 2, 5, 1), query, torch.ones(500, 2, 7, 1))
    output, _ = attend_with_window(query, slots, *ones, 1, dropout_p=0.25)
    choices = torch.tensor([7, 8, 8, 8, 8, 8, 7]).view(7, 1)
    kept = (output * choices * 0.75).round()
    assert_close(output, kept / (choices * 0.75))
    assert (kept == choices).any() and (kept < choices).any()
    assert output.mean().item() == pytest.approx(1.0, abs=0.02)


def test_a_query_sees_no_position_beyond_its_reach():
    query, slots_k, slots_v, key, value = draw_inputs(0, 1, 1, 9, 9, 2, 3, 3)
    output, _ = attend_with_window(query, slots_k, slots_v, key, value, 2)
    for position in range(9):
        for gradient in torch.autograd.grad(output[:, :, position].sum(), [key, value], retain_graph=True):
            touched = gradient.ne(0).any(dim=-1)[0, 0]
            assert touched.tolist() == [abs(other - position) <= 2 for other in range(9)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_in_low_precision_stays_near_that_of_the_plain_formula(gradients, monkeypatch, take_at_once, dtype):
    take_at_once(monkeypatch, window_block=16)
    low = [x.detach().to(dtype) for x in draw_inputs(0, 2, 2, 61, 61, 5, 16, 16)]

    def plain(query, slots_k, slots_v, key, value):
        distance = (torch.arange(61).unsqueeze(-1) - torch.arange(61)).abs()
        near = torch.cat([torch.ones(61, 5, dtype=torch.bool), distance <= 3], dim=-1)
        scores = query @ torch.cat([slots_k, key], dim=2).mT / 4
        weights = torch.softmax(scores.masked_fill(~near, float("-inf")), dim=-1)
        return weights @ torch.cat([slots_v, value], dim=2)

    def run(function, inputs):
        inputs = [x.clone().requires_grad_() for x in inputs]
        output = function(*inputs)
        return [output, *gradients(output, inputs)]

    fast = run(lambda *x: attend_with_window(*x, 3)[0], low)
    for truth, naive, actual in zip(run(plain, [x.double() for x in low]), run(plain, low), fast, strict=True):
        rounding = ROUNDINGS * torch.finfo(dtype).eps * truth.abs().max()
        assert actual.dtype == dtype
        assert (actual - truth).abs().max() <= TWICE * (naive - truth).abs().max() + rounding


@pytest.fixture
def joined(monkeypatch):
    """How often two softmaxes were joined, by torch: some AMD processors would take oneDNN in bfloat16."""
    calls, flash = [], window.WINDOWED_ATTENTION.table["flash"]

    def counting(*call):
        calls.append(call)
        return flash.compute(*call)

    monkeypatch.setitem(window.WINDOWED_ATTENTION.table, "flash", flash._replace(compute=counting))
    with use_implementation("flash", "torch"):
        yield calls


@pytest.mark.cpu("elsewhere one softmax is computed")
@pytest.mark.parametrize("length", [5, 32, 64, 200])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("laid", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)], ids=["rows", "heads inside", "columns"])
def test_in_inference_two_softmaxes_are_joined(joined, length, padded, biased, laid):
    """Over one block, a whole one, and several with a piece; rows of which nothing is left stay finite."""
    inputs = [x.detach() for x in draw_inputs(0, 3, 4, length, length, 9, 8, 8)]
    inputs = [x.permute(laid).contiguous().permute(laid) for x in inputs]
    options = {"slot_bias": torch.linspace(-3, 3, 36, **DOUBLE).view(1, 4, 9)} if biased else {}
    real = torch.ones(3, length, dtype=torch.bool)
    if padded:
        real = torch.arange(length) < torch.tensor([length, length // 3, 0])[:, None]
        options |= {"slot_padding": torch.arange(9) >= torch.tensor([9, 4, 0])[:, None], "key_padding": ~real}
    actual, _ = attend_with_window(*inputs, 5, **options)
    assert len(joined) == 1 and actual.isfinite().all()
    expected, _ = attend_with_window(*inputs, 5, need_weights=True, **options)  # one softmax, by its definition
    assert len(joined) == 1
    assert_close(actual.transpose(1, 2)[real], expected.transpose(1, 2)[real])


@pytest.mark.cpu("elsewhere one softmax is computed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_joined_softmaxes_are_as_exact_as_one(joined, dtype):
    inputs = [x.detach() for x in draw_inputs(0, 2, 3, 150, 150, 9, 16, 16)]
    bias = torch.linspace(-3, 3, 27, **DOUBLE).view(1, 3, 9)
    expected, _ = attend_with_window(*inputs, 5, slot_bias=bias, need_weights=True)
    low = [x.to(dtype) for x in inputs]
    by_one = attend_with_window(*[x.requires_grad_() for x in low], 5, slot_bias=bias.to(dtype))[0].detach()
    assert not joined  # with a gradient
    by_two = attend_with_window(*[x.detach() for x in low], 5, slot_bias=bias.to(dtype))[0]
    assert joined and by_two.dtype == dtype
    errors = [(found.double() - expected).square().mean() for found in (by_one, by_two)]
    assert errors[1] <= JOINED * errors[0]


@pytest.mark.cpu("elsewhere one softmax is computed")
@pytest.mark.parametrize("padded", [False, True], ids=["", "padded"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_joined_softmaxes_of_scores_as_low_as_they_come(joined, dtype, padded):
    """About −50,000 for everything that is seen: the largest negative number of float16 is −65,504."""
    direction = torch.full((16,), 4.0, **DOUBLE)
    query, slots_k, slots_v, key, value = (x.detach() for x in draw_inputs(0, 2, 3, 150, 150, 9, 16, 16))
    inputs = [x.to(dtype) for x in (200 * direction + query, slots_k - 3.9 * direction, slots_v)]
    inputs += [x.to(dtype) for x in (key - 3.9 * direction, value)]
    options = {"slot_padding": torch.arange(9) >= torch.tensor([9, 4])[:, None]} if padded else {}
    expected, _ = attend_with_window(*[x.double() for x in inputs], 5, scale=0.25, need_weights=True, **options)
    by_one, _ = attend_with_window(*inputs, 5, scale=0.25, need_weights=True, **options)
    assert not joined
    by_two, _ = attend_with_window(*inputs, 5, scale=0.25, **options)
    errors = [(found.double() - expected).square().mean().sqrt() for found in (by_one, by_two)]
    rounding = ROUNDINGS * torch.finfo(dtype).eps * expected.square().mean().sqrt()
    assert joined and errors[1] <= JOINED * errors[0] + rounding


@pytest.mark.cpu("elsewhere one softmax is computed")
def test_under_autocast_they_are_joined_in_its_type(joined):
    inputs = [x.detach().float() for x in draw_inputs(0, 2, 3, 150, 150, 9, 16, 16)]
    with torch.autocast("cpu", torch.bfloat16):
        actual = attend_with_window(*inputs, 5)[0]
    assert joined and actual.dtype == torch.bfloat16

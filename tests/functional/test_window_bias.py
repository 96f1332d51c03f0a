"""A bias of the distance in a window: against the literal definition, forward and every gradient, its own included."""

import pytest
import torch
from budgets import JOINED, ROUNDINGS, TWICE
from calls import attend_with_window
from torch.testing import assert_close

from torch_linformer.functional import Slots, Window, implementations, reference, slot_attention, use_implementation

DOUBLE = {"dtype": torch.float64}
MASKS = {
    "slot_padding": torch.tensor([[False] * 5, [True, False, True, False, True]]),
    "key_padding": torch.arange(17) >= torch.tensor([[17], [6]]),
    "offset": 3,
}


def draw(seed, *shapes, dtype=torch.float64):
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    return [torch.randn(shape, generator=generator, **DOUBLE).to(dtype).requires_grad_() for shape in shapes]


def draw_inputs(queries=7, positions=17, num_slots=5, width=11, v_width=13, batch=2, heads=3):
    """Query, slots of keys and values, keys and values."""
    shapes = [(queries, width), (num_slots, width), (num_slots, v_width), (positions, width), (positions, v_width)]
    return draw(0, *((batch, heads, *shape) for shape in shapes))


@pytest.mark.parametrize(
    ("block", "scores", "heads"), [(2, 2**21, 3), (2, 1, 1), (2, 300, 3), (64, 2**21, 1), (64, 2**21, 3)]
)
@pytest.mark.parametrize("reach", [0, 1, 5, 23])
def test_it_is_the_definition(gradients, monkeypatch, take_at_once, reach, block, scores, heads):
    take_at_once(monkeypatch, window_block=block, window_scores=scores)
    inputs, [bias] = draw_inputs(), draw(1, (heads, 2 * reach + 1))
    expected = reference.windowed_attention(*inputs, reach, **MASKS, window_bias=bias)
    wanted = gradients(expected, [*inputs, bias])
    for need_weights in (False, True):
        actual, weights = attend_with_window(*inputs, reach, **MASKS, window_bias=bias, need_weights=need_weights)
        assert_close((actual, gradients(actual, [*inputs, bias])), (expected, wanted))
    assert_close(weights.sum(dim=-1), torch.ones(2, 3, 7, **DOUBLE))
    with torch.no_grad():
        assert_close(attend_with_window(*inputs, reach, **MASKS, window_bias=bias)[0], expected)
    still = bias.detach()  # what nobody learns goes through SDPA
    actual, _ = attend_with_window(*inputs, reach, **MASKS, window_bias=still)
    assert_close((actual, gradients(actual, inputs)), (expected, wanted[:-1]))


@pytest.mark.parametrize("mask", [None, torch.arange(7) >= torch.tensor([[7], [3]])], ids=["whole", "padded"])
def test_a_window_over_everything_without_slots_is_attention_with_a_bias_of_pairs(gradients, mask):
    inputs, [bias] = draw_inputs(7, 7, 0), draw(1, (3, 13))
    query, _, _, key, value = inputs
    allowed = torch.ones(2, 1, 1, 7, dtype=torch.bool) if mask is None else ~mask[:, None, None]
    pairs = torch.stack([bias[:, 6 - place : 13 - place] for place in range(7)], dim=1)
    scores = (query @ key.mT / 11**0.5 + pairs).masked_fill(~allowed, float("-inf"))
    expected = torch.softmax(scores, dim=-1) @ value
    actual, _ = attend_with_window(*inputs, 6, key_padding=mask, window_bias=bias)
    tensors = [query, key, value, bias]
    assert_close((actual, gradients(actual, tensors)), (expected, gradients(expected, tensors)))


def test_the_same_for_all_distances_is_a_bias_of_slots_the_other_way_round():
    inputs = draw_inputs()
    to_window, _ = attend_with_window(*inputs, 2, window_bias=torch.full((1, 5), 1.5, **DOUBLE))
    to_slots, _ = attend_with_window(*inputs, 2, slot_bias=torch.full((1, 1, 5), -1.5, **DOUBLE))
    assert_close(to_window, to_slots)


def test_rows_of_padding_are_finite_and_so_are_their_gradients(gradients):
    inputs, [bias] = draw_inputs(7, 7, 3), draw(1, (3, 3))
    masks = [torch.tensor([[True] * size, [False] * size]) for size in (3, 7)]
    output, _ = attend_with_window(*inputs, 1, slot_padding=masks[0], key_padding=masks[1], window_bias=bias)
    assert all(x.isfinite().all() for x in [output, *gradients(output, [*inputs, bias])])


def test_several_heads_of_queries_for_one_of_keys(gradients):
    query, *others = draw(0, (2, 4, 9, 3), *[(2, 2, 5, 3)] * 2, *[(2, 2, 9, 3)] * 2)
    [bias] = draw(1, (4, 5))
    repeated = [x.repeat_interleave(2, dim=1) for x in others]
    expected = reference.windowed_attention(query, *repeated, 2, window_bias=bias)
    actual, _ = attend_with_window(query, *others, 2, window_bias=bias)
    tensors = [query, *others, bias]
    assert_close((actual, gradients(actual, tensors)), (expected, gradients(expected, tensors)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_in_low_precision_stays_near_that_of_the_plain_formula(gradients, monkeypatch, take_at_once, dtype):
    take_at_once(monkeypatch, window_block=16)
    low = [*draw_inputs(61, 61, 5, 16, 16), *draw(1, (3, 7))]
    low = [x.detach().to(dtype) for x in low]

    def plain(query, slots_k, slots_v, key, value, bias):
        distance = torch.arange(61) - torch.arange(61).unsqueeze(-1)
        hidden = torch.cat([torch.zeros(61, 5, dtype=torch.bool), distance.abs() > 3], dim=-1)
        added = torch.nn.functional.pad(bias[:, distance.clamp(-3, 3) + 3], (5, 0))
        scores = query @ torch.cat([slots_k, key], dim=2).mT / 4 + added
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ torch.cat([slots_v, value], 2)

    def run(function, inputs):
        inputs = [x.clone().requires_grad_() for x in inputs]
        output = function(*inputs)
        return [output, *gradients(output, inputs)]

    fast = run(lambda *x: attend_with_window(*x[:5], 3, window_bias=x[5])[0], low)
    for truth, naive, actual in zip(run(plain, [x.double() for x in low]), run(plain, low), fast, strict=True):
        rounding = ROUNDINGS * torch.finfo(dtype).eps * truth.abs().max()
        assert actual.dtype == dtype
        assert (actual - truth).abs().max() <= TWICE * (naive - truth).abs().max() + rounding


@pytest.mark.cpu("elsewhere one softmax is computed")
@pytest.mark.parametrize("heads", [1, 3])
@pytest.mark.parametrize("length", [5, 64, 200])
@torch.no_grad()
def test_joined_softmaxes_have_it_too(length, heads):
    inputs, [bias] = draw_inputs(length, length, 9, 8, 8), draw(1, (heads, 11))
    masks = {"slot_padding": torch.arange(9) >= torch.tensor([[9], [0]])}
    masks["key_padding"] = torch.arange(length) >= torch.tensor([[length], [length // 3]])
    with use_implementation("flash") as ran:
        actual, _ = attend_with_window(*inputs, 5, **masks, window_bias=bias)
    assert ran == {"windowed attention": {"flash"}}
    expected, _ = attend_with_window(*inputs, 5, **masks, window_bias=bias, need_weights=True)
    real = ~masks["key_padding"]
    assert_close(actual.transpose(1, 2)[real], expected.transpose(1, 2)[real])


@pytest.mark.cpu("elsewhere one softmax is computed")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_joined_softmaxes_are_as_exact_as_one(dtype):
    inputs = [*draw_inputs(150, 150, 9, 16, 16), *draw(1, (3, 11))]
    low = [x.to(dtype) for x in inputs]
    expected, _ = attend_with_window(*[x.double() for x in low[:5]], 5, window_bias=low[5].double(), need_weights=True)
    by_one, _ = attend_with_window(*low[:5], 5, window_bias=low[5], need_weights=True)
    with use_implementation("flash"):
        by_two, _ = attend_with_window(*low[:5], 5, window_bias=low[5])
    errors = [(output.double() - expected).square().mean() for output in (by_one, by_two)]
    assert by_two.dtype == dtype and errors[1] <= JOINED * errors[0]


def test_flex_attention_says_that_it_cannot():
    query, slots_k, slots_v, key, value = draw_inputs(7, 7, 5, 16, 16)
    window = Window(key, value, 2, bias=torch.zeros(1, 5, **DOUBLE))
    with pytest.raises(ValueError, match="flex cannot compute this windowed attention: it adds no bias"):
        slot_attention(query, Slots(slots_k, slots_v), window=window, impl="flex")
    needs = {name: needs for operation, name, needs, _ in implementations() if operation == "windowed attention"}
    assert "no bias of a window" in needs["flex"]

"""Slots and a local window in one softmax: every way to compute it against the definition, with every gradient."""

import pytest
import torch
from budgets import JOINED, ROUNDINGS, TWICE
from calls import assert_errs_as_the_plain_formula, attend_with_window
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.nn.attention import flex_attention as flex_module
from torch.testing import assert_close

from torch_linformer.functional import attention, reference, use_implementation
from torch_linformer.functional.softmax import repeat_heads

pytestmark = [
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # torch's own
]
DOUBLE = {"dtype": torch.float64}
ONE_SOFTMAX = "elsewhere one softmax is computed"
CPU_WAYS = {"flash": ONE_SOFTMAX, "flash, training": ONE_SOFTMAX, "flex": "the plain formula of FlexAttention"}
WAYS = [
    "training",
    "still biases",  # which nobody learns, and which go through SDPA
    "weights",
    *(pytest.param(way, marks=pytest.mark.cpu(reason)) for way, reason in CPU_WAYS.items()),
]


def draw_inputs(seed, batch, heads, queries, positions, num_slots, width, v_width, kv_heads=None):
    """Query, slots of keys and values, keys and values: float64, all wanting a gradient."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    shapes = [(queries, width), (num_slots, width), (num_slots, v_width), (positions, width), (positions, v_width)]
    numbers = [heads] + [kv_heads or heads] * 4
    return [
        torch.randn(batch, number, *shape, generator=generator, requires_grad=True, **DOUBLE)
        for number, shape in zip(numbers, shapes, strict=True)
    ]


def draw_bias(*shape):
    generator = torch.Generator(torch.get_default_device()).manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, requires_grad=True, **DOUBLE)


def assert_is_the_definition(way, inputs, reach, gradients, **options):
    """Queries that see nothing get zeros, and no gradient."""
    query, *others = inputs
    literal = {
        name: options[name].expand(len(query), -1) for name in ("slot_padding", "key_padding") if name in options
    }
    literal |= {"offset": options.get("offset", 0), "biases": (options.get("slot_bias"), options.get("window_bias"))}
    expected = reference.windowed_attention(query, *(repeat_heads(x, query.shape[1]) for x in others), reach, **literal)
    biases = {name: options[name] for name in ("slot_bias", "window_bias") if options.get(name) is not None}
    leaves, call = [*inputs, *biases.values()], {}
    if way in ("flash", "flash, training"):
        if way == "flash, training":  # a window's bias gets no gradient
            options = {name: x.detach() if name == "window_bias" else x for name, x in options.items()}
            leaves = [*inputs, *(x for name, x in biases.items() if name == "slot_bias")]
        with torch.set_grad_enabled(way != "flash"), use_implementation("flash", "torch") as ran:
            actual, _ = attend_with_window(*inputs, reach, **options)
        one_width = others[1].shape[-1] == query.shape[-1] and others[0].shape[2] > 0
        assert ran == {"windowed attention": {"flash" if one_width else "torch"}}
        assert_close(actual.detach(), expected.detach())
        if way == "flash, training":
            expected = expected + 0 * sum(leaf.sum() for leaf in leaves)
            assert_close(gradients(actual, leaves), gradients(expected, leaves))
        return
    if way in ("training", "still biases"):
        call = {"impl": "torch"}
    if way == "still biases":
        options, leaves = options | {name: bias.detach() for name, bias in biases.items()}, inputs
    if way == "flex":
        if "window_bias" in biases:
            return  # it says that it has none: tests/functional/test_flex_window.py
        call = {"impl": "flex"}
    with pytest.MonkeyPatch.context() as patch:
        if way == "flex":  # on a CPU it refuses gradients in one check, but its plain formula has them
            patch.setattr(flex_module, "_validate_device", lambda query, key, value: None)
            torch._dynamo.reset()  # each shape is recorded anew, and there is a limit to how often
        actual, weights = attend_with_window(*inputs, reach, **options, **call, need_weights=way == "weights")
        assert_close(actual, expected)
        expected = expected + 0 * sum(leaf.sum() for leaf in leaves)  # where nobody sees anything the gradient is 0
        assert_close(gradients(actual, leaves), gradients(expected, leaves))
    assert (weights is not None) == (way == "weights")
    if weights is not None:
        num_slots, sums = others[0].shape[2], weights.sum(dim=-1)
        assert weights.shape == (*actual.shape[:3], num_slots + 2 * reach + 1)
        assert_close(sums, sums.round())
        assert not actual[sums < 0.5].any()
        assert_weights_give(actual, weights, inputs, reach, options.get("offset", 0))


def assert_weights_give(output, weights, inputs, reach, offset):
    """Slots first, then the positions from ``reach`` before a query to ``reach`` after it."""
    slots_v, value = (repeat_heads(inputs[index], output.shape[1]) for index in (2, 4))
    expected = weights[..., : slots_v.shape[2]] @ slots_v
    for query in range(output.shape[2]):
        for step in range(2 * reach + 1):
            position = offset + query + step - reach
            weight = weights[:, :, query, slots_v.shape[2] + step].unsqueeze(-1)
            if 0 <= position < value.shape[2]:
                expected[:, :, query] += weight * value[:, :, position]
    assert_close(expected, output)


@st.composite
def windowed_inputs(draw):
    """Inputs of any small sizes, queries that stand anywhere, masks and biases of slots and of positions, or None."""
    batch, positions, num_slots = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(0, 3))
    kv_heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (2, 2)]))
    heads, offset, reach = kv_heads * groups, draw(st.integers(0, min(positions, 4))), draw(st.integers(0, 11))
    widths = draw(st.sampled_from([(3, 2), (1, 3), (4, 4), (2, 2)]))
    sizes = (batch, heads, draw(st.integers(1, 9)), positions, num_slots, *widths, kv_heads)
    inputs, options = draw_inputs(draw(st.integers(0, 999)), *sizes), {"offset": offset}

    def mask_of(rows, size):
        row = st.lists(st.booleans(), min_size=size, max_size=size)
        return torch.tensor([draw(row) for _ in range(rows)], dtype=torch.bool)

    if draw(st.booleans()):
        options["slot_padding"] = mask_of(draw(st.sampled_from([1, batch])), num_slots)
    if draw(st.booleans()):
        options["key_padding"] = mask_of(draw(st.sampled_from([1, batch])), positions)
    if num_slots > 0 and draw(st.booleans()):
        options["slot_bias"] = draw_bias(
            draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), num_slots
        )
    if draw(st.booleans()):
        options["window_bias"] = draw_bias(draw(st.sampled_from([1, heads])), 2 * reach + 1)
    return inputs, reach, options, draw(st.sampled_from([(2, 1), (2, 300), (3, 2**21), (64, 2**21)]))


def join_at_once(patch, block, scores):
    for name in ("BLOCK", "TRAINED_BLOCK"):
        patch.setattr(attention, name, block)
    for name in ("SCORES", "GRADIENT_SCORES"):
        patch.setattr(attention, name, scores)


@pytest.mark.parametrize("way", WAYS)
def test_every_way_is_the_definition(gradients, take_at_once, way):
    @settings(max_examples=25 if way == "flex" else 60, deadline=None, derandomize=True, database=None)
    @given(windowed_inputs())
    def check(case):
        inputs, reach, options, (block, scores) = case
        with pytest.MonkeyPatch.context() as patch:
            take_at_once(patch, window_block=block, window_scores=scores)
            join_at_once(patch, block, scores)
            assert_is_the_definition(way, inputs, reach, gradients, **options)

    check()


@pytest.mark.parametrize("way", CPU_WAYS)
@pytest.mark.parametrize("position", range(12))
def test_one_hidden_position(gradients, monkeypatch, way, position):
    """Of the parts of blocks that see none of it, all have one mask."""
    join_at_once(monkeypatch, block=2, scores=1)
    hidden = torch.arange(12)[None] == position
    assert_is_the_definition(way, draw_inputs(0, 1, 2, 8, 12, 3, 2, 2), 1, gradients, offset=2, key_padding=hidden)


@pytest.mark.parametrize("biases", [(), ("slot_bias",), ("slot_bias", "window_bias")], ids=["", "slots", "both"])
@pytest.mark.parametrize("reach", [0, 1, 5, 23])
@pytest.mark.parametrize("way", WAYS)
def test_sizes_of_distinct_primes(gradients, monkeypatch, take_at_once, way, reach, biases):
    """The second row has real positions only before its sixth; there are four blocks of queries, one or two at once."""
    take_at_once(monkeypatch, window_block=2, window_scores=300)
    options = {
        "slot_padding": torch.tensor([[False] * 5, [True, False, True, False, True]]),
        "key_padding": torch.arange(17) >= torch.tensor([[17], [6]]),
        "offset": 3,
    }
    drawn = {"slot_bias": draw_bias(2, 3, 5), "window_bias": draw_bias(3, 2 * reach + 1)}
    options |= {name: drawn[name] for name in biases}
    assert_is_the_definition(way, draw_inputs(0, 2, 3, 7, 17, 5, 11, 13), reach, gradients, **options)


def test_a_window_over_everything_is_attention_over_slots_and_positions(gradients):
    inputs = draw_inputs(0, 2, 3, 7, 7, 5, 2, 11)
    query, slots_k, slots_v, key, value = inputs
    actual, _ = attend_with_window(*inputs, 7)
    expected = F.scaled_dot_product_attention(query, torch.cat([slots_k, key], 2), torch.cat([slots_v, value], 2))
    assert_close(actual, expected)
    assert_close(gradients(actual, inputs), gradients(expected, inputs))


@pytest.mark.parametrize("length", [0, 1, 70])
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_a_batch_without_rows(length, dropout_p):
    inputs = draw_inputs(0, 0, 2, length, length, 7, 3, 5)
    output, _ = attend_with_window(*inputs, 1, dropout_p=dropout_p)
    _, weights = attend_with_window(*inputs, 1, need_weights=True)
    assert output.shape == (0, 2, length, 5) and weights.shape == (0, 2, length, 7 + 3)
    output.sum().backward()


def test_a_query_sees_no_position_beyond_its_reach():
    query, slots_k, slots_v, key, value = draw_inputs(0, 1, 1, 9, 9, 2, 3, 3)
    output, _ = attend_with_window(query, slots_k, slots_v, key, value, 2)
    for position in range(9):
        for gradient in torch.autograd.grad(output[:, :, position].sum(), [key, value], retain_graph=True):
            touched = gradient.ne(0).any(dim=-1)[0, 0]
            assert touched.tolist() == [abs(other - position) <= 2 for other in range(9)]


@pytest.mark.parametrize("biased", [False, True], ids=["", "biased"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_in_low_precision_stays_near_that_of_the_plain_formula(
    gradients, monkeypatch, take_at_once, dtype, biased
):
    take_at_once(monkeypatch, window_block=16)
    low = [x.detach().to(dtype) for x in [*draw_inputs(0, 2, 3, 61, 61, 5, 16, 16), *[draw_bias(3, 7)] * biased]]

    def plain(query, slots_k, slots_v, key, value, bias=None):
        distance = torch.arange(61) - torch.arange(61).unsqueeze(-1)
        hidden = torch.cat([torch.zeros(61, 5, dtype=torch.bool), distance.abs() > 3], dim=-1)
        scores = query @ torch.cat([slots_k, key], dim=2).mT / 4
        if bias is not None:
            scores = scores + F.pad(bias[:, distance.clamp(-3, 3) + 3], (5, 0))
        return torch.softmax(scores.masked_fill(hidden, float("-inf")), -1) @ torch.cat([slots_v, value], 2)

    def fast(query, slots_k, slots_v, key, value, bias=None):
        return attend_with_window(query, slots_k, slots_v, key, value, 3, window_bias=bias)[0]

    assert_errs_as_the_plain_formula(gradients, fast, plain, low, dtype, [TWICE] * (1 + len(low)))


@pytest.fixture
def joined(monkeypatch):
    """How often two softmaxes were joined, by torch: some AMD processors would take oneDNN in bfloat16."""
    calls, flash = [], attention.WINDOWED_ATTENTION.table["flash"]

    def counting(*call):
        calls.append(call)
        return flash.compute(*call)

    monkeypatch.setitem(attention.WINDOWED_ATTENTION.table, "flash", flash._replace(compute=counting))
    with use_implementation("flash", "torch"):
        yield calls


@pytest.mark.cpu(ONE_SOFTMAX)
@pytest.mark.parametrize("length", [5, 32, 64, 200])
@pytest.mark.parametrize("laid", [(0, 1, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2)], ids=["rows", "heads inside", "columns"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_two_softmaxes_are_joined(joined, gradients, length, laid, training):
    """Over one block, a whole one, and several with a part; rows of which nothing is left stay finite."""
    inputs = [x.detach() for x in draw_inputs(0, 3, 4, length, length, 9, 8, 8)]
    inputs = [x.permute(laid).contiguous().permute(laid).requires_grad_(training) for x in inputs]
    real = torch.arange(length) < torch.tensor([length, length // 3, 0])[:, None]
    options = {"slot_padding": torch.arange(9) >= torch.tensor([9, 4, 0])[:, None], "key_padding": ~real}
    slot_bias = torch.linspace(-3, 3, 36, **DOUBLE).view(1, 4, 9).requires_grad_(training)
    options |= {"slot_bias": slot_bias, "window_bias": draw_bias(4, 11).detach()}
    actual, _ = attend_with_window(*inputs, 5, **options)
    assert len(joined) == 1 and actual.isfinite().all()
    expected, _ = attend_with_window(*inputs, 5, need_weights=True, **options)  # one softmax, by its definition
    assert len(joined) == 1
    actual, expected = (x.transpose(1, 2)[real] for x in (actual, expected))
    assert_close(actual, expected)
    if training:
        leaves = [*inputs, slot_bias]
        assert_close(gradients(actual, leaves), gradients(expected, leaves))


@pytest.mark.cpu(ONE_SOFTMAX)
@pytest.mark.parametrize("bias", ["slot_bias", "window_bias"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@torch.no_grad()
def test_joined_softmaxes_are_as_exact_as_one(joined, dtype, bias):
    low = [x.to(dtype) for x in draw_inputs(0, 2, 3, 150, 150, 9, 16, 16)]
    numbers = {"slot_bias": torch.linspace(-3, 3, 27).view(1, 3, 9), "window_bias": draw_bias(3, 11)}[bias].to(dtype)
    expected, _ = attend_with_window(*[x.double() for x in low], 5, **{bias: numbers.double()}, need_weights=True)
    by_one, _ = attend_with_window(*low, 5, **{bias: numbers}, need_weights=True)
    assert not joined
    by_two, _ = attend_with_window(*low, 5, **{bias: numbers})
    errors = [(output.double() - expected).square().mean() for output in (by_one, by_two)]
    assert joined and by_two.dtype == dtype and errors[1] <= JOINED * errors[0]


@pytest.mark.cpu(ONE_SOFTMAX)
def test_a_bias_of_a_window_that_wants_a_gradient_has_one_softmax(joined):
    inputs = draw_inputs(0, 1, 1, 70, 70, 9, 8, 8)
    attend_with_window(*inputs, 5, window_bias=draw_bias(1, 11))
    assert not joined
    output, _ = attend_with_window(*inputs, 5)
    (gradient,) = torch.autograd.grad(output.square().sum(), inputs[0], create_graph=True)
    assert joined
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@pytest.mark.cpu(ONE_SOFTMAX)
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


@pytest.mark.cpu(ONE_SOFTMAX)
def test_under_autocast_they_are_joined_in_its_type(joined):
    inputs = [x.detach().float() for x in draw_inputs(0, 2, 3, 150, 150, 9, 16, 16)]
    with torch.autocast("cpu", torch.bfloat16):
        actual = attend_with_window(*inputs, 5)[0]
    assert joined and actual.dtype == torch.bfloat16

"""Causal attention: against the literal definition, on every path, and what it may not see."""

import re
from functools import partial

import pytest
import torch
from budgets import CHUNK_ROUNDINGS, TWICE
from calls import assert_errs_as_the_plain_formula, attend_causally, causal_linformer_attention
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_linformer.functional import reference
from torch_linformer.functional.causal import CausalState, SlotWeights, carry, carry_by_groups

DOUBLE = {"dtype": torch.float64}


WINDOWS = (None, 1, 5, 29)


def draw_inputs(seed, batch, heads, length, width, v_width, num_slots, weights="head", bias_heads=True, steepest=1.0):
    """Query, key, value, decays and weights, score bias: float64, all wanting a gradient.

    ``weights`` is the first size of their shape: ``none``, ``position`` (N, K), ``head`` (H, N, K) or ``row``.
    """
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    lead = {"position": (), "head": (heads,), "row": (batch, heads)}

    def draw(*shape):
        return torch.randn(shape, generator=generator, **DOUBLE)

    decay = torch.rand(heads, num_slots, generator=generator, **DOUBLE) * steepest
    proj = SlotWeights(decay, None if weights == "none" else draw(*lead[weights], length, num_slots).exp())
    bias = draw(*[heads] * bias_heads, num_slots)
    sequences = [draw(batch, heads, length, size) for size in (width, width, v_width)]
    tensors = [x for x in [*sequences, *proj, bias] if x is not None]
    for tensor in tensors:
        tensor.requires_grad_()
    return sequences, proj, bias


class CountElements(TorchDispatchMode):
    """The elements of every tensor that an operation gives back."""

    def __init__(self):
        super().__init__()
        self.total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        self.total += sum(x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor))
        return result


def tensors_of(*groups):
    return [x for group in groups for x in group if x is not None]


def literal(sequences, proj, bias, window, mask, exact_first=0):
    """The definition of each row by itself, for weights and biases of any shape."""
    batch, heads, length = sequences[0].shape[:3]
    bias = None if bias is None else bias.expand(heads, -1)

    def of_row(proj, row):
        weights = torch.ones(length, proj.decay.shape[-1], **DOUBLE) if proj.weights is None else proj.weights
        return proj.decay.expand(heads, -1), (weights[row] if weights.dim() == 4 else weights.expand(heads, -1, -1))

    outputs = []
    for row in range(batch):
        one = slice(row, row + 1)
        padding = None if mask is None else mask[one]
        options = {"score_bias": bias, "window": window, "exact_first": exact_first, "key_padding_mask": padding}
        outputs.append(reference.causal_linformer_attention(*(x[one] for x in sequences), of_row(proj, row), **options))
    return torch.cat(outputs)


def at_tokens(output, mask):
    """The outputs of real tokens, row by row."""
    output = output.transpose(1, 2)
    return output.flatten(0, 1) if mask is None else output[~mask]


def ends_padded(length, *ends):
    """The mask of rows with so many positions of padding before and behind their tokens."""
    positions = torch.arange(length)
    return torch.stack([(positions < left) | (positions >= length - right) for left, right in ends])


def part_of(proj, positions):
    """The weights of some positions."""
    return proj if proj.weights is None else SlotWeights(proj.decay, proj.weights[..., positions, :])


def in_pieces(sizes, sequences, proj=None, *, padding_mask=None, state=None, **options):
    """Output, weights and last state of positions that are handed over so many at a time."""
    outputs, weights, start = [], [], 0
    for size in sizes:
        piece = slice(start, start + size)
        start += size
        output, softmax, state = attend_causally(
            *(x[:, :, piece] for x in sequences),
            None if proj is None else part_of(proj, piece),
            padding_mask=None if padding_mask is None else padding_mask[:, piece],
            state=state,
            **options,
        )
        outputs.append(output)
        weights.append(softmax)
    return torch.cat(outputs, dim=2), weights, state


@st.composite
def pieces(draw):
    """Inputs of any small sizes in pieces, the slots and tokens that they attend to, and rows of them that are padding.

    Padding follows the real tokens of each piece where there is a window or first tokens, and stands anywhere else.
    """
    batch, heads, sizes = (
        draw(st.integers(1, 2)),
        draw(st.integers(1, 2)),
        draw(st.lists(st.integers(0, 6), max_size=4)),
    )
    window, exact_first = draw(st.none() | st.integers(1, 9)), draw(st.sampled_from([0, 0, 1, 4]))
    sizes = [*sizes, *[1] * draw(st.integers(0, 2)), draw(st.integers(1, 6))]
    weights = draw(st.sampled_from(["none", "position", "head", "row", *["no slots"] * (window is not None)]))
    drawn = draw_inputs(
        draw(st.integers(0, 999)),
        batch,
        heads,
        sum(sizes),
        *(draw(st.integers(1, 3)) for _ in range(3)),
        "none" if weights == "no slots" else weights,
        draw(st.booleans()),
    )
    mask = None
    if draw(st.booleans()):
        rows = [draw(st.lists(st.booleans(), min_size=size, max_size=size)) for size in sizes for _ in range(batch)]
        ordered = window is not None or exact_first > 0
        columns = [sorted(row) if ordered else row for row in rows]
        parts = [torch.tensor(columns[i : i + batch]).view(batch, -1) for i in range(0, len(columns), batch)]
        mask = torch.cat(parts, dim=1).bool()
    options = {"window": window, "exact_first": exact_first, "chunk_size": draw(st.integers(1, 9))}
    return sizes, drawn, weights != "no slots", mask, options, draw(st.sampled_from([1, 5, 4096]))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(case=pieces(), biased=st.booleans())
def test_pieces_are_the_definition_in_output_weights_and_every_gradient(gradients, take_at_once, case, biased):
    """Whatever stands at padding; the sums before a piece are what the last one has left."""
    sizes, (sequences, proj, bias), has_slots, mask, options, segment = case
    bias = bias if biased and has_slots else None
    tokens = {name: options[name] for name in ("window", "exact_first")}
    hidden = torch.zeros(len(sequences[0]), sum(sizes), dtype=torch.bool) if mask is None else mask
    poisoned = [x.detach().masked_fill(hidden[:, None, :, None], float("nan")).requires_grad_() for x in sequences]
    none = SlotWeights(torch.zeros(sequences[0].shape[1], 0, **DOUBLE))
    parameters = tensors_of(proj, [bias]) if has_slots else []
    with pytest.MonkeyPatch.context() as patch:
        take_at_once(patch, segment=segment)
        weights = proj if has_slots else None
        output, weights, state = in_pieces(
            sizes, poisoned, weights, padding_mask=mask, score_bias=bias, need_weights=True, **options
        )
        fast, _, _ = in_pieces(
            sizes, poisoned, proj if has_slots else None, padding_mask=mask, score_bias=bias, **options
        )
    assert torch.equal(fast, output) and not output.transpose(1, 2)[hidden].any()
    assert state.tokens.tolist() == (~hidden).sum(dim=-1).tolist()
    actual = at_tokens(output, mask)
    expected = at_tokens(literal(sequences, proj if has_slots else none, bias, mask=mask, **tokens), mask)
    assert_close(actual, expected)
    if len(actual):
        found = gradients(actual, [*poisoned, *parameters])
        assert_close(found, gradients(expected, [*sequences, *parameters]))
        assert not any(gradient.transpose(1, 2)[hidden].any() for gradient in found[:3])
    sums = torch.cat(weights, dim=2).sum(dim=-1).transpose(1, 2)[~hidden]
    assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize(
    ("weights", "window"), [("none", 5), ("position", None), ("head", 5), *(("row", window) for window in WINDOWS)]
)
def test_sizes_of_distinct_primes(gradients, monkeypatch, take_at_once, weights, window):
    take_at_once(monkeypatch, segment=7)
    sequences, proj, bias = draw_inputs(0, 2, 3, 17, 5, 11, 13, weights)
    mask = ends_padded(17, (0, 0), (4, 3))
    options = {"score_bias": bias, "window": window, "key_padding_mask": mask, "chunk_size": 3}
    actual = at_tokens(causal_linformer_attention(*sequences, proj, **options), mask)
    expected = at_tokens(literal(sequences, proj, bias, window, mask), mask)
    assert_close(actual, expected)
    wanted = tensors_of(sequences, proj, [bias])
    assert_close(gradients(actual, wanted), gradients(expected, wanted))


@pytest.mark.parametrize("one", [0, 1], ids=["one row", "one head"])
def test_one_decay_for_all_heads_and_weights_for_one(gradients, one):
    sequences, proj, bias = draw_inputs(0, 2, 3, 7, 5, 2, 4, "row")
    proj = SlotWeights(proj.decay[one], proj.weights[:1, :1] if one == 0 else proj.weights[:, :1])
    full = SlotWeights(proj.decay, proj.weights.expand(2, 3, 7, 4))
    actual = causal_linformer_attention(*sequences, proj, score_bias=bias[0], window=2)
    expected = literal(sequences, full, bias[0], 2, None)
    assert_close(actual, expected)
    wanted = [*sequences, *proj, bias]
    assert_close(gradients(actual, wanted), gradients(expected, wanted))


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        # a token's weight is a third of that of the next: (3 / 3 + 11) / (4 / 3); one slot has the whole softmax
        pytest.param({}, 9.0, id="slot"),
        # all scores are 0: the mean of the slot's 9 and the token's own 11
        pytest.param({"window": 1}, 10.0, id="slot-and-token"),
        # and of the 3 before it
        pytest.param({"window": 2}, 23 / 3, id="slot-and-both-tokens"),
        # the slot counts three times
        pytest.param({"window": 1, "score_bias": torch.tensor([3.0]).log()}, 9.5, id="biased-slot"),
        # the slot, the first token and the last
        pytest.param({"window": 1, "exact_first": 1}, 23 / 3, id="slot-first-and-last-token"),
        # the second is the first two's second and the window's: it counts once
        pytest.param({"window": 1, "exact_first": 2}, 23 / 3, id="slot-and-both-tokens-once"),
        pytest.param({"exact_first": 1}, 6.0, id="slot-and-first-token"),
    ],
)
def test_example_by_hand(options, expected):
    values = torch.tensor([3.0, 11.0]).view(1, 1, 2, 1)
    proj = SlotWeights(torch.tensor([3.0]).log(), torch.ones(2, 1))
    output = causal_linformer_attention(torch.zeros(1, 1, 2, 1), values, values, proj, chunk_size=2, **options)
    assert output[0, 0, 1, 0].item() == pytest.approx(expected)


PATHS = {"whole": [19], "uneven": [1, 7, 2, 9], "tokens": [1] * 19, "a-token-after-a-prompt": [18, 1]}


@pytest.mark.cpu("elsewhere they are read in bfloat16")
@pytest.mark.parametrize("sizes", [[19], [4, *[1] * 15]], ids=["whole", "tokens"])
def test_first_tokens_in_half_precision_are_read_in_float32(sizes):
    sequences, proj, _ = draw_inputs(0, 2, 2, 19, 3, 5, 4, "row")
    low = [x.detach().bfloat16() for x in sequences]
    weights = SlotWeights(*(x.detach().float() for x in proj))
    options = {"window": 3, "exact_first": 4, "scale": 1.0}  # a scale that rounds no query
    expected, _, _ = in_pieces(sizes, [x.float() for x in low], weights, **options)
    output, _, _ = in_pieces(sizes, low, weights, **options)
    assert torch.equal(output, expected.bfloat16())


def plain(query, key, value, decay, weights, window):
    """The formula with the weights of every pair of positions written out, which are made in no less than float32."""
    length = query.shape[2]
    age = torch.arange(length).unsqueeze(-1) - torch.arange(length)
    fade = torch.exp(-decay[..., None, None] * age) * weights.transpose(-1, -2).unsqueeze(-2)
    fade = fade.masked_fill(age < 0, 0.0)
    fade = (fade / fade.sum(dim=-1, keepdim=True)).to(query.dtype)  # (B, H, K, N, N)
    means_k, means_v = (torch.einsum("bhkti,bhid->bhtkd", fade, x) for x in (key, value))
    of_slots = torch.einsum("bhtd,bhtkd->bhtk", query, means_k) / query.shape[-1] ** 0.5
    of_tokens = query @ key.mT / query.shape[-1] ** 0.5
    of_tokens = of_tokens.masked_fill((age < 0) | (age >= window), float("-inf"))
    softmax = torch.softmax(torch.cat([of_slots, of_tokens], dim=-1), dim=-1)
    num_slots = decay.shape[-1]
    return torch.einsum("bhtk,bhtkd->bhtd", softmax[..., :num_slots], means_v) + softmax[..., num_slots:] @ value


@pytest.mark.parametrize("sizes", [[149], [64, 1, 84], [1] * 149], ids=["whole", "pieces", "tokens"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_error_in_low_precision_stays_near_that_of_the_plain_formula(gradients, dtype, sizes):
    sequences, proj, _ = draw_inputs(0, 2, 2, 149, 16, 16, 5, "row", steepest=1 / 16)
    low = [x.detach().to(dtype) for x in sequences]
    weights = [x.detach().float() for x in proj]

    def fast(query, key, value, decay, weights):
        return in_pieces(sizes, [query, key, value], SlotWeights(decay, weights), window=7)[0]

    # Decay and weights stand in numerator and denominator, whose gradients cancel: theirs may be 8 times as wrong.
    factors = [TWICE, TWICE, TWICE, TWICE, 8, 8]
    assert_errs_as_the_plain_formula(gradients, fast, partial(plain, window=7), [*low, *weights], dtype, factors)


def test_the_formula_written_out_is_the_definition():
    sequences, proj, _ = draw_inputs(0, 2, 2, 11, 3, 5, 4, "row")
    assert_close(plain(*sequences, *proj, 3), literal(sequences, proj, None, 3, None))


@pytest.mark.parametrize(
    ("sizes", "window", "exact_first", "autocast"),
    [*((path, 4, 9, False) for path in PATHS), ("uneven", None, 0, False), ("uneven", 4, 9, True)],
)
def test_the_gradient_to_whatever_comes_later_is_exactly_zero(
    monkeypatch, take_at_once, sizes, autocast, window, exact_first
):
    take_at_once(monkeypatch, segment=7)
    sequences, proj, bias = draw_inputs(0, 2, 2, 19, 3, 5, 4, "row")
    if autocast:
        sequences = [x.detach().float().requires_grad_() for x in sequences]
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16, enabled=autocast):
        inputs = [x @ torch.eye(x.shape[-1], dtype=x.dtype) for x in sequences]
        options = {"score_bias": bias, "window": window, "exact_first": exact_first, "chunk_size": 3}
        output, _, _ = in_pieces(PATHS[sizes], inputs, proj, **options)
    assert output.dtype == (torch.bfloat16 if autocast else torch.float64)
    for position in range(19):
        wanted = [*sequences[1:], proj.weights]
        found = torch.autograd.grad(output[:, :, position].sum(), [sequences[0], *wanted], retain_graph=True)
        assert all(not gradient[:, :, position + 1 :].any() for gradient in found)
        assert found[2][:, :, position].any() and found[2][:, :, max(position - 1, 0)].any()
        assert not found[0][:, :, :position].any()


def test_autocast_lowers_the_precision_of_nothing():
    sequences, proj, bias = draw_inputs(0, 2, 2, 19, 3, 5, 4, "row")
    sequences = [x.detach().float() for x in sequences]
    options = {"score_bias": bias, "window": 3}
    expected = causal_linformer_attention(*sequences, proj, **options)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        assert torch.equal(causal_linformer_attention(*sequences, proj, **options), expected)


def test_rows_of_a_batch_do_not_see_each_other():
    sequences, proj, bias = draw_inputs(0, 3, 2, 7, 3, 5, 4)
    output, _, state = attend_causally(*sequences, proj, score_bias=bias, window=3)
    of_state = sum(getattr(state, name)[1].sum() for name in ("keys", "values", "recent_keys", "recent_values"))
    for gradient in torch.autograd.grad(output[1].sum() + of_state, sequences):
        assert gradient[1].any()
        assert not gradient[[0, 2]].any()


@pytest.mark.parametrize("decay", [0.0, 1e-4, 1.0], ids=["none", "slow", "fast"])
def test_a_hundred_thousand_positions_in_float32(decay):
    length, generator = 100_000, torch.Generator(torch.get_default_device()).manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, length, 2, generator=generator)
    proj = SlotWeights(torch.tensor([decay, 0.01]), torch.randn(length, 2, generator=generator).mul(2).exp())
    output, _, state = in_pieces([60_000, 1, 39_999], [query, key, value + 1], proj, window=3)
    double = [x.double() for x in (query, key, value + 1)]
    exact = SlotWeights(*(x.double() for x in proj))
    expected, _, _ = attend_causally(*double, exact, window=3)
    assert (output - expected).abs().max() <= CHUNK_ROUNDINGS * torch.finfo(torch.float32).eps * expected.abs().max()
    # The float64 run itself, where the definition can be afforded: a mean over everything so far.
    for position in (4095, 4096, 59_999, 60_000, length - 1):
        age = position - torch.arange(position + 1, **DOUBLE).unsqueeze(-1)
        weights = exact.weights[: position + 1] * torch.exp(-exact.decay * age)
        means = [(weights.T @ x[0, 0, : position + 1]) / weights.sum(dim=0).unsqueeze(-1) for x in double[1:]]
        near = slice(position - 2, position + 1)
        keys, values = (torch.cat([m, x[0, 0, near]]) for m, x in zip(means, double[1:], strict=True))
        softmax = torch.softmax(keys @ double[0][0, 0, position] / 2**0.5, dim=-1)
        assert_close(expected[0, 0, position], softmax @ values)
    assert all(x.isfinite().all() for x in (state.keys, state.values, state.mass))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_the_steepest_decay_and_the_largest_weights_stay_finite(gradients, dtype):
    sequences, _, _ = draw_inputs(0, 1, 2, 300, 4, 4, 3)
    sequences = [x.detach().mul(10).to(dtype).requires_grad_() for x in sequences]
    decay = torch.tensor([1.0, 0.5, 0.0], requires_grad=True)
    weights = torch.full((300, 3), 8.0).mul(torch.tensor([1, -1]).repeat(150)[:, None]).exp().requires_grad_()
    output = causal_linformer_attention(*sequences, SlotWeights(decay, weights), window=5)
    assert output.dtype == dtype
    assert all(x.isfinite().all() for x in [output, *gradients(output, [*sequences, decay, weights])])


@pytest.mark.parametrize(
    ("num_slots", "exact_first", "window"), [(4, 0, None), (4, 0, 3), (4, 0, 11), (4, 2, None), (4, 3, 2)]
)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_weights_are_a_softmax_that_gives_the_output(num_slots, exact_first, window, padded):
    sequences, proj, bias = draw_inputs(0, 2, 2, 7, 3, 5, num_slots, "row")
    mask = ends_padded(7, (0, 2), (0, 3) if exact_first else (3, 0)) if padded else None
    options = {"score_bias": bias, "window": window, "exact_first": exact_first}
    options |= {"padding_mask": mask, "chunk_size": 3}
    output, none, _ = attend_causally(*sequences, proj, **options)
    again, weights, _ = attend_causally(*sequences, proj, need_weights=True, **options)
    assert none is None
    assert torch.equal(again, output)
    width = window or 0
    assert weights.shape == (2, 2, 7, num_slots + exact_first + width)
    assert_close(weights.sum(dim=-1), torch.ones(2, 2, 7, **DOUBLE))
    for row in range(2):
        real = reference.real_positions(mask, row, 7)
        for position in real:
            for head in range(2):
                past = [p for p in real if p <= position]
                expected = torch.zeros(5, **DOUBLE)
                if num_slots:
                    mean = reference.running_mean(
                        sequences[2][row, head], proj.weights[row, head], proj.decay[head], past
                    )
                    expected = weights[row, head, position, :num_slots] @ mean
                of_slots_first_window = weights[row, head, position].split([num_slots, exact_first, width])
                of_first, of_window = of_slots_first_window[1:]
                for place, weight in enumerate(of_first):
                    if place < len(past) - width:
                        assert weight > 0
                        expected = expected + weight * sequences[2][row, head, past[place]]
                    else:
                        assert weight == 0
                for age, weight in enumerate(reversed(of_window)):
                    if age < len(past):
                        expected = expected + weight * sequences[2][row, head, past[-1 - age]]
                    else:
                        assert weight == 0
                assert_close(output[row, head, position], expected)


def test_the_state_does_not_grow_with_what_was_read():
    sequences, proj, _ = draw_inputs(0, 2, 2, 211, 3, 5, 4, "row")
    shapes, sizes = [], []
    for pieces in ([1], [211], [100, 111], [50, *[1] * 3]):
        _, _, state = in_pieces(pieces, sequences, proj, window=4, exact_first=3, chunk_size=16)
        tensors = list(vars(state).values())
        shapes.append([x.shape for x in tensors])
        sizes.append([x.untyped_storage().nbytes() for x in tensors])
    empty = vars(CausalState.empty(*sequences[1:], 4, 4, 3)).values()
    assert shapes == [[x.shape for x in empty]] * 4
    assert sizes == [[x.numel() * x.element_size() for x in empty]] * 4


def test_sums_are_kept_in_no_less_than_float32():
    sequences, proj, _ = draw_inputs(0, 1, 1, 7, 3, 5, 4)
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        low = [x.detach().to(dtype) for x in sequences]
        _, _, state = attend_causally(*low, SlotWeights(*(x.detach().float() for x in proj)), window=4)
        expected = torch.promote_types(dtype, torch.float32)
        assert {getattr(state, name).dtype for name in ("keys", "values", "mass")} == {expected}


def test_rows_of_a_state_go_on_as_those_rows():
    sequences, proj, _ = draw_inputs(0, 3, 2, 11, 3, 5, 4)
    mask = ends_padded(11, (0, 0), (0, 4), (2, 0))
    mask[:, 7:] = False
    _, _, state = in_pieces([7], sequences, proj, padding_mask=mask, window=3)
    order = torch.tensor([2, 0, 0])
    more = slice(7, 11)
    rest = [x[:, :, 7:] for x in sequences]
    expected, _, _ = attend_causally(*rest, part_of(proj, more), state=state, window=3)
    picked = [x[order] for x in rest]
    rows = state.rows(order)
    actual, _, _ = attend_causally(*picked, part_of(proj, more), state=rows, window=3)
    assert rows.tokens.tolist() == [5, 7, 7]
    assert_close(actual, expected[order])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": (2, 3, 7, 5, 1)}, "query, key and value must be (B, H, N, D), (B, H, N, D) and (B, H, N, Dv), got"),
        ({"query": (2, 3, 6, 5)}, "got (2, 3, 6, 5), (2, 3, 7, 5) and (2, 3, 7, 11)"),
        ({"key": (2, 1, 7, 5)}, "got (2, 3, 7, 5), (2, 1, 7, 5) and (2, 3, 7, 11)"),
        ({"value": (2, 3, 6, 11)}, "got (2, 3, 7, 5), (2, 3, 7, 5) and (2, 3, 6, 11)"),
        ({"window": 0}, "window must be at least 1 token, or None for no window, got 0"),
        ({"exact_first": -1}, "exact_first must be at least 0 tokens, got -1"),
        ({"mask": (2, 6)}, "key_padding_mask must have shape (B, M) = (2, 7), got (2, 6)"),
        (
            {"decay": (2, 4)},
            "weights.decay must be (K,) or (H, K) beside a key (B, H, N, D), got (2, 4) and (2, 3, 7, 5)",
        ),
        ({"decay": ()}, "got () and (2, 3, 7, 5)"),
        ({"decay": (2, 3, 4)}, "got (2, 3, 4) and (2, 3, 7, 5)"),
        ({"weights": (6, 4)}, "beside a key (B, H, N, D) and a decay (…, K), got (6, 4), (2, 3, 7, 5) and (4,)"),
        ({"weights": (7, 5)}, "got (7, 5), (2, 3, 7, 5) and (4,)"),
        ({"weights": (4,)}, "got (4,), (2, 3, 7, 5) and (4,)"),
        ({"weights": (2, 7, 4)}, "got (2, 7, 4), (2, 3, 7, 5) and (4,)"),
        ({"weights": (1, 2, 3, 7, 4)}, "got (1, 2, 3, 7, 4), (2, 3, 7, 5) and (4,)"),
        ({"weights": (3, 3, 7, 4)}, "weights.weights must be (N, K), (H, N, K) or (B, H, N, K)"),
        (
            {"steepest": 1.5},
            "weights.decay must lie between 0 and 64 / chunk_size = 1 nats a token, got up to 1.5: a weight that "
            "fades faster belongs to the window, or take smaller chunks",
        ),
        (
            {"steepest": -0.25},
            "weights.decay must lie between 0 and 64 / chunk_size = 1 nats a token, got up to -0.2",
        ),
        ({"steepest": 6.5, "chunk_size": 10}, "chunk_size = 6.4 nats a token, got up to 6.5"),
    ],
)
def test_what_does_not_fit_is_named(changes, message):
    shapes = {"query": (2, 3, 7, 5), "key": (2, 3, 7, 5), "value": (2, 3, 7, 11), **changes}
    query, key, value = (torch.randn(shapes[name]) for name in ("query", "key", "value"))
    decay = torch.full(changes.get("decay", (4,)), changes.get("steepest", 0.1))
    proj = SlotWeights(decay, torch.ones(changes.get("weights", (7, 4))))
    mask = torch.zeros(changes["mask"], dtype=torch.bool) if "mask" in changes else None
    options = {"window": changes.get("window", 3), "exact_first": changes.get("exact_first", 0)}
    options["chunk_size"] = changes.get("chunk_size", 64)
    with pytest.raises(ValueError, match=re.escape(message)):
        causal_linformer_attention(query, key, value, proj, key_padding_mask=mask, **options)


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("lead", [(), (3,), (2, 3)])
def test_weights_that_are_not_positive_are_refused_but_at_padding(wrong, lead):
    sequences, decay = [torch.randn(2, 3, 7, 5) for _ in range(3)], torch.zeros(4)
    weights = torch.ones(*lead, 7, 4)
    expected = causal_linformer_attention(*sequences, SlotWeights(decay, weights.clone()))
    weights[..., 6, 1] = wrong
    with pytest.raises(ValueError, match=r"weights\.weights must be positive and finite at every real token"):
        causal_linformer_attention(*sequences, SlotWeights(decay, weights))
    mask = ends_padded(7, (0, 1), (0, 1))
    output = causal_linformer_attention(*sequences, SlotWeights(decay, weights), key_padding_mask=mask)
    assert_close(output[:, :, :6], expected[:, :, :6])


def test_a_decay_of_nan_is_refused():
    sequences, _, _ = draw_inputs(0, 1, 1, 4, 3, 5, 1)
    with pytest.raises(
        ValueError, match=r"weights\.decay must lie between 0 and 64 . chunk_size = 1 nats a token, got up to nan"
    ):
        causal_linformer_attention(*sequences, SlotWeights(torch.tensor([float("nan")])))


@torch.no_grad()
def test_a_compiled_call_checks_its_numbers_where_it_runs():
    torch._dynamo.reset()
    compiled = torch.compile(causal_linformer_attention, fullgraph=True, dynamic=False, backend="eager")
    sequences, proj, bias = draw_inputs(0, 2, 3, 70, 3, 5, 4)
    options = {"score_bias": bias, "window": 3}
    expected = causal_linformer_attention(*sequences, proj, **options)
    assert_close(compiled(*sequences, proj, **options), expected)
    with pytest.raises(RuntimeError, match=r"weights\.weights must be positive and finite"):
        compiled(*sequences, SlotWeights(proj.decay, -proj.weights), **options)
    with pytest.raises(RuntimeError, match=r"weights\.decay must lie between 0 and the limit of its chunks"):
        compiled(*sequences, SlotWeights(proj.decay + 2, proj.weights), **options)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
@pytest.mark.parametrize(("window", "exact_first"), [(None, 0), (3, 2)])
def test_the_transforms_of_torch_func_give_the_same_derivatives(window, exact_first):
    sequences, proj, bias = draw_inputs(0, 2, 3, 149, 3, 5, 4)

    def total(query):
        options = {"score_bias": bias, "window": window, "exact_first": exact_first}
        output = causal_linformer_attention(query, *sequences[1:], proj, **options)
        return output.square().sum()

    query = sequences[0]
    (expected,) = torch.autograd.grad(total(query), query)
    assert_close(torch.func.grad(total)(query.detach()), expected)
    tangent = torch.randn_like(query)
    _, along = torch.func.jvp(total, (query.detach(),), (tangent,))
    assert_close(along, (expected * tangent).sum())


@pytest.mark.parametrize("length", [0, 1, 149])
@pytest.mark.parametrize("window", [None, 3])
def test_a_batch_without_rows(window, length):
    sequences, proj, bias = draw_inputs(0, 0, 3, length, 3, 5, 4)
    mask = torch.zeros(0, length, dtype=torch.bool)
    for options in ({}, {"key_padding_mask": mask}, {"exact_first": 2}):
        output = causal_linformer_attention(*sequences, proj, score_bias=bias, window=window, **options)
        assert output.shape == (0, 3, length, 5)
        output.sum().backward()


def test_a_decay_at_the_limit_of_its_chunks_is_taken():
    sequences, _, _ = draw_inputs(0, 1, 1, 40, 3, 5, 1)
    proj = SlotWeights(torch.tensor([6.4], **DOUBLE))
    output = causal_linformer_attention(*sequences, proj, chunk_size=10)
    assert_close(output, literal(sequences, proj, None, None, None))


def training_step(length, count):
    (query, key, value), proj, bias = draw_inputs(0, 1, 2, length, 4, 4, 3)
    with count:
        output = causal_linformer_attention(query, key, value, proj, score_bias=bias, window=5, chunk_size=8)
        output.sum().backward()


def test_a_training_step_grows_with_the_length_and_not_its_square(monkeypatch, take_at_once):
    take_at_once(monkeypatch, segment=16)
    counts = [CountElements() for _ in range(2)]
    for length, count in zip((512, 1024), counts, strict=True):
        training_step(length, count)
    assert counts[1].total < 2.05 * counts[0].total


def test_training_keeps_the_inputs_and_not_what_is_made_of_them(monkeypatch, take_at_once):
    take_at_once(monkeypatch, segment=16)
    kept = []

    def note(tensor):
        kept.append(tensor.numel())
        return tensor

    training_step(256, saved_tensors_hooks(note, lambda tensor: tensor))
    sequences = 256 * 2 * (4 + 4 + 4)
    assert sum(kept) < 2 * sequences


@pytest.mark.parametrize("in_a_graph", [False, True])
@pytest.mark.parametrize("chunks", [1, 2, 8, 9, 65])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_sums_are_carried_as_one_after_another(chunks, padded, in_a_graph):
    """With the steepest decay too, of which exp(64) a chunk would leave any range if it were not taken back."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    real = torch.rand(2, chunks, 5, generator=generator) < 0.7 if padded else None
    decay, start = torch.tensor([[0.0, 0.01, 12.8]], **DOUBLE), torch.randn(2, 1, 3, 4, generator=generator, **DOUBLE)
    added = torch.randn(2, 1, chunks, 3, 4, generator=generator, **DOUBLE)
    counts = torch.full((1, chunks), 5, **DOUBLE) if real is None else real.sum(dim=-1).double()
    before, after = (carry_by_groups if in_a_graph else carry)(counts, decay, added, start)
    sums = start
    for chunk in range(chunks):
        assert_close(before[:, :, chunk], sums)
        tokens = torch.full((2,), 5) if real is None else real[:, chunk].sum(dim=-1)
        sums = torch.exp(-decay[..., None] * tokens.view(2, 1, 1, 1)) * (sums + added[:, :, chunk])
    assert_close(after, sums)

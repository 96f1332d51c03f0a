"""Attention over slots: against the literal definition, forward and every gradient, in float64."""

import math

import pytest
import torch
from budgets import ROUNDINGS, TWICE
from calls import attend
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.functional import linformer_attention, reference
from torch_linformer.functional.softmax import SoftmaxCall, attend_to_past, repeat_heads


def draw_inputs(seed, batch, queries, length, heads, head_dim, num_slots, kv_heads, max_len, per_head, v_dim=None):
    """Query, key, value, E and F, float64, every one of them wanting a gradient."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(seed)
    proj_heads = [kv_heads] if per_head else []
    shapes = [
        (batch, heads, queries, head_dim),
        (batch, kv_heads, length, head_dim),
        (batch, kv_heads, length, v_dim or head_dim),
        (*proj_heads, max_len, num_slots),
        (*proj_heads, max_len, num_slots),
    ]
    return [torch.randn(s, generator=generator, dtype=torch.float64, requires_grad=True) for s in shapes]


@st.composite
def attention_inputs(draw):
    """Inputs of any small sizes, and a padding mask with padding anywhere, whole rows included, or None."""
    batch, length, kv_heads = draw(st.integers(1, 3)), draw(st.integers(1, 7)), draw(st.integers(1, 2))
    max_len = length + draw(st.integers(0, 4))
    inputs = draw_inputs(
        draw(st.integers(0, 999)),
        batch,
        draw(st.integers(1, 5)),
        length,
        kv_heads * draw(st.integers(1, 3)),
        draw(st.integers(1, 4)),
        draw(st.integers(1, 5)),
        kv_heads,
        max_len,
        draw(st.booleans()),
    )
    mask = None
    if draw(st.booleans()):
        rows = st.lists(st.booleans(), min_size=length, max_size=length)
        mask = torch.tensor([draw(rows) for _ in range(batch)])
    return inputs, mask


def assert_is_the_definition(inputs, mask, length_scaling, gradients):
    options = {"key_padding_mask": mask, "length_scaling": length_scaling}
    actual = linformer_attention(*inputs, **options)
    expected = reference.linformer_attention(*inputs, **options)
    assert_close(actual, expected)
    if mask is None or not mask.all():
        assert_close(gradients(actual, inputs), gradients(expected, inputs))


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(case=attention_inputs(), length_scaling=st.booleans())
def test_output_and_every_gradient_are_those_of_the_definition(gradients, case, length_scaling):
    assert_is_the_definition(*case, length_scaling, gradients)


@pytest.mark.parametrize("per_head", [False, True], ids=["shared-proj", "proj-per-head"])
@pytest.mark.parametrize(
    ("heads", "kv_heads"), [(3, 3), (6, 2), (3, 1)], ids=["multi-head", "grouped-query", "multi-query"]
)
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_sizes_of_distinct_primes(gradients, heads, kv_heads, per_head, padded):
    inputs = draw_inputs(0, 2, 7, 11, heads, 5, 13, kv_heads, 17, per_head, v_dim=19)
    mask = torch.arange(11) >= torch.tensor([[11], [4]]) if padded else None
    assert_is_the_definition(inputs, mask, True, gradients)


@pytest.mark.parametrize(
    ("max_len", "options", "expected"),
    [
        # keys 0 and ln 3 give slots 0 and 0 + ln 3: scores 0 and 2 ln 3 / √4, weights 1/4 and 3/4;
        # values 3 and 5 give slots 2·3 + 5 = 11 and 4·5 = 20: 11/4 + 3·20/4
        pytest.param(2, {}, 17.75, id="full-length"),
        # a factor √(8 / 2) = 2 on slots: scores 0 and 2 ln 3, weights 1/10 and 9/10, values 22 and 40
        pytest.param(8, {}, 38.2, id="short-of-max-len"),
        pytest.param(8, {"length_scaling": False}, 17.75, id="bare-formula"),
        # scores 0 and 2 ln 3: 11/10 + 9·20/10
        pytest.param(2, {"scale": 1.0}, 19.1, id="own-scale"),
    ],
)
def test_example_by_hand(max_len, options, expected):
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 2, 4)
    query[..., 0] = 2.0
    key[0, 0, 1, 0] = math.log(3)
    value = torch.tensor([[[[3.0], [5.0]]]])
    proj_k, proj_v = torch.full((max_len, 2), 99.0), torch.full((max_len, 2), 99.0)
    proj_k[:2] = torch.tensor([[1.0, 1.0], [0.0, 1.0]])
    proj_v[:2] = torch.tensor([[2.0, 0.0], [1.0, 4.0]])
    output = linformer_attention(query, key, value, proj_k, proj_v, **options)
    assert output.item() == pytest.approx(expected)


def test_identity_projections_at_full_length_are_ordinary_attention(gradients):
    query, key, value, _, _ = draw_inputs(0, 2, 7, 11, 3, 5, 1, 3, 11, False)
    identity = torch.eye(11, dtype=torch.float64)
    actual = linformer_attention(query, key, value, identity, identity)
    expected = F.scaled_dot_product_attention(query, key, value)
    assert_close(actual, expected)
    assert_close(gradients(actual, [query, key, value]), gradients(expected, [query, key, value]))


def test_each_row_of_a_padded_batch_equals_the_row_alone():
    query, key, value, proj_k, proj_v = draw_inputs(0, 3, 7, 11, 2, 5, 3, 2, 13, True)
    lengths = [11, 4, 1]
    mask = torch.arange(11) >= torch.tensor(lengths)[:, None]
    padded = linformer_attention(query, key, value, proj_k, proj_v, key_padding_mask=mask)
    for row, n in enumerate(lengths):
        one = slice(row, row + 1)
        alone = linformer_attention(query[one], key[one, :, :n], value[one, :, :n], proj_k, proj_v)
        assert_close(padded[one], alone)


def test_fully_padded_row_gives_zeros_and_finite_gradients(gradients):
    inputs = draw_inputs(0, 2, 3, 5, 2, 3, 3, 1, 7, False)
    mask = torch.tensor([[True] * 5, [False] * 5])
    output = linformer_attention(*inputs, key_padding_mask=mask)
    assert not output[0].any()
    assert all(gradient.isfinite().all() for gradient in gradients(output, inputs))


def test_rows_of_a_batch_do_not_see_each_other():
    query, key, value, proj_k, proj_v = draw_inputs(0, 3, 5, 7, 2, 3, 3, 2, 7, True)
    output = linformer_attention(query, key, value, proj_k, proj_v)
    for gradient in torch.autograd.grad(output[1].sum(), [query, key, value]):
        assert gradient[1].any()
        assert not gradient[[0, 2]].any()
    order = [2, 0, 1]
    shuffled = linformer_attention(query[order], key[order], value[order], proj_k, proj_v)
    assert_close(shuffled, output[order])


@pytest.mark.parametrize("kv_heads", [1, 2])
def test_gradcheck(kv_heads):
    inputs = draw_inputs(0, 2, 2, 4, 2, 2, 3, kv_heads, 5, False)
    mask = torch.tensor([[False] * 4, [False, True, False, True]])
    assert torch.autograd.gradcheck(lambda *x: linformer_attention(*x, key_padding_mask=mask), inputs)


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("kv_heads", [1, 2, 4])
def test_asking_for_weights_changes_neither_output_nor_gradients(gradients, scale, kv_heads):
    query, key, value, _, _ = draw_inputs(0, 3, 5, 7, 4, 3, 3, kv_heads, 7, False)
    inputs = [query, key, value]
    mask = torch.tensor([[False] * 7, [False, True] * 3 + [True], [True] * 7])
    fast, none = attend(*inputs, padding_mask=mask, scale=scale)
    output, weights = attend(*inputs, padding_mask=mask, scale=scale, need_weights=True)
    assert none is None
    assert_close(output, fast)
    assert_close(gradients(output, inputs), gradients(fast, inputs))
    assert_close(weights @ value.repeat_interleave(4 // kv_heads, dim=1), output)
    assert_close(weights.sum(-1), torch.tensor([1.0, 1.0, 0.0], dtype=torch.float64).view(3, 1, 1).expand(3, 4, 5))
    assert not weights[1][..., mask[1]].any()


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_scales_what_is_left_so_that_the_mean_stays(need_weights):
    torch.manual_seed(0)
    query, key, value = torch.zeros(500, 2, 7, 3), torch.zeros(500, 2, 11, 3), torch.ones(500, 2, 11, 1)
    output, _ = attend(query, key, value, dropout_p=0.25, need_weights=need_weights)
    kept = (output * 11 * 0.75).round()
    assert_close(output, kept / (11 * 0.75))
    assert 0 < kept.min() < kept.max() == 11
    assert output.mean().item() == pytest.approx(1.0, abs=0.02)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
def test_error_in_low_precision_stays_near_that_of_the_plain_formula(gradients, dtype):
    double = [x.detach() for x in draw_inputs(0, 2, 31, 61, 2, 16, 13, 2, 67, False)]
    low = [x.to(dtype) for x in [*double[:3], double[3] / 8, double[4] / 8]]
    mask = torch.arange(61) >= torch.tensor([[61], [23]])

    def plain(query, key, value, proj_k, proj_v):
        real = ~mask[:, None, :, None]
        factor = (67 / torch.tensor([61, 23]).view(2, 1, 1, 1)).sqrt().to(query.dtype)
        slots_k, slots_v = (factor * (e[:61].mT @ (x * real)) for x, e in ((key, proj_k), (value, proj_v)))
        return torch.softmax(query @ slots_k.mT / 4, dim=-1) @ slots_v

    def fast(*inputs):
        return linformer_attention(*inputs, key_padding_mask=mask)

    def run(function, inputs):
        inputs = [x.clone().requires_grad_() for x in inputs]
        output = function(*inputs)
        return [output, *gradients(output, inputs)]

    exact = run(plain, [x.double() for x in low])
    for truth, naive, actual in zip(exact, run(plain, low), run(fast, low), strict=True):
        rounding = ROUNDINGS * torch.finfo(dtype).eps * truth.abs().max()
        assert actual.dtype == dtype
        assert (actual - truth).abs().max() <= TWICE * (naive - truth).abs().max() + rounding


def causal_inputs(queries, positions):
    query, key, value, _, _ = draw_inputs(0, 3, queries, positions, 2, 5, 1, 2, positions, False, v_dim=7)
    return [query, key, value]


def attend_to_past_literally(query, key, value, mask):
    """Each query alone over the tokens up to its own position, itself where that is padding."""
    offset = key.shape[2] - query.shape[2]
    outputs = []
    for row in range(query.shape[0]):
        real = reference.real_positions(mask, row, key.shape[2])
        for head in range(query.shape[1]):
            for index in range(query.shape[2]):
                seen = [p for p in range(offset + index + 1) if p in real or p == offset + index]
                one = query[row, head, index : index + 1]
                outputs.append(reference.softmax_row(one, key[row, head], value[row, head], seen))
    return torch.cat(outputs).view(*query.shape[:3], value.shape[-1])


@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(("queries", "positions"), [(11, 11), (4, 11), (1, 11), (1, 1)])
def test_each_query_attends_to_the_tokens_up_to_its_own(gradients, queries, positions, padded, need_weights, scale):
    inputs = causal_inputs(queries, positions)
    mask = None
    if padded:
        mask = torch.zeros(3, positions, dtype=torch.bool)
        mask[1, : positions // 2], mask[2] = True, True
        mask[1, -2:] = True
    call = SoftmaxCall(need_weights=need_weights, scale=scale)
    actual, weights = attend_to_past(*inputs, padding_mask=mask, call=call)
    factor = 1 if scale is None else scale * inputs[0].shape[-1] ** 0.5  # the definition divides by the root
    expected = attend_to_past_literally(factor * inputs[0], *inputs[1:], mask)
    assert_close(actual, expected)
    assert_close(gradients(actual, inputs), gradients(expected, inputs))
    assert (weights is not None) == need_weights
    if need_weights:
        assert_close(weights @ inputs[2], actual)
        assert not weights.tril(positions - queries).ne(weights).any()


def test_all_positions_at_once_are_torchs_causal_attention(gradients):
    inputs = causal_inputs(11, 11)
    actual, _ = attend_to_past(*inputs, padding_mask=torch.zeros(3, 11, dtype=torch.bool))
    expected = F.scaled_dot_product_attention(*inputs, is_causal=True)
    assert_close(actual, expected)
    assert_close(gradients(actual, inputs), gradients(expected, inputs))
    assert torch.equal(attend_to_past(*inputs)[0], expected)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_the_gradient_to_later_positions_is_exactly_zero(padded, need_weights):
    query, key, value = causal_inputs(7, 7)
    mask = torch.arange(7) >= torch.tensor([[7], [4], [1]]) if padded else None
    output, _ = attend_to_past(query, key, value, padding_mask=mask, call=SoftmaxCall(need_weights=need_weights))
    for position in range(7):
        for gradient in torch.autograd.grad(output[:, :, position].sum(), [key, value], retain_graph=True):
            assert not gradient[:, :, position + 1 :].any()


def test_dropout_of_causal_attention_scales_what_is_left():
    torch.manual_seed(0)
    query, value = torch.zeros(500, 2, 7, 3), torch.ones(500, 2, 7, 1)
    counts = torch.arange(1.0, 8.0).view(7, 1)
    no_padding = torch.zeros(500, 7, dtype=torch.bool)
    for mask, need_weights in ((None, False), (None, True), (no_padding, False)):
        call = SoftmaxCall(dropout_p=0.25, need_weights=need_weights)
        output, _ = attend_to_past(query, query, value, padding_mask=mask, call=call)
        kept = (output * counts * 0.75).round()
        assert_close(output, kept / (counts * 0.75))
        assert (kept == counts).any() and (kept < counts).any()
        assert output.mean().item() == pytest.approx(1.0, abs=0.02)


def test_repeated_heads_stand_beside_their_own():
    x = torch.arange(6.0).view(1, 2, 3, 1).requires_grad_()
    repeated = repeat_heads(x, 6)
    assert repeated[0, :, 0, 0].tolist() == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0]
    assert repeat_heads(x, 2) is x
    with pytest.raises(ValueError, match="5 query heads are not a multiple of 2 key/value heads"):
        repeat_heads(x, 5)


def test_heads_that_do_not_divide_are_refused():
    query, key = torch.randn(2, 5, 3, 4), torch.randn(2, 3, 7, 4)
    with pytest.raises(ValueError, match="5 query heads are not a multiple of 3 key/value heads"):
        linformer_attention(query, key, key, torch.randn(7, 2), torch.randn(7, 2))


def test_more_positions_than_rows_are_refused():
    query, key = torch.randn(2, 1, 3, 4), torch.randn(2, 1, 7, 4)
    with pytest.raises(ValueError, match=r"7 positions but max_len is 5.*resize_max_len\(7\)"):
        linformer_attention(query, key, key, torch.randn(5, 2), torch.randn(5, 2))

"""Attention over slots: against the literal definition, forward and every gradient, in float64."""

import math

import pytest
import torch
from budgets import TWICE
from calls import assert_errs_as_the_plain_formula, attend, attend_with_window
from calls import causal_linformer_attention as causal
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.functional import linformer_attention, reference
from torch_linformer.functional.causal import SlotWeights
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


def assert_is_the_definition(inputs, mask, length_scaling, gradients):
    options = {"key_padding_mask": mask, "length_scaling": length_scaling}
    actual = linformer_attention(*inputs, **options)
    expected = reference.linformer_attention(*inputs, **options)
    assert_close(actual, expected)
    if mask is None or not mask.all():
        assert_close(gradients(actual, inputs), gradients(expected, inputs))


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


WEIGHTS = SoftmaxCall(dropout_p=0.25, need_weights=True)
NO_PADDING, PROJ = torch.zeros(500, 7, dtype=torch.bool), SlotWeights(torch.linspace(0.1, 1.0, 5))
DROPPED = {  # output of zeros and ones, and how many weights each of seven queries has
    "slots": (lambda q, v: attend(q, q, v, dropout_p=0.25)[0], [7] * 7),
    "slots, weights": (lambda q, v: attend(q, q, v, dropout_p=0.25, need_weights=True)[0], [7] * 7),
    "window": (
        lambda q, v: attend_with_window(q, q[:, :, :5], v[:, :, :5], q, v, 1, dropout_p=0.25)[0],
        [7, 8, 8, 8, 8, 8, 7],
    ),
    "past": (lambda q, v: attend_to_past(q, q, v, call=SoftmaxCall(0.25))[0], range(1, 8)),
    "past, weights": (lambda q, v: attend_to_past(q, q, v, call=WEIGHTS)[0], range(1, 8)),
    "past, a mask": (
        lambda q, v: attend_to_past(q, q, v, padding_mask=NO_PADDING, call=SoftmaxCall(0.25))[0],
        range(1, 8),
    ),
    "running means": (lambda q, v: causal(q, q, v, PROJ, dropout_p=0.25, chunk_size=4), [5] * 7),
    "running means, window": (
        lambda q, v: causal(q, q, v, PROJ, window=3, dropout_p=0.25, chunk_size=4),
        [6, 7, 8, 8, 8, 8, 8],
    ),
    "running means, window and first": (
        lambda q, v: causal(q, q, v, PROJ, window=3, exact_first=2, dropout_p=0.25, chunk_size=4),
        [6, 7, 8, 9, 10, 10, 10],
    ),
}


@pytest.mark.parametrize("name", DROPPED)
def test_dropout_scales_what_is_left_so_that_the_mean_stays(name):
    torch.manual_seed(0)
    function, numbers = DROPPED[name]
    output, choices = (
        function(torch.zeros(500, 2, 7, 3), torch.ones(500, 2, 7, 1)),
        torch.tensor(list(numbers)).view(7, 1),
    )
    kept = (output * choices * 0.75).round()
    assert_close(output, kept / (choices * 0.75))
    assert kept.min() >= 0 and (kept == choices).any() and (kept < choices).any()
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

    assert_errs_as_the_plain_formula(gradients, fast, plain, low, dtype, [TWICE] * 6)


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


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("need_weights", [False, True])
def test_the_gradient_to_later_positions_is_exactly_zero(padded, need_weights):
    query, key, value = causal_inputs(7, 7)
    mask = torch.arange(7) >= torch.tensor([[7], [4], [1]]) if padded else None
    output, _ = attend_to_past(query, key, value, padding_mask=mask, call=SoftmaxCall(need_weights=need_weights))
    for position in range(7):
        for gradient in torch.autograd.grad(output[:, :, position].sum(), [key, value], retain_graph=True):
            assert not gradient[:, :, position + 1 :].any()


def test_repeated_heads_stand_beside_their_own():
    x = torch.arange(6.0).view(1, 2, 3, 1).requires_grad_()
    repeated = repeat_heads(x, 6)
    assert repeated[0, :, 0, 0].tolist() == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0]
    assert repeat_heads(x, 2) is x
    with pytest.raises(ValueError, match="5 query heads are not a multiple of 2 key/value heads"):
        repeat_heads(x, 5)

"""Maps of a sequence to slots: against the literal definitions, forward and every gradient, in float64."""

import math

import pytest
import torch
from budgets import ROUNDINGS, TWICE
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from torch_linformer.functional import project_sequence, reference
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.slots import average_windows, convolve_windows, empty_windows, max_windows

light = settings(max_examples=60, deadline=None, derandomize=True, database=None)


@st.composite
def padded_sequences(draw):
    """A sequence ``(B, M, C)`` or ``(B, H, M, D)``, a padding mask or None, ``max_len`` and K."""
    batch, length, channels = draw(st.integers(1, 3)), draw(st.integers(1, 9)), draw(st.integers(1, 4))
    heads = draw(st.none() | st.integers(1, 3))
    max_len = length + draw(st.integers(0, 5))
    num_slots = draw(st.integers(1, max_len))
    generator = torch.Generator(torch.get_default_device()).manual_seed(draw(st.integers(0, 999)))
    shape = (batch, length, channels) if heads is None else (batch, heads, length, channels)
    sequence = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    mask = None
    if draw(st.booleans()):
        rows = st.lists(st.booleans(), min_size=length, max_size=length)
        mask = torch.tensor([draw(rows) for _ in range(batch)])
    return sequence, mask, max_len, num_slots


def trailing_padding(case):
    """The case with as much padding in each row, all of it behind the real tokens."""
    sequence, mask, max_len, num_slots = case
    return sequence, None if mask is None else mask.long().sort(dim=-1).values.bool(), max_len, num_slots


def trailing(mask):
    return None if mask is None else Padding(mask, in_order=True)


def weights_like(sequence, per_head, *shape):
    """Seeded random weights of ``shape``; with ``per_head``, one set for each head the sequence has."""
    heads = [sequence.shape[1]] if per_head and sequence.dim() == 4 else []
    generator = torch.Generator(torch.get_default_device()).manual_seed(7)
    return torch.randn(*heads, *shape, generator=generator, dtype=torch.float64, requires_grad=True)


def row_by_row(sequence, mask, slots_of_row):
    """``slots_of_row(sequence (M, D), head, real positions)`` put together for every row and head."""
    rows = []
    for row in range(sequence.shape[0]):
        real = reference.real_positions(mask, row, sequence.shape[-2])
        if sequence.dim() == 3:
            rows.append(slots_of_row(sequence[row], 0, real))
        else:
            rows.append(torch.stack([slots_of_row(x, head, real) for head, x in enumerate(sequence[row])]))
    return torch.stack(rows)


@light
@given(case=padded_sequences().map(trailing_padding), per_head=st.booleans())
def test_convolution_is_projection_by_the_banded_matrix(gradients, case, per_head):
    sequence, mask, max_len, num_slots = case
    kernel = weights_like(sequence, per_head, math.ceil(max_len / num_slots))
    actual = convolve_windows(sequence, kernel, num_slots, trailing(mask))

    def literal(x, head, real):
        matrix = reference.banded_matrix(kernel if kernel.dim() == 1 else kernel[head], max_len, num_slots)
        return reference.project_row(x, matrix, real, length_scaling=False)

    expected = row_by_row(sequence, mask, literal)
    assert_close(actual, expected)
    if mask is None or not mask.all():
        assert_close(gradients(actual, [sequence, kernel]), gradients(expected, [sequence, kernel]))


@pytest.mark.parametrize(("pool", "kind"), [(average_windows, "mean"), (max_windows, "max")], ids=["mean", "max"])
@light
@given(case=padded_sequences().map(trailing_padding))
def test_pooling_takes_the_real_tokens_of_each_window(gradients, pool, kind, case):
    sequence, mask, max_len, num_slots = case
    window = math.ceil(max_len / num_slots)
    actual = pool(sequence, window, num_slots, trailing(mask))
    expected = row_by_row(sequence, mask, lambda x, head, real: reference.pool_row(x, window, num_slots, real, kind))
    assert_close(actual, expected)
    if mask is None or not mask.all():
        assert_close(gradients(actual, [sequence]), gradients(expected, [sequence]))


@light
@given(case=padded_sequences().map(trailing_padding))
def test_empty_windows_are_those_without_a_real_token(case):
    sequence, mask, max_len, num_slots = case
    window = math.ceil(max_len / num_slots)
    empty = empty_windows(trailing(mask), window, num_slots, sequence.shape[-2], sequence.device).mask
    for row in range(sequence.shape[0]):
        filled = {position // window for position in reference.real_positions(mask, row, sequence.shape[-2])}
        expected = [slot not in filled for slot in range(num_slots)]
        assert empty.expand(sequence.shape[0], -1)[row].tolist() == expected


def test_length_factor_by_hand():
    ones = torch.ones(8, 1, dtype=torch.float64)
    sequence = torch.tensor([[[3.0], [5.0]]], dtype=torch.float64)
    assert project_sequence(sequence, ones).item() == pytest.approx(16.0)  # (3 + 5) √(8 / 2)
    assert project_sequence(sequence, ones, length_scaling=False).item() == pytest.approx(8.0)
    one_is_padding = torch.tensor([[True, False]])
    slots = project_sequence(sequence, ones, key_padding_mask=one_is_padding)
    assert slots.item() == pytest.approx(5 * math.sqrt(8))


@pytest.mark.parametrize("masked", [False, True])
def test_a_map_of_no_positions_gives_slots_of_zeros(masked):
    mask = torch.zeros(2, 0, dtype=torch.bool) if masked else None
    slots = project_sequence(torch.randn(2, 0, 3), torch.randn(0, 5), key_padding_mask=mask)
    assert torch.equal(slots, torch.zeros(2, 5, 3))


@pytest.mark.parametrize("num_heads", [None, 2], ids=["shared", "per-head"])
def test_no_positions_at_all_give_empty_slots(num_heads):
    shape = (3, 0, 5) if num_heads is None else (3, num_heads, 0, 5)
    slots = project_sequence(torch.randn(shape), torch.randn(11, 7))
    assert slots.shape == (*shape[:-2], 7, 5)
    assert not slots.any()


MAPS = {
    "conv": lambda x, weight, mask: convolve_windows(x, weight[:3, 0], 5, trailing(mask)),
    "max": lambda x, weight, mask: max_windows(x, 3, 5, trailing(mask)) * weight.sum(),
}


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), float("-inf")], ids=["nan", "inf", "minus-inf"])
@pytest.mark.parametrize("kind", MAPS)
def test_whatever_stands_at_padding_changes_nothing(gradients, kind, poison):
    mask = torch.tensor([[False] * 7 + [True] * 4, [True] * 11, [True, False] * 5 + [True]])
    clean = torch.randn(3, 2, 11, 3, dtype=torch.float64).masked_fill(mask[:, None, :, None], 0.0)
    weight = torch.randn(13, 5, dtype=torch.float64, requires_grad=True)
    results = []
    for filling in (0.0, poison):
        sequence = clean.masked_fill(mask[:, None, :, None], filling).requires_grad_()
        slots = MAPS[kind](sequence, weight, mask)
        to_sequence, to_weight = gradients(slots, [sequence, weight])
        assert not to_sequence.masked_select(mask[:, None, :, None]).any()
        results.append((slots, to_sequence, to_weight))
    for expected, actual in zip(*results, strict=True):
        assert actual.isfinite().all()
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bfloat16", "float16"])
@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
def test_error_in_low_precision_stays_near_that_of_the_plain_product(dtype, masked):
    torch.manual_seed(0)
    sequence, proj = torch.randn(3, 97, 17).to(dtype), (torch.randn(113, 23) / 113**0.5).to(dtype)
    lengths = torch.tensor([97, 53, 31]) if masked else torch.tensor([97, 97, 97])
    mask = torch.arange(97) >= lengths[:, None]

    def plain(x, matrix):
        factor = (113 / lengths[:, None, None]).sqrt().to(x.dtype)
        return factor * (matrix[:97].mT @ x.masked_fill(mask[..., None], 0.0))

    exact = plain(sequence.double(), proj.double())
    actual = project_sequence(sequence, proj, key_padding_mask=mask if masked else None)
    assert actual.dtype == dtype
    budget = TWICE * (plain(sequence, proj) - exact).abs().max() + ROUNDINGS * torch.finfo(dtype).eps
    assert (actual - exact).abs().max() <= budget


@pytest.mark.parametrize(
    ("sequence", "proj", "mask", "message"),
    [
        ((2, 3), (5, 4), None, r"sequence must be \(B, M, C\) or \(B, H, M, D\), got \(2, 3\)"),
        (
            (2, 3, 7),
            (11, 5, 4),
            None,
            r"one matrix a head must be \(H, max_len, K\).*\(11, 5, 4\).*\(2, 3, 7\)",
        ),
        ((2, 3, 5, 7), (2, 5, 4), None, r"got \(2, 5, 4\) and \(2, 3, 5, 7\)"),
        ((2, 3, 7), (5,), None, r"proj must be \(max_len, K\) or \(H, max_len, K\), got \(5,\)"),
        ((2, 7, 3), (5, 4), None, r"sequence has 7 positions but max_len is 5: .*resize_max_len\(7\)"),
        ((2, 3, 7), (5, 4), torch.zeros(2, 4).bool(), r"shape \(B, M\) = \(2, 3\), got \(2, 4\)"),
        ((2, 3, 7), (5, 4), torch.zeros(2, 3), r"must be bool \(True at padding\), got torch.float32"),
        ((2, 3, 7), (5, 4), torch.zeros(2, 3).long(), r"must be bool \(True at padding\), got torch.int64"),
    ],
)
def test_what_does_not_fit_is_named(sequence, proj, mask, message):
    with pytest.raises(ValueError, match=message):
        project_sequence(torch.randn(sequence), torch.randn(proj), key_padding_mask=mask)

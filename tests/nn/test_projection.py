"""`SequenceProjection`: every kind against the literal definition, its statistics, weights and errors."""

import math

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.functional import reference
from torch_linformer.nn import SequenceProjection

KINDS = ("linear", "random", "conv", "mean", "max")
WEIGHTED = ("linear", "random", "conv")
DOUBLE = {"dtype": torch.float64}


def literal(projection, sequence, mask, slots_of_row, **options):
    """Slots of a whole batch ``(B, M, C)`` or ``(B, H, M, D)``."""
    rows = []
    for row, x in enumerate(sequence):
        real = reference.real_positions(mask, row, sequence.shape[-2])
        if x.dim() == 2:
            rows.append(slots_of_row(projection, x, 0, real, **options))
        else:
            rows.append(torch.stack([slots_of_row(projection, y, h, real, **options) for h, y in enumerate(x)]))
    return torch.stack(rows)


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize(
    ("shape", "num_heads"),
    [((2, 11, 7), None), ((2, 3, 11, 7), None), ((2, 3, 11, 7), 3)],
    ids=["B2-M11-C7", "B2-H3-M11-D7", "B2-H3-M11-D7-per-head"],
)
@pytest.mark.parametrize("kind", KINDS)
def test_slots_and_gradients_are_those_of_the_definition(
    gradients, literal_slots, trailing_padding, kind, shape, num_heads, padded
):
    projection = SequenceProjection(13, 5, projection=kind, num_heads=num_heads, **DOUBLE)
    sequence = torch.randn(shape, requires_grad=True, **DOUBLE)
    mask = trailing_padding([11, 4], 11) if padded else None
    actual, expected = projection(sequence, mask), literal(projection, sequence, mask, literal_slots)
    assert_close(actual, expected)
    wanted = [sequence, *projection.parameters()]
    assert_close(gradients(actual, wanted), gradients(expected, wanted))


@pytest.mark.parametrize("poison", [float("nan"), float("inf")], ids=["nan", "inf"])
@pytest.mark.parametrize("kind", KINDS)
def test_whatever_a_mask_hides_changes_nothing(gradients, kind, poison):
    projection = SequenceProjection(13, 5, projection=kind, **DOUBLE)
    mask = torch.tensor([[False] * 7 + [True] * 4, [True] * 11, [True, False] * 5 + [True]])
    clean, results = torch.randn(3, 11, 7, **DOUBLE), []
    for filling in (0.0, poison):
        sequence = clean.masked_fill(mask.unsqueeze(-1), filling).requires_grad_()
        slots = projection(sequence, mask)
        results.append((slots, *gradients(slots, [sequence, *projection.parameters()])))
    for expected, actual in zip(*results, strict=True):
        assert actual.isfinite().all()
        assert torch.equal(actual, expected)
    assert not results[1][1][mask].any()


def test_without_length_scaling_it_is_the_bare_product():
    projection = SequenceProjection(13, 5, length_scaling=False, **DOUBLE)
    sequence = torch.randn(2, 11, 7, **DOUBLE)
    assert_close(projection(sequence), projection.weight[:11].mT @ sequence)


def test_convolution_keeps_channels_apart_and_takes_one_window_a_slot():
    projection = SequenceProjection(8, 3, projection="conv")  # windows of 3: positions 0-2, 3-5, 6-7
    with torch.no_grad():
        projection.weight.copy_(torch.tensor([1.0, 10.0, 100.0]))
    sequence = torch.zeros(1, 8, 2)
    sequence[0, :, 0] = torch.arange(1.0, 9.0)
    assert projection(sequence)[0].tolist() == [[321.0, 0.0], [654.0, 0.0], [87.0, 0.0]]


@pytest.mark.parametrize(
    ("kind", "expected"), [("mean", [[2.0, 0.0], [4.0, -1.0]]), ("max", [[3.0, 0.0], [4.0, -1.0]])]
)
def test_pooling_by_hand_leaves_padding_out(kind, expected):
    sequence = torch.tensor([[[1.0, 0.0], [3.0, 0.0], [4.0, -1.0], [99.0, 99.0]]])
    mask = torch.tensor([[False, False, False, True]])
    assert SequenceProjection(4, 2, projection=kind)(sequence, mask)[0].tolist() == expected


@pytest.mark.parametrize("kind", ["conv", "mean", "max"])
def test_slots_that_a_sequence_reaches_and_those_among_them_without_a_token(kind, trailing_padding):
    projection = SequenceProjection(10, 7, projection=kind)  # windows of 2: 5 slots for 10
    assert [projection.reached(length) for length in (1, 2, 3, 10)] == [1, 1, 2, 5]
    assert projection.slot_padding_mask(torch.randn(2, 3, 3), all_slots=False) is None
    masked = projection.slot_padding_mask(torch.randn(2, 5, 3), trailing_padding([4, 1], 5), all_slots=False)
    assert masked.tolist() == [[False, False, True], [False, True, True]]


@pytest.mark.parametrize("kind", ["conv", "mean", "max"])
@pytest.mark.parametrize("all_slots", [True, False])
def test_the_mask_is_that_of_the_slots(kind, all_slots, trailing_padding):
    projection = SequenceProjection(10, 7, projection=kind)  # windows of 2: 5 slots for 10
    for length, padding in ((10, None), (3, None), (5, trailing_padding([4, 1], 5)), (0, None)):
        sequence = torch.randn(2, length, 3)
        slots = projection(sequence, padding, all_slots=all_slots)
        masked = projection.slot_padding_mask(sequence, padding, all_slots=all_slots)
        real = torch.ones(2, length, dtype=torch.bool) if padding is None else ~padding
        expected = [[not row[2 * slot : 2 * slot + 2].any() for slot in range(slots.shape[1])] for row in real]
        masked = torch.zeros(1, slots.shape[1], dtype=torch.bool) if masked is None else masked
        assert masked.expand(2, -1).tolist() == expected


@pytest.mark.parametrize("kind", ["linear", "random"])
def test_dense_slots_are_never_masked(kind):
    projection = SequenceProjection(10, 7, projection=kind)
    assert projection.reached(3) == 7
    assert projection.slot_padding_mask(torch.randn(2, 3, 3), torch.ones(2, 3).bool()) is None


@pytest.mark.parametrize(
    ("kind", "num_heads", "shape"),
    [
        ("linear", None, (13, 5)),
        ("linear", 3, (3, 13, 5)),
        ("random", None, (13, 5)),
        ("random", 3, (3, 13, 5)),
        ("conv", None, (3,)),
        ("conv", 3, (3, 3)),
        ("mean", 3, None),
        ("max", 3, None),
    ],
)
def test_what_each_kind_owns(kind, num_heads, shape):
    projection = SequenceProjection(13, 5, projection=kind, num_heads=num_heads)
    state = projection.state_dict()
    assert {name: tuple(tensor.shape) for name, tensor in state.items()} == ({"weight": shape} if shape else {})
    learned = [name for name, _ in projection.named_parameters()]
    assert learned == (["weight"] if kind in ("linear", "conv") else [])


def test_random_projection_is_saved_and_comes_back():
    saved, other = (SequenceProjection(13, 5, projection="random") for _ in range(2))
    sequence = torch.randn(2, 13, 7)
    assert not torch.equal(saved(sequence), other(sequence))
    other.load_state_dict(saved.state_dict())
    assert torch.equal(saved(sequence), other(sequence))


@pytest.mark.parametrize("num_heads", [None, 4], ids=["one-for-all", "per-head"])
@pytest.mark.parametrize("kind", WEIGHTED)
def test_weights_are_drawn_with_the_variance_that_keeps_a_slot_at_size_one(kind, num_heads):
    projection = SequenceProjection(4096, 8, projection=kind, num_heads=num_heads)
    summed = 4096 if kind != "conv" else 512
    assert projection.weight.std().item() * math.sqrt(summed) == pytest.approx(1.0, abs=0.15)
    assert abs(projection.weight.mean().item()) * math.sqrt(summed) < 0.15


@pytest.mark.parametrize("length", [16, 100, 1024])
@pytest.mark.parametrize("padded", [False, True], ids=["short", "padded"])
@pytest.mark.parametrize("kind", ["linear", "random"])
def test_variance_of_slots_does_not_depend_on_the_length(trailing_padding, kind, padded, length):
    projection = SequenceProjection(1024, 64, projection=kind)
    tokens = torch.randn(4, 1024 if padded else length, 64)
    slots = projection(tokens, trailing_padding([length] * 4, 1024) if padded else None)
    assert slots.var().item() == pytest.approx(1.0, abs=0.15)


def test_variance_of_whole_convolution_windows_is_one():
    slots = torch.stack([SequenceProjection(1024, 64, projection="conv")(torch.randn(4, 1024, 64)) for _ in range(50)])
    assert slots.var().item() == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"projection": "fourier"},
            "projection must be one of linear, random, conv, mean, max, got 'fourier'",
        ),
        ({"k": 0}, "k must lie between 1 and max_len = 13, got 0"),
        ({"k": 14}, "k must lie between 1 and max_len = 13, got 14"),
        ({"max_len": 0}, "max_len must be at least 1, got 0"),
    ],
)
def test_arguments_out_of_range_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        SequenceProjection(**{"max_len": 13, "k": 5, **arguments})


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_do_not_fit_are_named(kind):
    projection = SequenceProjection(13, 5, projection=kind)
    with pytest.raises(ValueError, match=r"14 positions but max_len is 13.*resize_max_len\(14\)"):
        projection(torch.randn(2, 14, 7))
    with pytest.raises(ValueError, match=r"key_padding_mask must have shape \(B, M\) = \(2, 13\), got \(2, 12\)"):
        projection(torch.randn(2, 13, 7), torch.zeros(2, 12).bool())
    with pytest.raises(ValueError, match=r"key_padding_mask must be bool \(True at padding\), got torch.int64"):
        projection(torch.randn(2, 13, 7), torch.zeros(2, 13).long())


def test_representation_says_what_it_maps():
    shown = repr(SequenceProjection(13, 5, projection="conv", num_heads=3))
    assert shown == "SequenceProjection(max_len=13, k=5, projection='conv', num_heads=3)"

"""Slots that are too far away to have a weight are left out, and nobody can tell."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing import assert_close

from torch_linformer.functional import dynamic
from torch_linformer.functional.dynamic import SegmentPrior, pool

LENGTH, SLOTS, HEADS, WIDTH = 1200, 60, 2, 4


@pytest.fixture
def computed(monkeypatch):
    """How many scores were computed."""
    counts = []

    def counting(compute):
        def count(scoring, *pooled):
            heads, slots, _ = scoring.queries.shape
            counts.append(heads * slots * scoring.scored.shape[0] * scoring.scored.shape[2])
            return compute(scoring, *pooled)

        return count

    for name in ("_weights_in_place", "_pool_by_flash"):
        monkeypatch.setattr(dynamic, name, counting(getattr(dynamic, name)))
    return counts


@pytest.fixture(params=[WIDTH, WIDTH + 1], ids=["by SDPA", "in place"])
def width(request):
    """Channels of what is pooled: SDPA pools what is as wide as what is scored."""
    return request.param


def inputs(width, scale=0.3, steepness=0.0):
    """Learned queries, d, a, and what is scored and pooled."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)

    def random(*shape, factor=1.0):
        drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
        return (factor * drawn).requires_grad_()

    a = (steepness + 0.2 * torch.randn(SLOTS, generator=generator, dtype=torch.float64)).requires_grad_()
    of_queries = random(HEADS, SLOTS, WIDTH, factor=scale), random(SLOTS, factor=0.3), a
    return [*of_queries, random(3, HEADS, LENGTH, WIDTH), random(3, HEADS, LENGTH, width)]


def found(monkeypatch, take_at_once, gradients, given, at_once, tokens=None):
    """Slots and gradients, so many scores at a time."""
    take_at_once(monkeypatch, pooled_scores=at_once)
    queries, shift, log_steepness, scored, sequence = given
    number = torch.tensor([LENGTH] if tokens is None else tokens)
    mask = None if tokens is None else torch.arange(LENGTH) >= number[:, None]
    (slots,) = pool(queries, SegmentPrior.of(shift, log_steepness), scored, [sequence], number, padding_mask=mask).slots
    return [slots, *gradients(slots, given)]


@pytest.mark.cpu("elsewhere none is left out, since that would wait for the device")
@pytest.mark.parametrize(
    ("tokens", "most"), [(None, 0.5), ([1200, 31, 500], 0.35), ([0, 1200, 1], 0.35)], ids=["whole", "padded", "empty"]
)
def test_slots_far_away_are_left_out(monkeypatch, take_at_once, gradients, computed, width, tokens, most):
    given = inputs(width)
    some = found(monkeypatch, take_at_once, gradients, given, 2**13, tokens)
    share = sum(computed) / 2 / (3 * HEADS * SLOTS * LENGTH)  # forward and backward
    assert 0.05 < share < most
    computed.clear()
    everything = found(monkeypatch, take_at_once, gradients, given, 2**30, tokens)
    assert sum(computed) / 2 == 3 * HEADS * SLOTS * LENGTH
    assert_close(some, everything, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize(("scale", "steepness"), [(1000.0, 0.0), (0.3, -12.0)], ids=["strong scores", "a flat prior"])
def test_none_is_left_out_that_might_have_a_weight(
    monkeypatch, take_at_once, gradients, computed, width, scale, steepness
):
    given = inputs(width, scale, steepness)
    some = found(monkeypatch, take_at_once, gradients, given, 2**13)
    assert sum(computed) / 2 == 3 * HEADS * SLOTS * LENGTH
    assert_close(some, found(monkeypatch, take_at_once, gradients, given, 2**30), rtol=1e-6, atol=1e-8)


def test_centers_outside_of_the_row(monkeypatch, take_at_once, gradients, width):
    """What is nearest to them are its first and its last tokens."""
    given = inputs(width)
    with torch.no_grad():
        given[1][:3], given[1][-3:] = -6.0, 6.0
    some, everything = (found(monkeypatch, take_at_once, gradients, given, at_once) for at_once in (2**13, 2**30))
    assert_close(some, everything, rtol=1e-9, atol=1e-12)
    assert some[0].isfinite().all()


def test_gradients_of_parts_that_some_slots_do_not_reach(monkeypatch, take_at_once, gradients, width):
    """One slot looks at the whole row, and so beyond slots that have no position in this part of it."""
    given = inputs(width)
    with torch.no_grad():
        given[2][0] = -12.0
    expected = found(monkeypatch, take_at_once, gradients, given, 2**13)
    queries, shift, log_steepness, scored, sequence = given
    prior, number, parts = SegmentPrior.of(shift, log_steepness), torch.tensor([LENGTH]), []
    for there in (slice(0, 600), slice(600, LENGTH)):
        keys, values = scored[:, :, there], [sequence[:, :, there]]
        parts.append(pool(queries, prior, keys, values, number, first=there.start))
    joined = parts[0].joined(parts[1]).slots[0]
    assert_close([joined, *gradients(joined, given)], expected, rtol=1e-9, atol=1e-11)


@torch.no_grad()
def test_what_is_no_number_stays_in_sight(monkeypatch, take_at_once, width):
    take_at_once(monkeypatch, pooled_scores=2**13)
    queries, shift, log_steepness, scored, sequence = inputs(width)
    log_steepness[7] = float("nan")
    slots = pool(queries, SegmentPrior.of(shift, log_steepness), scored, [sequence], torch.tensor([LENGTH])).slots[0]
    assert slots[:, :, 7].isnan().all() and slots[:, :, 30].isfinite().all()


@torch.no_grad()
def test_tensors_without_numbers(monkeypatch, take_at_once):
    """Of shapes alone, as memory is estimated by: no slot is left out."""
    take_at_once(monkeypatch, pooled_scores=2**13)
    with FakeTensorMode():
        queries, scored = torch.empty(HEADS, SLOTS, WIDTH), torch.empty(1, HEADS, LENGTH, WIDTH)
        prior = SegmentPrior.of(torch.empty(SLOTS), torch.empty(SLOTS))
        found = pool(queries, prior, scored, [scored], torch.full((1,), LENGTH))
    assert found.slots[0].shape == (1, HEADS, SLOTS, WIDTH)


@torch.no_grad()
def test_a_weight_is_nothing_or_far_above_the_smallest_numbers():
    """Their products with small gradients would be hundreds of times as slow on some processors."""
    queries, shift, log_steepness, scored, _ = inputs(WIDTH)
    prior, tokens = SegmentPrior.of(shift, log_steepness), torch.tensor([LENGTH])
    weights, *_ = dynamic._weights_in_place(dynamic.Scoring(queries, prior, scored, tokens, 0, None))
    assert weights.eq(0).any() and weights[weights > 0].min() > 1e-22
    assert_close(weights / weights.sum(-1, True), dynamic.pooling_weights(queries, prior, scored, tokens, None))

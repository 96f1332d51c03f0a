"""The errors of low-rank outputs, against literal definitions and known optima."""

import dataclasses

import pytest
import torch

from torch_linformer.analysis import measure_spectrum
from torch_linformer.analysis.low_rank import LowRankMeasurement, fitted_projection
from torch_linformer.analysis.observing import ObservedHead
from torch_linformer.functional import linformer_attention

N, D = 23, 5


def head(seed, mask=None):
    draw = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(N, D, generator=draw) for _ in range(3))
    scores = 0.7 * query @ key.mT + (0 if mask is None else mask)
    return ObservedHead(0, 0, query, key, value, 0.7, mask, torch.softmax(scores, dim=-1))


def errors_of(fitted_on, measured_on, ks):
    measurement = LowRankMeasurement((1, 1), N, ks)
    for one in fitted_on:
        measurement.fit(one)
    measurement.solve()
    for one in measured_on:
        measurement.measure(one)
    result = measurement.result(len(fitted_on), len(measured_on))
    return measurement, {name: table[0, 0].tolist() for name, table in result.errors.items()}


def relative(approximate, output):
    return float(torch.linalg.norm(approximate - output) / torch.linalg.norm(output))


def segment_means(x, k):
    """Each row replaced by the mean of its segment, one segment at a time."""
    width = -(-N // k)
    return torch.cat([part.mean(dim=0).expand_as(part) for part in x.split(width)])


def test_values_compressed_at_random_and_by_segments_are_the_definitions():
    gaussian = LowRankMeasurement((1, 1), 512, (512,)).gaussian
    assert float(gaussian.var()) == pytest.approx(1, abs=0.01) and abs(float(gaussian.mean())) < 0.01
    ks, heads = (3, 8), [head(1), head(2)]
    measurement, errors = errors_of([head(0)], heads, ks)
    for column, k in enumerate(ks):
        projection = measurement.gaussian[:k] / k**0.5
        expected = {"random": [], "segment_means": []}
        for one in heads:
            output = one.weights @ one.value
            at_random = one.weights @ (projection.mT @ projection) @ one.value
            expected["random"].append(relative(at_random, output))
            expected["segment_means"].append(relative(one.weights @ segment_means(one.value, k), output))
        for name, found in expected.items():
            assert errors[name][column] == pytest.approx(sum(found) / 2, rel=1e-4), (name, k)


def test_keys_and_values_compressed_are_what_linformer_attention_computes():
    one, k = head(3), 4
    _, errors = errors_of([head(0)], [one], (k,))
    segments = torch.arange(N) // -(-N // k)
    means = torch.nn.functional.one_hot(segments).float() / torch.bincount(segments)
    inputs = (x[None, None] for x in (one.query, one.key, one.value))
    output = linformer_attention(*inputs, means, means, scale=one.scaling, length_scaling=False)[0, 0]
    assert errors["segment_means_of_keys_too"] == [pytest.approx(relative(output, one.weights @ one.value), rel=1e-4)]


def beside(one, near, places, slots_k=None, slots_v=None, mass=1.0):
    """Output of a softmax over slots, whose mass multiplies their exponentials, some places and near positions."""
    rows = []
    for i, query in enumerate(one.query):
        seen = [*places, *(j for j in range(N) if abs(i - j) <= near and j not in places)]
        keys, values, weights = one.key[seen], one.value[seen], torch.ones(len(seen))
        if slots_k is not None:
            keys, values = torch.cat([slots_k, keys]), torch.cat([slots_v, values])
            weights = torch.cat([torch.full((len(slots_k),), mass), weights])
        weights = weights * torch.exp(one.scaling * keys @ query)
        rows.append(weights @ values / weights.sum())
    return torch.stack(rows)


@pytest.mark.parametrize("window", [64, 6])
def test_slots_beside_a_window_are_their_definitions(window, monkeypatch):
    monkeypatch.setattr("torch_linformer.analysis.low_rank.WINDOW", window)
    one, k = head(3), 4
    _, errors = errors_of([head(0)], [one], (k,))
    places, centers = (torch.arange(N) + 0.5) * k / N, torch.arange(k) + 0.5
    pooling = torch.softmax(-2 * (places - centers[:, None]) ** 2, dim=-1)
    slots_k, slots_v, output = pooling @ one.key, pooling @ one.value, one.weights @ one.value
    expected = {
        "slots": torch.softmax(one.scaling * one.query @ slots_k.mT, dim=-1) @ slots_v,
        "window_and_exact": beside(one, window // 2, [0, N - 1]),
        "slots_window_and_exact": beside(one, window // 2, [0, N - 1], slots_k, slots_v, N / k),
    }
    for name, approximate in expected.items():
        assert errors[name] == [pytest.approx(relative(approximate, output), rel=1e-4, abs=1e-6)], name


def test_what_is_measured():
    """Without a fit the rest; of a masked head only values are compressed; what a model's own slots lose."""
    _, errors = errors_of([], [head(1), head(2)], (4,))
    assert "fitted" not in errors and "slots_window_and_exact" in errors
    mask = torch.full((N, N), float("-inf")).triu(1)
    for heads in ([head(1, mask)], [head(1), head(2, mask)]):  # one that is not masked would stand for all
        _, errors = errors_of([head(0, mask)], heads, (4,))
        assert sorted(errors) == ["fitted", "random", "segment_means"]
    own = dataclasses.replace(head(1), own=0.9 * head(1).weights @ head(1).value)
    assert "own_slots" not in errors_of([head(0)], [head(1)], (4,))[1]
    assert errors_of([head(0)], [own], (4, 8))[1]["own_slots"] == pytest.approx([0.1, 0.1])


def test_a_slot_for_every_position_loses_nothing():
    _, errors = errors_of([head(0)], [head(1)], (N,))
    assert errors["segment_means"][0] < 1e-6 and errors["segment_means_of_keys_too"][0] < 1e-6
    assert errors["fitted"][0] < 1e-4
    assert errors["random"][0] > 0.1  # a Gaussian matrix is no orthogonal one


def test_the_fit_comes_from_all_documents_and_is_the_optimum_of_eckart_and_young():
    heads, measurement = [head(1), head(2), head(3)], LowRankMeasurement((1, 1), N, (4,))
    for one in heads:
        measurement.fit(one)
    gram, covariance = measurement.moments[0, 0]
    torch.testing.assert_close(gram, sum(one.weights.mT @ one.weights for one in heads))
    torch.testing.assert_close(covariance, sum(one.value @ one.value.mT for one in heads))
    draw = torch.Generator().manual_seed(7)
    gram, covariance = (x @ x.mT for x in torch.randn(2, N, N, generator=draw).double())
    (root_a, root_c) = (_root(x) for x in (gram, covariance))
    tail = torch.linalg.svdvals(root_a @ root_c)
    read, write = fitted_projection(gram, covariance, N)
    for k in (1, 6, 15):
        projection = (write[:, :k] @ read[:, :k].mT).double()
        loss = torch.linalg.norm(root_a @ (torch.eye(N) - projection) @ root_c) ** 2
        # The ridge of a thousandth moves the optimum a little.
        assert float(loss) == pytest.approx(float(tail[k:].square().sum()), rel=0.02)


def _root(matrix):
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=0).sqrt()) @ vectors.mT


def test_a_fit_to_documents_alike_beats_what_knows_nothing_of_them():
    # Values of rank 2 in positions that all documents share, and weights of their own.
    draw = torch.Generator().manual_seed(9)
    positions = torch.randn(N, 2, generator=draw)
    heads = []
    for seed in range(6):
        one = head(seed)
        value = positions @ torch.randn(2, D, generator=draw)
        heads.append(ObservedHead(0, 0, one.query, one.key, value, one.scaling, None, one.weights))
    _, errors = errors_of(heads[:3], heads[3:], (2,))
    assert errors["fitted"][0] < 0.01 < errors["segment_means"][0] < errors["random"][0] * 2


def test_the_first_half_is_fitted_on_and_the_second_measured(lively, draw_documents):
    model, documents = lively("bert"), draw_documents(5, N)
    found = measure_spectrum(model, documents, ks=(4, 8, 50)).low_rank
    assert (tuple(found.ks), found.fitted_on, found.measured_on) == ((4, 8), 2, 3)
    assert found.errors["fitted"].shape == (2, 3, 2)
    # What is fitted on comes from the first two alone, and what is measured from the others.
    other_fit = measure_spectrum(model, [*documents[3:], *documents[2:]], ks=(4,)).low_rank
    assert torch.equal(other_fit.errors["segment_means"], found.errors["segment_means"][..., :1])
    assert not torch.equal(other_fit.errors["fitted"], found.errors["fitted"][..., :1])


def test_what_is_too_long_or_alone_is_measured_without_a_fit(lively, draw_documents, monkeypatch):
    monkeypatch.setattr("torch_linformer.analysis.spectrum.LONGEST", N - 1)
    for number in (1, 3):
        found = measure_spectrum(lively("bert"), draw_documents(number, N), ks=(4,)).low_rank
        assert (found.fitted_on, found.measured_on) == (0, number) and "fitted" not in found.errors

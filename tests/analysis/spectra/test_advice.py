"""K by energy, on spectra made by hand."""

import dataclasses
import math

import pytest
import torch

from torch_linformer.analysis import Spectrum, suggest_k
from torch_linformer.analysis.spectra.advice import k_that_holds, loss_beside_window, which_k_is_enough
from torch_linformer.analysis.spectra.spectrum import Architecture, LowRankErrors
from torch_linformer.functional import johnson_lindenstrauss_k
from torch_linformer.measuring.costs import LayerSizes, cheapest_attention_cost, feedforward_cost, full_attention_cost

SIZES = {"width": 48, "heads": 2, "feedforward": 96}


def spectrum_of(values, length=None, head_dim=24):
    """A spectrum of these σ, (L, H, R); energies are shares of their sum of squares."""
    values = torch.as_tensor(values, dtype=torch.float64)
    squares = values.square()
    zeros = torch.zeros(values.shape[:2], dtype=torch.float64)
    return Spectrum(
        length=length or values.shape[-1],
        documents=1,
        method="exact",
        singular_values=values,
        cumulative=values.cumsum(-1) / values.sum(-1, keepdim=True),
        energy=squares.cumsum(-1) / squares.sum(-1, keepdim=True),
        cumulative_error=zeros,
        missing_energy=zeros,
        architecture=Architecture(layers=len(values), head_dim=head_dim, **SIZES),
    )


# Energies, of 100: 90 5 4 1 / 50 45 5 0 / 99 1 0 0 / 25 25 25 25
ENERGIES = [[[90, 5, 4, 1], [50, 45, 5, 0]], [[99, 1, 0, 0], [25, 25, 25, 25]]]


@pytest.mark.parametrize(
    ("level", "heads", "layers"),
    [
        (90, [[1, 2], [1, 4]], [2, 4]),
        (95, [[2, 2], [1, 4]], [2, 4]),
        (99, [[3, 3], [1, 4]], [3, 4]),
        (75, [[1, 2], [1, 3]], [2, 3]),
    ],
)
def test_the_smallest_k_that_keeps_the_energy(level, heads, layers):
    found = suggest_k(spectrum_of(torch.tensor(ENERGIES).double().sqrt()), level)
    assert (found.heads, found.layers) == (heads, layers)
    assert found.as_option() == ",".join(map(str, layers))
    assert found.eps == pytest.approx(math.sqrt(1 - level / 100))


def test_known_spectra():
    uniform, identity = torch.eye(101)[0], torch.ones(101)
    found = suggest_k(spectrum_of(torch.stack([uniform, identity])[:, None]), 95)
    assert found.layers == [1, 96]


def test_a_share_that_is_whole_but_for_rounding_is_enough():
    spectrum = spectrum_of(torch.ones(1, 1, 100))
    spectrum.energy[0, 0, 94] = 0.95 - 2e-16
    assert suggest_k(spectrum, 95).layers == [95]


def test_a_head_that_needs_more_values_than_there_are():
    spectrum = spectrum_of(torch.ones(2, 2, 10))
    spectrum.energy[1, 0] *= 0.94
    found = suggest_k(spectrum, 95)
    assert (found.heads, found.layers) == ([[10, 10], [None, 10]], [10, None])
    assert found.as_option() is None and found.multiplications is None and found.attention_memory is None
    assert suggest_k(spectrum, 90).layers == [9, 10]


def test_the_theorem_at_the_error_that_the_level_leaves():
    for head_dim in (2, 24):  # the bound of the width, and that of the length
        found = suggest_k(spectrum_of(torch.ones(1, 2, 10), length=4096, head_dim=head_dim), 90)
        assert found.theorem_k == johnson_lindenstrauss_k(4096, head_dim, math.sqrt(0.1))


def test_the_saving_is_that_of_all_layers_together():
    length = 1000
    values = torch.zeros(2, 2, length)
    values[0, :, :10] = values[1, :, :400] = 1
    found = suggest_k(spectrum_of(values), 99)
    assert found.layers == [10, 396]
    layers = [LayerSizes(length=length, k=k, **SIZES) for k in (10, 396)]
    full, ours, around = (
        [cost(each) for each in layers] for cost in (full_attention_cost, cheapest_attention_cost, feedforward_cost)
    )
    for attention, whole, name in (
        (found.attention_multiplications, found.multiplications, "multiplications"),
        (found.attention_memory, found.memory, "bytes"),
    ):
        totals = [sum(getattr(cost, name) for cost in costs) for costs in (full, ours, around)]
        assert attention == pytest.approx(totals[0] / totals[1])
        assert whole == pytest.approx((totals[0] + totals[2]) / (totals[1] + totals[2]))


@pytest.mark.parametrize(
    ("without", "losses", "k", "words"),
    [
        (
            0.75,
            [0.9, 0.375, 0.2],
            8,
            "At 20 tokens K 8 is enough: slots, window and exact tokens lose 0.375 before any training, at most 0.38, "
            "without slots 0.750. The rank of P by itself asks for K 19 in the layer that needs most, to keep 95 % of "
            "the energy: a head that looks at neighbors",
        ),
        (0.75, [0.375, 0.5, 0.3], 4, "K 4 is enough: "),
        (
            0.75,
            [0.9, 0.8, 0.5],
            None,
            "no K tried is enough: before any training slots, window and exact tokens lose at best 0.500",
        ),
        (
            0.375,
            [0.3, 0.2, 0.1],
            0,
            "no slots are needed: window and exact tokens lose 0.375 before any training, at most 0.38.",
        ),
    ],
)
def test_the_smallest_k_that_holds_beside_a_window(without, losses, k, words):
    heads = torch.tensor([0.125, -0.125]).view(2, 1, 1)  # their mean counts
    errors = {
        "slots_window_and_exact": torch.tensor(losses) + heads,
        "window_and_exact": heads + torch.full((3,), without),
    }
    low_rank = LowRankErrors(ks=(4, 8, 16), errors=errors, fitted_on=0, measured_on=1)
    found = dataclasses.replace(spectrum_of(torch.ones(2, 1, 20)), low_rank=low_rank)
    assert k_that_holds(found) == k and words in which_k_is_enough(found)
    assert list(loss_beside_window(found)) == [0, 4, 8, 16]


def test_where_nothing_beside_a_window_was_measured_no_k_holds():
    spectrum = spectrum_of(torch.ones(2, 1, 20))
    masked = LowRankErrors(ks=(4,), errors={"random": torch.ones(2, 1, 1)}, fitted_on=0, measured_on=1)
    for each in (spectrum, dataclasses.replace(spectrum, low_rank=masked)):
        assert (k_that_holds(each), loss_beside_window(each)) == (None, {})
        assert which_k_is_enough(each) == (
            "At 20 tokens no loss beside a window was measured. The rank of P by itself asks for K 19 in the layer "
            "that needs most, to keep 95 % of the energy."
        )


def test_a_rank_below_the_k_that_is_enough_needs_no_reason():
    errors = {name: torch.full((1, 1, 1), 0.1) for name in ("slots_window_and_exact",)}
    errors["window_and_exact"] = torch.full((1, 1, 1), 0.9)
    low_rank = LowRankErrors(ks=(4,), errors=errors, fitted_on=0, measured_on=1)
    told = which_k_is_enough(dataclasses.replace(spectrum_of(torch.eye(1, 20)[None]), low_rank=low_rank))
    assert told.endswith("asks for K 1 in the layer that needs most, to keep 95 % of the energy.")


@pytest.mark.parametrize("level", [0, 100, -5])
def test_a_level_that_is_no_share(level):
    with pytest.raises(ValueError, match=f"level must be a percentage above 0 and below 100, got {level}"):
        suggest_k(spectrum_of(torch.ones(1, 1, 3)), level)

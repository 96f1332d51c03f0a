"""Spectra against closed forms and the plain way, the K that follows, and the figure that shows them."""

import dataclasses
import math

import pytest
import torch
from matplotlib.figure import Figure
from torch.testing import assert_close

from torch_linformer.analysis import Spectrum, measure_spectrum, plot_spectrum, suggest_k
from torch_linformer.analysis.low_rank import LowRankErrors
from torch_linformer.analysis.spectrum import (
    Architecture,
    k_that_holds,
    loss_beside_window,
    singular_values,
    which_k_is_enough,
)
from torch_linformer.functional import johnson_lindenstrauss_k
from torch_linformer.measuring.costs import LayerSizes, feedforward_cost, full_attention_cost, linformer_attention_cost

N, M = 37, 101
SIZES = {"width": 48, "heads": 2, "feedforward": 96}
DRAW = torch.Generator().manual_seed(0)
ROTATIONS = [torch.linalg.qr(torch.randn(M, M, generator=DRAW))[0] for _ in range(2)]
KNOWN = {
    "uniform": (torch.full((M, M), 1 / M), torch.eye(M)[0]),
    "identity": (torch.eye(M), torch.ones(M)),
    "triangular": (torch.ones(M, M).tril(), 1 / (2 * ((2 * torch.arange(M) + 1) * math.pi / (4 * M + 2)).sin())),
    "falling": (ROTATIONS[0] @ torch.diag(0.8 ** torch.arange(M)) @ ROTATIONS[1].mT, 0.8 ** torch.arange(M)),
    "all to one token": (torch.eye(M)[:1].expand(M, M), math.sqrt(M) * torch.eye(M)[0]),
    "one token": (torch.ones(1, 1), torch.ones(1)),
}


@pytest.mark.parametrize("rank", [None, 20, 200])
@pytest.mark.parametrize("name", KNOWN)
def test_a_known_spectrum(name, rank):
    """Its values in closed form, and the shares within what the randomised method says of itself."""
    matrix, sigma = KNOWN[name]
    found, count = singular_values(matrix, rank), min(rank or M, len(sigma))
    # The Gram matrix keeps half of float64's digits; what is zero comes out as noise of that size.
    tolerance = {"rtol": 1e-5, "atol": 1e-5 * float(sigma[0])} if rank != 20 else {"rtol": 0.005, "atol": 1e-4}
    assert_close(found["singular_values"].float(), sigma[:count].float(), **tolerance)
    energies = sigma.double().square().cumsum(0) / sigma.double().square().sum()
    assert_close(found["energy"], energies[:count], rtol=0, atol=0.003)
    assert float(found["missing_energy"]) == pytest.approx(1 - float(energies[count - 1]), abs=0.003)
    off = (found["cumulative"] - (sigma.double().cumsum(0) / sigma.double().sum())[:count]).abs().max()
    assert off <= found["cumulative_error"] + 1e-3
    assert rank == 20 or found["cumulative_error"] == 0


def test_both_methods_agree_on_attention():
    generator = torch.Generator().manual_seed(1)
    queries, keys = (2 * torch.randn(307, 16, generator=generator) for _ in range(2))
    matrix = torch.softmax(queries @ keys.mT / 4, dim=-1)
    exact, first = singular_values(matrix), singular_values(matrix, 60)
    assert_close(exact["singular_values"], torch.linalg.svdvals(matrix.double()), rtol=1e-7, atol=1e-7)
    # Values inside a subspace are never above the true ones; the largest are found best.
    assert (first["singular_values"] <= exact["singular_values"][:60] * (1 + 1e-6)).all()
    assert_close(first["singular_values"][:30], exact["singular_values"][:30], rtol=0.01, atol=0)
    assert (first["energy"] <= exact["energy"][:60] + 1e-6).all()
    assert 0 < float(first["missing_energy"] - (1 - exact["energy"][59])) + 1e-6 < 0.01
    off = (first["cumulative"] - exact["cumulative"][:60]).abs().max()
    assert 0 < off <= first["cumulative_error"]
    before = torch.random.get_rng_state()
    assert torch.equal(singular_values(matrix, 60)["singular_values"], first["singular_values"])
    assert not torch.equal(singular_values(matrix, 60, seed=1)["singular_values"], first["singular_values"])
    assert torch.equal(torch.random.get_rng_state(), before)


def plainly(model, documents, eager_weights):
    """Means over documents of σ, of its normalised cumulative sum, and of the energy's: (L, H, N) each."""
    found = []
    for document in documents:
        values = torch.stack([torch.linalg.svdvals(layer.double()) for layer in eager_weights(model, document)])
        squares = values.square()
        shares = [each.cumsum(-1) / each.sum(-1, keepdim=True) for each in (values, squares)]
        found.append(torch.stack([values, *shares]))
    return torch.stack(found).mean(dim=0)


@pytest.mark.parametrize("name", ["bert", "gpt2", "modernbert", "our twin"])
def test_averages_are_those_of_the_plain_way(name, lively, draw_documents, eager_weights):
    model, documents = lively(name), draw_documents(3, N)
    seen = []
    found = measure_spectrum(model, documents, on_layer=lambda *place: seen.append(place))
    expected = plainly(model, documents, eager_weights)
    for ours, theirs in zip((found.singular_values, found.cumulative, found.energy), expected, strict=True):
        assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert (found.length, found.documents, found.method) == (N, 3, "exact")
    assert not found.cumulative_error.any() and not found.missing_energy.any()
    layers = model.config.num_hidden_layers
    assert seen == [(document, layer) for document in range(3) for layer in range(layers)]


def test_longer_documents_have_their_first_values(lively, draw_documents):
    model, documents = lively("bert"), draw_documents(3, N)
    exact, found = measure_spectrum(model, documents), measure_spectrum(model, documents, exact_up_to=N - 1, rank=12)
    assert found.method == "randomised" and found.energy.shape == (2, 3, 12)
    assert_close(found.singular_values, exact.singular_values[..., :12], rtol=0.02, atol=0)
    assert_close(found.missing_energy, 1 - exact.energy[..., 11], rtol=0, atol=0.01)
    assert (found.missing_energy > 0).all() and (found.cumulative_error > 0).all()


def test_documents_of_one_token(lively, draw_documents):
    found = measure_spectrum(lively("bert"), draw_documents(2, 1))
    assert found.singular_values.flatten().tolist() == pytest.approx([1.0] * 6)
    assert found.low_rank is None


def test_documents_of_several_lengths_are_refused(lively, draw_documents):
    with pytest.raises(ValueError, match=r"documents must be at least one, all of one length, got lengths \[7, 9\]"):
        measure_spectrum(lively("bert"), [*draw_documents(1, 9), *draw_documents(1, 7)])
    with pytest.raises(ValueError, match=r"at least one, all of one length, got lengths \[\]"):
        measure_spectrum(lively("bert"), [])


def test_layers_that_do_not_attend_are_not_counted_as_zero(lively, draw_documents):
    model = lively("bert")
    model.config.num_hidden_layers = 3
    with pytest.raises(ValueError, match="a bert model attends in 2 of its 3 layers"):
        measure_spectrum(model, draw_documents(1, N))


def test_a_record_holds_all_values(lively, draw_documents):
    found = measure_spectrum(lively("bert"), draw_documents(2, N), ks=(4, 8))
    record = found.as_record()
    for name in ("singular_values", "cumulative", "energy", "cumulative_error", "missing_energy"):
        assert_close(torch.tensor(record[name]).double(), getattr(found, name), rtol=1e-5, atol=1e-30)
    assert record["low_rank_error"]["k"] == [4, 8]
    assert {item.name for item in dataclasses.fields(Spectrum)} - record.keys() == {"architecture", "low_rank"}


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


def test_a_share_that_is_whole_but_for_rounding_is_enough():
    spectrum = spectrum_of(torch.ones(1, 1, 100))
    spectrum.energy[0, 0, 94] = 0.95 - 2e-16
    assert suggest_k(spectrum, 95).layers == [95]


def test_a_head_that_needs_more_values_than_there_are():
    spectrum = spectrum_of(torch.ones(2, 2, 10))
    spectrum.energy[1, 0] *= 0.94
    found = suggest_k(spectrum, 95)
    assert (found.heads, found.layers) == ([[10, 10], [None, 10]], [10, None])
    assert found.as_option() is None and found.saving is None
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
    costs = (full_attention_cost, linformer_attention_cost, feedforward_cost)
    for saving, name in (("multiplications", "multiplications"), ("memory", "bytes")):
        full, ours, around = (sum(getattr(cost(each), name) for each in layers) for cost in costs)
        assert found.saving[f"attention_{saving}"] == pytest.approx(full / ours)
        assert found.saving[saving] == pytest.approx((full + around) / (ours + around))


HOLDS = [  # the loss without slots and by K 4, 8 and 16; the K that is enough, and what is said of it
    (
        0.75,
        [0.9, 0.375, 0.2],
        8,
        "K 8 is enough: slots, window, first and last token lose 0.375 before any training, at most",
    ),
    (0.75, [0.9, 0.375, 0.2], 8, "The rank of P by itself asks for K 19 in the layer that needs most, to keep 95 %"),
    (0.75, [0.9, 0.375, 0.2], 8, "energy: a head that looks at neighbors"),
    (0.75, [0.375, 0.5, 0.3], 4, "K 4 is enough: "),
    (0.75, [0.9, 0.8, 0.5], None, "no K tried is enough: before any training slots, window, first and last token"),
    (0.375, [0.3, 0.2, 0.1], 0, "no slots are needed: window, first and last token lose 0.375 before any training"),
]


@pytest.mark.parametrize(("without", "losses", "k", "words"), HOLDS)
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
    low = dataclasses.replace(spectrum_of(torch.eye(1, 20)[None]), low_rank=low_rank)
    assert which_k_is_enough(low).endswith("of the energy.") == (k != 0)  # a rank below that K needs no reason


def test_where_nothing_beside_a_window_was_measured_no_k_holds():
    spectrum = spectrum_of(torch.ones(2, 1, 20))
    masked = LowRankErrors(ks=(4,), errors={"random": torch.ones(2, 1, 1)}, fitted_on=0, measured_on=1)
    for each in (spectrum, dataclasses.replace(spectrum, low_rank=masked)):
        assert (k_that_holds(each), loss_beside_window(each)) == (None, {})
        assert which_k_is_enough(each) == (
            "At 20 tokens no loss beside a window was measured. The rank of P by itself asks for K 19 in the layer "
            "that needs most, to keep 95 % of the energy."
        )


@pytest.mark.parametrize("level", [0, 100, -5])
def test_a_level_that_is_no_share(level):
    with pytest.raises(ValueError, match=f"level must be a percentage above 0 and below 100, got {level}"):
        suggest_k(spectrum_of(torch.ones(1, 1, 3)), level)


@pytest.fixture
def spectrum(lively, draw_documents):
    return measure_spectrum(lively("bert"), draw_documents(2, N), ks=())


def test_curves_are_the_layers_and_cells_the_heads(spectrum):
    figure = plot_spectrum(spectrum, index=5)
    assert isinstance(figure, Figure)
    curves, heads = figure.axes
    lines = [line for line in curves.lines if len(line.get_xdata()) == N]
    assert [list(line.get_xdata()) for line in lines] == [list(range(1, N + 1))] * 2
    for line, layer in zip(lines, spectrum.cumulative, strict=True):
        assert list(line.get_ydata()) == pytest.approx(layer.mean(dim=0).tolist())
    assert lines[0].get_alpha() < lines[1].get_alpha()
    cells = {tuple(map(round, text.get_position())): text.get_text() for text in heads.texts}
    expected = spectrum.cumulative[..., 4]
    assert cells == {
        (head + 1, layer + 1): f"{float(expected[layer, head]):.2f}".removeprefix("0")
        for layer in range(2)
        for head in range(3)
    }
    lowest, highest = float(expected.min()), float(expected.max())
    assert heads.get_title(loc="left") == f"Heads at index 5: {lowest:.2f} to {highest:.2f}"


def test_the_palest_cell_is_the_lowest(spectrum):
    (cells,) = plot_spectrum(spectrum, index=5).axes[1].collections
    opacity = cells.get_facecolors()[:, 3]
    values = spectrum.cumulative[..., 4].flatten()
    assert opacity.argsort().tolist() == values.argsort().tolist()
    assert (opacity.min(), opacity.max()) == pytest.approx((0.06, 0.75))


def test_heads_are_compared_at_a_quarter_of_the_length_or_at_an_index_that_there_is(spectrum):
    assert "at index 9:" in plot_spectrum(spectrum).axes[1].get_title(loc="left")
    for use in (spectrum.cumulative_at, lambda index: plot_spectrum(spectrum, index=index)):
        for index in (0, N + 1):
            with pytest.raises(ValueError, match=f"index must lie between 1 and {N}, .* got {index}"):
                use(index)

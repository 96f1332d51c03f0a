"""The figure shows the numbers of the spectrum."""

import xml.etree.ElementTree as ElementTree

import matplotlib
import pytest
from matplotlib.figure import Figure

from torch_linformer.analysis import measure_spectrum, plot_spectrum
from torch_linformer.analysis.spectra.spectrum_report import spectrum_svg

N = 37


@pytest.fixture
def spectrum(build, draw_documents):
    return measure_spectrum(build("bert"), draw_documents(2, N), ks=())


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


def test_heads_are_compared_at_a_quarter_of_the_length_unless_told(spectrum):
    assert "at index 9:" in plot_spectrum(spectrum).axes[1].get_title(loc="left")


def test_an_index_beyond_the_values(spectrum):
    with pytest.raises(ValueError, match=f"index must lie between 1 and {N}"):
        plot_spectrum(spectrum, index=N + 1)


def test_the_svg_is_well_formed_and_describes_itself(spectrum):
    before = dict(matplotlib.rcParams)
    root = ElementTree.fromstring(spectrum_svg(spectrum, 5))
    assert root.attrib["aria-label"] == (
        "Normalized cumulative singular values of 2 layers on documents of 37 tokens, and of every head at index 5"
    )
    assert not list(root.iter("image")), "a picture inside would be blocked by the page's policy"
    assert dict(matplotlib.rcParams) == before

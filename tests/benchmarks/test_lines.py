"""Charts of cost over length: the same drawing on a page and in a file, and what nobody measured looks different."""

import io
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import matplotlib.image
import numpy as np
import pytest
from matplotlib.figure import Figure

from runner.lines import Line, LogLogChart
from torch_linformer.reporting.plots import COLORS
from torch_linformer.reporting.tables import format_duration

SVG = "{http://www.w3.org/2000/svg}"
MEASURED = Line(name="measured", points=[(512, 0.01), (2048, 0.04)], thick=True)
GUESSED = Line(name="guessed", points=[(512, 0.02)], estimated=[(2048, 0.3), (8192, 5.0)])
CHART = LogLogChart(
    title="Time", x_label="tokens", y_label="seconds", y_format=format_duration, lines=[MEASURED, GUESSED]
)


def texts(svg):
    return {"".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")}


def test_the_chart_names_its_axes_lines_and_lengths_and_describes_itself():
    shown, root = texts(CHART.svg()), ElementTree.fromstring(CHART.svg())
    assert {"Time", "tokens", "seconds", "measured", "guessed", "512", "2,048", "8,192", "100 ms"} <= shown
    assert (root.get("role"), root.get("aria-label")) == ("img", "Time: seconds against tokens")
    assert "currentColor" in CHART.svg() and CHART.svg() == CHART.svg()


def test_the_png_is_the_same_drawing_on_white():
    pixels = matplotlib.image.imread(io.BytesIO(CHART.png()), format="png")
    assert pixels.shape[:2] == (800, 1440)
    np.testing.assert_array_equal(pixels[0, 0, :3], 1.0)
    for color in COLORS[:2]:
        wanted = np.array([int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        assert (np.abs(pixels[..., :3] - wanted).max(axis=-1) < 0.01).any()


def test_what_nobody_measured_is_dashed_and_hollow():
    assert "stroke-dasharray" in CHART.svg()
    plain = replace(CHART, lines=[MEASURED])
    assert not re.search(r"stroke-dasharray: [^;]*\d", plain.svg().replace("stroke-dasharray: none", ""))


@pytest.mark.parametrize("count", [0, 1, 11])
def test_any_number_of_lines_can_be_drawn(count):
    lines = [Line(name=f"line {number}", points=[(1024, 1 + number)]) for number in range(count)]
    assert {line.name for line in lines} <= texts(replace(CHART, lines=lines).svg())


def test_both_axes_are_logarithmic():
    figure = Figure()
    CHART._draw(figure)
    (axes,) = figure.axes
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")

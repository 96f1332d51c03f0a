"""How every figure is drawn: one style, as a part of a page (SVG) and as a file (PNG)."""

import io
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

BLUE, ORANGE = "#1a80bb", "#d55e00"  # distinct for every kind of color vision, and clear on white and on black
INK = "#010203"  # in figures.mplstyle too: stands for the color of the surrounding text until a figure is written
WIDTH = 720  # of a figure, in CSS pixels
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
_SVG = "{http://www.w3.org/2000/svg}"
_STYLE = matplotlib.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)

Draw = Callable[[Figure], None]


def render_svg(draw: Draw, description: str, height: float, width: float = WIDTH) -> str:
    """Draw on an empty figure, `width` by `height` pixels, and return its SVG."""
    file = io.StringIO()
    with _drawn(draw, height, width, {"svg.hashsalt": description, "savefig.transparent": True}) as figure:
        figure.savefig(file, format="svg", metadata=dict.fromkeys(("Date", "Creator", "Format", "Type")))
    return _inline(file.getvalue(), description)


def draw_figure(draw: Draw, height: float, width: float = WIDTH) -> Figure:
    """The same figure as matplotlib's own, for those who save or change it themselves."""
    with _drawn(draw, height, width, {}) as figure:
        return figure


def render_png(draw: Draw, height: float, width: float = WIDTH) -> bytes:
    """The same figure as a PNG file on white, two dots a pixel."""
    file = io.BytesIO()
    with _drawn(draw, height, width, {}) as figure:
        figure.savefig(file, format="png", dpi=144, metadata={"Software": None})
    return file.getvalue()


def draw_cells(axes: Axes, shares: Mapping[tuple[int, int], float], texts: Mapping[tuple[int, int], str]) -> None:
    """Squares centered at (x, y), the fuller the larger their share of 1, with text on them."""
    squares = [Rectangle((x - 0.47, y - 0.47), 0.94, 0.94) for x, y in shares]
    colors = [cell_color(share) for share in shares.values()]
    axes.add_collection(PatchCollection(squares, facecolors=colors, linewidths=0))
    for (x, y), text in texts.items():
        axes.text(x, y, text, ha="center", va="center_baseline", size=10)
    axes.tick_params(length=0)
    axes.grid(False)
    axes.spines[:].set_visible(False)


def cell_color(share: float) -> tuple[str, float]:
    """Color and opacity of a cell; at most 3/4 opaque: ink on it is readable on any page."""
    return BLUE, 0.06 + 0.69 * share


@contextmanager
def _drawn(draw: Draw, height: float, width: float, style: dict[Any, Any]) -> Iterator[Figure]:
    with matplotlib.rc_context(dict(_STYLE) | style), warnings.catch_warnings():
        # Matplotlib's font only measures the text; the browser's fonts, which have the glyph, draw it.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        draw(figure)
        yield figure


def _inline(svg: str, description: str) -> str:
    """Make matplotlib's SVG file part of a page: with the page's ink and a description, without a global style."""
    root = ElementTree.fromstring(svg)
    for element in list(root.iter()):
        for style in element.findall(f"{_SVG}style"):  # it would restyle everything else on the page
            element.remove(style)
        element.tag = element.tag.removeprefix(_SVG)
        if element.tag == "g":  # the same in every figure, and nothing refers to it
            element.attrib.pop("id", None)
        if target := element.attrib.pop("{http://www.w3.org/1999/xlink}href", None):
            element.set("href", target)
        if "style" in element.attrib:
            rules = element.attrib["style"].replace(INK, "currentColor").split("; ")
            element.set("style", "; ".join(rule for rule in rules if not rule.startswith("font-family")))
    root.attrib |= {side: root.attrib[side].removesuffix("pt") for side in ("width", "height")}
    root.attrib |= {"role": "img", "aria-label": description, "xmlns": _SVG.strip("{}")}
    root.attrib |= {"fill": "currentColor", "font-family": _FONT, "stroke-linejoin": "round"}
    return ElementTree.tostring(root, encoding="unicode")

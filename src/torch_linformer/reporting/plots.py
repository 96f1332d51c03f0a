"""Figures of a report as `<svg>` elements and as files: one style; text stays text, and the ink follows the page."""

import io
import warnings
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PatchCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from torch_linformer.reporting.report import Section
from torch_linformer.reporting.tables import format_count, format_percent, format_score

BLUE, ORANGE = "#1a80bb", "#d55e00"  # distinct for every kind of color vision, and clear on white and on black
# After the first two: clear on white and on black, and no two neighbors of one lightness.
COLORS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#9a7d0a", "#7b61c9", "#7f7f7f", "#2ca6a4")
MARKERS = "osD^vPX*"
INK = "#010203"  # in figures.mplstyle too: stands for the color of the surrounding text until a figure is written
WIDTH = 720  # of a figure, in CSS pixels
_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', 'Liberation Sans', Arial, sans-serif"
_SVG = "{http://www.w3.org/2000/svg}"
_STYLE = matplotlib.rc_params_from_file(Path(__file__).with_name("figures.mplstyle"), use_default_template=False)

Draw = Callable[[Figure], None]
MAX_COUNTED_LABELS = 25  # beyond this a confusion matrix shows only colors
MAX_LABELS = 50  # and beyond this only its most frequent labels
LEGEND = (0.0, 0.25, 0.5, 0.75, 1.0)  # shares of a row, whose colors are shown
LEGEND_WIDTH = 440
MAX_POINTS = 400  # half a page's width shows no more of a line


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


def learning_curve(
    heading: str,
    history: Sequence[Mapping[str, object]],
    metric: str,
    *,
    larger_is_better: bool = True,
    caption: str = "",
) -> Section:
    """A section with training and validation loss over steps, and beside them a validation metric, its best marked.

    What was logged only once is told in a sentence instead: one point is no curve.

    Args:
        heading: of the section.
        history: entries as in `Trainer.state.log_history`: `step` with `loss`, or with `eval_loss` and other values.
        metric: key of the metric, such as `"eval_accuracy"`.
        larger_is_better: which end of it is the best.
        caption: a sentence under the figure, if there is one.
    """

    def series(key: str) -> np.ndarray:
        """Rows of (step, value) of the entries that hold a finite value for `key`."""
        rows = [(entry["step"], entry[key]) for entry in history if None not in (entry.get("step"), entry.get(key))]
        found = np.asarray(rows, dtype=np.float64).reshape(-1, 2)
        return found[np.isfinite(found).all(axis=1)]

    name = metric.removeprefix("eval_").replace("_at_", "@").replace("_", " ").replace("f1", "F1")
    logged = {
        "training loss": series("loss"),
        "validation loss": series("eval_loss"),
        f"validation {name}": series(metric),
    }
    once = [
        f"{title} {format_score(points[0, 1])} at step {format_count(points[0, 0])}"
        for title, points in logged.items()
        if len(points) == 1
    ]
    text = f"Logged once, and so without a curve: {', '.join(once)}." if once else ""
    curves = {title: points for title, points in logged.items() if len(points) > 1}
    if not curves:
        return Section(heading, text=text or "Nothing was logged.")
    losses = [title for title in curves if title.endswith(" loss")]
    panels = [losses, [title for title in curves if title not in losses]]

    def draw(figure: Figure) -> None:
        shown = [titles for titles in panels if titles]
        for axes, titles in zip(figure.subplots(1, len(shown), squeeze=False)[0], shown, strict=True):
            for title in titles:
                points = curves[title]
                if len(points) > MAX_POINTS:  # averaged over stretches: more points cannot be seen
                    points = np.stack([stretch.mean(axis=0) for stretch in np.array_split(points, MAX_POINTS)])
                color, marker = BLUE if title == "training loss" else ORANGE, "o" if len(points) < 30 else ""
                axes.plot(*points.T, color=color, marker=marker, label=title.removesuffix(" loss"))
            if titles is losses:
                axes.set_title("Loss")
                axes.legend(loc="best")
            else:
                points = curves[titles[0]]
                step, best = points[(points[:, 1] if larger_is_better else -points[:, 1]).argmax()]
                axes.plot(step, best, "o", markersize=9, markerfacecolor="none", color=INK, markeredgewidth=1.4)
                axes.set_title(f"Validation {name}: best {best:.4g} at step {format_count(step)}")
                axes.margins(y=0.12)
            axes.set_xlabel("step")
            axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, min_n_ticks=1))
            axes.xaxis.set_major_formatter(_tick)

    figure = render_svg(draw, f"Learning curve: {', '.join(curves)} over steps", height=270)
    return Section(heading, text=text, figure=figure, caption=caption)


def confusion_matrix(matrix: Sequence[Sequence[int]], labels: Sequence[str]) -> str:
    """Draw how many documents of a label (a row) were predicted as which (a column); colors are shares of the row.

    Up to 25 labels have their counts in the cells; beyond 50 labels the 50 most frequent are drawn.
    """
    counts = np.asarray(matrix, dtype=np.int64)
    if not len(labels) or counts.shape != (len(labels), len(labels)):
        expected = f"a row and a column for each of {len(labels)} labels, at least one"
        raise ValueError(f"matrix must have {expected}, got shape {counts.shape}")
    support = counts.sum(axis=1)
    shown = np.sort(np.argsort(-support, kind="stable")[:MAX_LABELS])
    shares = (counts / np.maximum(support, 1)[:, None])[np.ix_(shown, shown)]
    counts, names = counts[np.ix_(shown, shown)], [_printable(labels[index]) for index in shown]
    label_width = 7 * max(map(len, names))
    cell = min(64, (WIDTH - 60 - 1.4 * label_width) / len(names))

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        cells = [(int(column), int(row)) for row, column in np.argwhere(counts)]
        texts = {(x, y): format_count(counts[y, x]) for x, y in cells} if len(counts) <= MAX_COUNTED_LABELS else {}
        draw_cells(axes, {(x, y): float(shares[y, x]) for x, y in cells}, texts)
        axes.set(xlim=(-0.5, len(counts) - 0.5), ylim=(len(counts) - 0.5, -0.5), aspect="equal")
        axes.xaxis.tick_top()
        axes.xaxis.set_label_position("top")
        size = min(12, 0.9 * cell)
        turned = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if cell > 24 else {"rotation": 90}
        axes.set_xticks(range(len(names)), names, size=size, **turned if label_width > cell else {})
        axes.set_yticks(range(len(names)), names, size=size)
        axes.set(xlabel="predicted", ylabel="true")
        colors = [Patch(facecolor=cell_color(share), label=f"{share:.0%}") for share in LEGEND]
        figure.legend(handles=colors, title="of the documents of a true label", loc="outside lower left", ncols=5)

    all_labels = f", the most frequent of {format_count(len(labels))}" if len(names) < len(labels) else ""
    description = f"Confusion matrix of {len(names)} labels{all_labels}: rows are true, columns predicted"
    side = cell * len(names) + 60
    width = max(LEGEND_WIDTH, side + 1.4 * label_width)
    return render_svg(draw, description, height=side + 0.75 * label_width + 50, width=width)


def reliability_diagram(bins: Sequence[Mapping[str, float]]) -> str:
    """Draw how often the most probable label is right against its mean probability, a dot a bin.

    Bins are those of ``calibration_metrics`` (torch_linformer.tasks); a dot's area grows with the documents of its bin.
    """
    confidence, accuracy, documents = (
        np.asarray([row[name] for row in bins]) for name in ("confidence", "accuracy", "documents")
    )

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([0, 1], [0, 1], color=INK, linewidth=1.0, linestyle=(0, (4, 3)))
        axes.plot(confidence, accuracy, color=BLUE, linewidth=1.2)
        area = 20 + 400 * documents / documents.sum()
        axes.scatter(confidence, accuracy, s=area, color=BLUE, alpha=0.6, linewidths=0)
        axes.set(xlabel="highest probability", ylabel="share of right labels", xlim=(0, 1.02), ylim=(-0.02, 1.02))

    description = f"Share of right labels against the highest probability, {format_count(documents.sum())} documents"
    return render_svg(draw, description, height=330, width=LEGEND_WIDTH)


def length_histogram(lengths: Sequence[int], max_length: int) -> str:
    """Draw the lengths of whole documents, in tokens on a logarithmic axis; no bar crosses `max_length`."""
    tokens = np.maximum(np.asarray(lengths, dtype=np.int64), 1)
    if not tokens.size or max_length < 1:
        sizes = f"{tokens.size} lengths and {max_length}"
        raise ValueError(f"length_histogram needs lengths and max_length >= 1, got {sizes}")
    longer = format_percent(float(np.mean(tokens > max_length)))
    beyond = format_percent(float(np.maximum(tokens - max_length, 0).sum() / tokens.sum()))
    documents, limit = format_count(tokens.size), format_count(max_length)
    summary = f"{longer} of {documents} documents are longer than {limit} tokens; {beyond} of all tokens lie beyond"
    edges = _length_bins(int(tokens.min()), int(tokens.max()), max_length)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        colors = [ORANGE if edge > max_length else BLUE for edge in edges[:-1]]
        heights, _ = np.histogram(tokens, edges)
        axes.bar(edges[:-1], heights, np.diff(edges), align="edge", color=colors)
        axes.axvline(max_length + 0.5, color=INK, linewidth=1.2, linestyle=(0, (4, 3)))
        axes.set_xscale("log", base=2)
        axes.set(title=summary, xlabel="tokens in a document", ylabel="documents", xlim=edges[[0, -1]])
        powers = np.arange(max(0, np.ceil(np.log2(edges[0]))), np.log2(edges[-1]))
        axes.xaxis.set_major_locator(FixedLocator((2**powers)[:: 1 + len(powers) // 10].tolist()))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter(_tick)
        axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.yaxis.set_major_formatter(_tick)

    return render_svg(draw, f"Length of the documents: {summary}", height=270)


def _tick(value: float, _position: float) -> str:
    return format_count(value)


def _length_bins(shortest: int, longest: int, max_length: int) -> np.ndarray:
    """Edges midway between whole numbers, at most four a doubling, one of them right after `max_length`."""
    first = np.floor(4 * np.log2(max(shortest - 1, 0.5) / max_length))
    last = np.ceil(4 * np.log2((longest + 1) / max_length))
    quarters = np.arange(min(first, -4), max(last, 2) + 1)
    return np.unique(np.floor(max_length * 2 ** (quarters / 4) + 1e-9)) + 0.5


def _printable(label: object) -> str:
    """Label with nothing XML cannot hold, shortened to fit beside a matrix."""
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in str(label))
    return text if len(text) <= 24 else text[:23] + "…"

"""The empty figures of the page, by Bokeh: the page's script fills them."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from bokeh.embed import json_item
from bokeh.models import BasicTickFormatter, ColorBar, ColumnDataSource, LinearColorMapper, Range1d, Span
from bokeh.plotting import figure

from torch_linformer.analysis.attention_maps import LayerAttention

TOOLS = "pan,box_zoom,zoom_in,zoom_out,reset"


def page_figures(layers: Sequence[LayerAttention], length: int) -> dict[str, Any]:
    """Those of these layers on a document of ``length`` tokens, by name."""
    with_slots = next((layer for layer in layers if layer.num_slots), None)
    figures = {}
    if any(layer.has_token_map for layer in layers):
        figures["tokens"] = _map("tokens", ("token drawn on", length), ("token", length))
    if with_slots is not None:
        figures["slots"] = _map("slots", ("slot", with_slots.weights.shape[2]), ("token", length))
        if with_slots.proj_v is not None:
            figures["projection"] = _map("projection", ("position", length), ("slot", with_slots.num_slots))
            x_range = Range1d(0, length, bounds=(0, length), name="profile-x")
            plot = _figure("profile", "position", x_range, height=180, whole=False)
            for line in ("k", "v"):  # of E and of F
                source = ColumnDataSource({"x": [0, length], "y": [0, 0]}, name=f"profile-{line}")
                plot.step("x", "y", source=source, mode="center", line_width=1.5, name=f"profile-line-{line}")
            figures["profile"] = json_item(plot)
    return figures


def _map(name: str, x: tuple[str, int], y: tuple[str, int]) -> Any:
    """A heat map; ``x`` and ``y`` are what is on an axis and how many there are of it."""
    (x_label, columns), (y_label, rows) = x, y
    plot = _figure(name, x_label, Range1d(0, columns, bounds=(0, columns), name=f"{name}-x"), height=440, whole=True)
    plot.y_range = Range1d(rows, 0, bounds=(0, rows), name=f"{name}-y")
    plot.yaxis.axis_label = y_label
    source = ColumnDataSource({"image": [np.zeros((1, 1), np.float32)]} | {key: [1] for key in ("x", "y", "dw", "dh")})
    source.name = f"{name}-source"
    mapper = LinearColorMapper(palette=["#ffffff", "#000000"], low=0, high=1, name=f"{name}-mapper")
    plot.image("image", "x", "y", "dw", "dh", source=source, color_mapper=mapper)
    plot.grid.visible = False
    bar = ColorBar(color_mapper=mapper, name=f"{name}-bar", height=10, padding=0, margin=8)
    bar.background_fill_color = None
    bar.formatter = BasicTickFormatter(use_scientific=False)
    plot.add_layout(bar, "below")
    for axis, dimension in (("row", "width"), ("column", "height")):
        mark = Span(dimension=dimension, location=0.5, visible=False, line_dash=[4, 3], name=f"{name}-{axis}")
        plot.add_layout(mark)
    return json_item(plot)


def _figure(name: str, x_label: str, x_range: Range1d, height: int, *, whole: bool) -> Any:
    """An empty figure, over whole numbers on its x axis, and if ``whole`` on both."""
    plot = figure(name=name, x_range=x_range, height=height, sizing_mode="stretch_width", tools=TOOLS, active_drag=None)
    plot.toolbar.logo = None
    plot.toolbar_location = "above"
    plot.xaxis.axis_label = x_label
    plot.background_fill_color = plot.border_fill_color = plot.outline_line_color = None
    plot.xaxis.formatter.use_scientific = plot.yaxis.formatter.use_scientific = False
    plot.min_border = 0
    for axis in (plot.xaxis, plot.yaxis) if whole else (plot.xaxis,):
        axis.ticker.min_interval = 1
    for axis in plot.axis:
        axis.minor_tick_line_color = None
        axis.axis_label_text_font_style = "normal"
    return plot

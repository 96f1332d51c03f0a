"""The maps of an inspection as figures of matplotlib."""

from collections.abc import Sequence

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from torch import Tensor

from torch_linformer.analysis.attention_maps import LayerAttention, block_means
from torch_linformer.analysis.inspection import Inspection
from torch_linformer.reporting.plots import BLUE, ORANGE, draw_figure

MOST_CELLS = 512  # along an axis: more than a panel has pixels is drawn as means of blocks
UNSIGNED = LinearSegmentedColormap.from_list("unsigned", ["#ffffff", BLUE, "#0b2f4a"])
SIGNED = LinearSegmentedColormap.from_list("signed", ["#5a2600", ORANGE, "#ffffff", BLUE, "#0b2f4a"])
Panel = tuple[str, str, str, Tensor]  # title, what the columns and the rows are, and the matrix


def plot_attention(inspection: Inspection, layer: int = 0, head: int = 0) -> Figure:
    r"""Draw :math:`\bar P` of a head, tokens to slots, and :math:`\bar P F^\top`, tokens to tokens.

    Rows are tokens. Beyond 512 tokens a cell is the mean of a block of them. A layer without slots has only the second
    map, in ordinary attention the softmax itself; ``projection="max"`` has only the first.

    Args:
        inspection: made by :func:`inspect_text`.
        layer: number of a layer that was inspected, from 0.
        head: number of the head, from 0.

    Raises:
        ValueError: there is no such layer or head.
    """
    seen = _layer(inspection, layer, head)
    place, panels = f"layer {layer}, head {head}", list[Panel]()
    if seen.num_slots:
        panels.append((f"Tokens to slots, P̄: {place}", "slot", "token", seen.weights[head]))
    if seen.has_token_map:
        name = "P̄ Fᵀ" if seen.num_slots else "P"
        panels.append((f"Tokens to tokens, {name}: {place}", "token drawn on", "token", seen.token_map(head)))
    return _figure(panels, height=400)


def plot_projections(inspection: Inspection, layer: int = 0, head: int = 0) -> Figure:
    """Draw E and F of a head as they were applied to the document: rows are slots, columns positions.

    With E = F there is one map. Arguments as in :func:`plot_attention`.

    Raises:
        ValueError: there is no such layer or head, or the layer has no E and F (no slots, projection "max").
    """
    seen = _layer(inspection, layer, head)
    if seen.proj_k is None or seen.proj_v is None:
        without = "ordinary attention" if seen.is_ordinary else "a window by itself"
        why = "projection='max' is no linear map" if seen.num_slots else f"{without} has no slots"
        raise ValueError(f"layer {layer} has no E and F: {why}")
    matrices = {"E = F": seen.proj_v} if seen.proj_v is seen.proj_k else {"E": seen.proj_k, "F": seen.proj_v}
    title = "Slots to positions, {}: layer {}, head {}"
    panels = [(title.format(name, layer, head), "position", "slot", x[head].mT) for name, x in matrices.items()]
    return _figure(panels, height=360)


def _layer(inspection: Inspection, layer: int, head: int) -> LayerAttention:
    if layer not in inspection.layers:
        layers = ", ".join(map(str, inspection.layers))
        raise ValueError(f"layer must be one that was inspected ({layers}), got {layer}")
    heads = inspection.layers[layer].weights.shape[0]
    if not 0 <= head < heads:
        raise ValueError(f"head must lie between 0 and {heads - 1}, got {head}")
    return inspection.layers[layer]


def _figure(panels: Sequence[Panel], height: float) -> Figure:
    def draw(figure: Figure) -> None:
        for axes, (title, columns, rows, matrix) in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            height, width = matrix.shape
            cells = block_means(matrix, -(-height // MOST_CELLS))
            cells = block_means(cells.mT, -(-width // MOST_CELLS)).mT.float()
            limit = float(torch.quantile(cells.abs().flatten()[:: 1 + cells.numel() // 1_000_000], 0.998)) or 1.0
            signed = bool((cells < 0).any())
            image = axes.imshow(
                cells.numpy(),
                cmap=SIGNED if signed else UNSIGNED,
                vmin=-limit if signed else 0.0,
                vmax=limit,
                extent=(0, width, height, 0),
                aspect="auto",
                interpolation="nearest",
            )
            axes.set(title=title, xlabel=columns, ylabel=rows)
            axes.grid(False)
            bar = figure.colorbar(image, ax=axes, location="bottom", shrink=0.8)
            bar.outline.set_visible(False)

    return draw_figure(draw, height=height, width=460 * len(panels))

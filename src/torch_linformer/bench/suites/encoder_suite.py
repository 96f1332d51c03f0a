"""Whole encoders of one width and depth: ours, its full-attention twin, and what users pick for long documents."""

from collections.abc import Sequence

from torch_linformer.bench.contenders import encoder_contenders as contenders
from torch_linformer.bench.contenders.compiled import MODES, compiled
from torch_linformer.bench.suite import Case, Contender, Grid, Measurement, Suite, Summary
from torch_linformer.bench.suites.grids import grid_cases, require_cases
from torch_linformer.bench.suites.measurements import (
    Measurements,
    compare_lengths,
    ratio_headlines,
    ratio_records,
)

SIZES = {"width": 384, "heads": 12, "layers": 6, "feedforward": 1536}
LENGTHS, KS = (512, 2048, 8192), (128,)
QUICK_LENGTHS = (512, 1024)
TRAINING_LENGTH, QUICK_TRAINING_LENGTH = 2048, 512  # the longest, unless the user chooses

_TEXT = (
    "6 layers of width 384, 12 heads, feed-forward 1,536, random weights, no dropout, from token ids to the last "
    "hidden state; each value is followed by its ratio to the first row's. ModernBERT's gated feed-forward has two "
    "thirds of the width, which costs the same. BigBird attends fully up to 704 tokens, and sparsely "
    "beyond."
)


class EncoderSuite(Suite):
    """Forward and training of encoders over lengths."""

    name = "encoder"
    title = "Whole encoders"
    several_batches = True

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        ks = grid.ks or KS
        longest = QUICK_TRAINING_LENGTH if grid.quick else TRAINING_LENGTH
        trained = grid.lengths or [length for length in lengths if length <= longest]
        cases = [
            *grid_cases(grid, lengths, ks, step="forward", **SIZES),
            *grid_cases(grid, trained, ks, step="training", **SIZES),
        ]
        return require_cases(cases, lengths, ks)

    def contenders(self) -> list[Contender]:
        everyone = contenders.encoders()
        picked = [each for each in everyone if each.name == contenders.OURS or each.name.startswith("BERT")]
        return [*everyone, *(form for each in picked for form in compiled(each))]

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        results, ours, twin = Measurements(rows), contenders.OURS, contenders.TWIN
        sections, figures = compare_lengths(
            results, ours=ours, rival=twin, text=_TEXT, title="Encoders", file="encoder"
        )
        eager = [name for name in results.contenders if not name.endswith(tuple(MODES))]
        rivals = [name for name in eager if name.startswith(("BERT", "ModernBERT")) or name == twin]
        return Summary(
            headlines=ratio_headlines(results, ours, rivals),
            sections=sections,
            figures=figures,
            derived={"ratios": ratio_records(results, ours)},
        )

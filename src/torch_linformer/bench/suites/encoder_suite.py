"""Whole encoders of one width and depth: ours, its full-attention twin, and what users pick for long documents."""

from collections.abc import Sequence
from dataclasses import replace

from torch_linformer.bench.contenders import encoder_contenders as contenders
from torch_linformer.bench.suite import Case, Contender, Grid, Measurement, Suite, Summary
from torch_linformer.bench.suites.grids import grid_cases, require_cases
from torch_linformer.bench.suites.measurements import LengthComparison, Measurements, headline_ratio, ratio_records
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import format_count

SIZES = {"width": 384, "heads": 12, "layers": 6, "feedforward": 1536}
LENGTHS, KS = (512, 2048, 8192), (128,)
QUICK_LENGTHS = (512, 1024)
TRAINING_LENGTH, QUICK_TRAINING_LENGTH = 2048, 512  # longest of the suite's own choice

_TEXT = (
    "6 layers of width 384, 12 heads, feed-forward 1,536, random weights, no dropout, from token ids to the last "
    "hidden state; with each value stands its ratio to the first row's. ModernBERT's gated feed-forward has two "
    "thirds of the width, which costs the same. BigBird attends fully up to 704 tokens, and sparsely "
    "beyond."
)


class EncoderSuite(Suite):
    """Forward and training of encoders over lengths."""

    name = "encoder"
    title = "Whole encoders"

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
        return [contenders.our_encoder(), contenders.twin_encoder(), *contenders.peer_encoders()]

    def summarise(self, rows: Sequence[Measurement]) -> Summary:
        results = Measurements(rows)
        sections: list[Section] = []
        figures: dict[str, bytes] = {}
        for step in results.steps:
            for k in results.ks:
                comparison = LengthComparison(results=results, ours=contenders.OURS, step=step, k=k)
                title = f"Encoders, {step}, K = {format_count(k)}"
                chart = comparison.chart("seconds", title, results.contenders)
                if chart is not None:
                    figures[f"encoder_{step}_k{k}"] = chart.png()
                text = f"{_TEXT} {comparison.crossing(contenders.TWIN)}"
                sections.append(comparison.table("seconds", text, figure="" if chart is None else chart.svg()))
                sections.append(replace(comparison.table("memory"), text=""))
        return Summary(
            headlines=_headlines(results),
            sections=sections,
            figures=figures,
            derived={"ratios": ratio_records(results, contenders.OURS)},
        )


def _headlines(results: Measurements) -> list[Headline]:
    """Against BERT, ModernBERT and the twin, forward first."""
    rivals = [name for name in results.contenders if name.startswith(("BERT", "ModernBERT")) or name == contenders.TWIN]
    return [
        headline_ratio(f"time of {rival} over ours, {step}", ratios, f"K = {format_count(k)}")
        for k in results.ks[-1:]
        for step in results.steps
        for rival in rivals
        if (ratios := results.ratios("seconds", rival, contenders.OURS, step, k))
    ]

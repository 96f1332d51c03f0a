"""Causal attention: what a training step costs over length, and what a new token costs after a long past."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from torch_linformer.bench.contenders import causal_contenders as attention
from torch_linformer.bench.contenders import decoding_contenders as decoding
from torch_linformer.bench.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary
from torch_linformer.bench.suites.grids import beyond_full_attention, grid_cases, require_cases
from torch_linformer.bench.suites.measurements import (
    LengthComparison,
    Measurements,
    compare_lengths,
    drawn,
    ratio_headlines,
    ratio_records,
    with_k,
)
from torch_linformer.reporting.lines import LogLogChart
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import format_bytes, format_count, format_ratio

ATTENTION_SIZES = {"width": 768, "heads": 12}
DECODER_SIZES = {"width": 256, "heads": 4, "layers": 4, "feedforward": 1024}
LENGTHS, PASTS, KS = (1024, 4096, 16384, 65536), (1000, 10000, 100000), (64,)
QUICK_LENGTHS, QUICK_PASTS = (512, 2048), (1000, 10000)
READ_LIMIT = 131072  # tokens; to read more with ordinary attention takes a CPU a quarter of an hour
STEPS: tuple[StepKind, ...] = ("forward", "training")
TIME_LIMIT = 1.1  # of a token after the longest past, over one after the shortest

_ATTENTION_TEXT = (
    f"One causal attention of width 768, 12 heads: running slots and the last {attention.WINDOW} tokens, only that "
    "window, and ordinary attention. Each value is followed by its ratio to the first row's."
)
_LEAKS = (
    "linformer-pytorch with causal=True is not causal: position t attends to slots 0 to t, and each of them mixes the "
    "whole sequence, later positions included. Its output is checked against that formula."
)
_DECODING_TEXT = (
    "One more token, from its id to the scores of the vocabulary, after N tokens that were read before: language "
    "models of 4 layers, width 256, 4 heads, feed-forward 1,024, rotary positions, random weights; the twin's full "
    "attention is SDPA. Every step starts from the same N tokens. Up to "
    f"{format_count(decoding.LONGEST_PASS)} of them, the scores are compared with those of one pass without a cache."
)
_DECODING_MEMORY = (
    "In addition to the cache that the step starts with. Ordinary attention writes the keys and values of each layer "
    "anew with every token, and here the old ones stay for the next step: memory of a second cache. Text generation "
    "drops the old ones, so it needs this for one layer at a time."
)
_GROWTH = (
    "A token after the longest past compared with one after the shortest, timed in turn, and what is kept of both. "
    f"Required of ours: at most {TIME_LIMIT:.2f}× the time, and a cache of the same size."
)


class CausalSuite(Suite):
    """Forward and training of one causal attention over lengths, and decoding after pasts of other lengths."""

    name = "causal"
    title = "Causal attention"

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        pasts = grid.lengths or (QUICK_PASTS if grid.quick else PASTS)
        ks = grid.ks or KS
        cases = [case for step in STEPS for case in grid_cases(grid, lengths, ks, step=step, **ATTENTION_SIZES)]
        cases += grid_cases(grid, pasts, ks, step="decoding", **DECODER_SIZES)
        return require_cases(cases, lengths, ks)

    def contenders(self) -> list[Contender]:
        return [*attention.contenders(), *decoding.contenders()]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        decodes = contender.name in (decoding.OURS, decoding.TWIN)
        return decodes == (case.step == "decoding") and super().takes_part(contender, case)

    def turn(self, case: Case) -> Case:
        """Decoding after pasts of all lengths is timed in turn: their ratio must hold on noisy machines too."""
        return replace(super().turn(case), length=0) if case.step == "decoding" else super().turn(case)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.name == attention.SDPA:
            return beyond_full_attention(case, eager=False, causal=True)
        if contender.name == decoding.TWIN and case.device == "cpu" and case.length > READ_LIMIT:
            return f"reading more than {format_count(READ_LIMIT)} tokens takes too long on a CPU"
        return None

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        attended = Measurements([row for row in rows if row.case.step != "decoding"])
        decoded = Measurements([row for row in rows if row.case.step == "decoding"])
        growths = _growths(decoded)
        sections, figures = compare_lengths(
            attended,
            ours=attention.OURS,
            rival=attention.SDPA,
            text=_ATTENTION_TEXT,
            title="One causal attention",
            file="causal",
            note=_LEAKS if any("leaks" in name for name in attended.contenders) else "",
        )
        more_sections, more_figures = _decoding_sections(decoded)
        headlines = ratio_headlines(attended, attention.OURS, [attention.SDPA])
        return Summary(
            headlines=[*headlines, *_decoding_headlines(growths)],
            sections=[*sections, *more_sections, *([_growth_section(growths)] if growths else [])],
            figures={**figures, **more_figures},
            derived={
                "ratios": ratio_records(attended, attention.OURS),
                "decoding_ratios": ratio_records(decoded, decoding.OURS),
                "decoding_growth": [growth._asdict() for growth in growths],
            },
        )


def _decoding_sections(results: Measurements) -> tuple[list[Section], dict[str, bytes]]:
    sections: list[Section] = []
    charts: dict[str, LogLogChart] = {}
    for k in results.ks:
        comparison = LengthComparison(results=results, ours=decoding.OURS, step="decoding", k=k)
        time = comparison.chart("seconds", "Time of one token after N others")
        cache = comparison.chart("cache", "Cache after N tokens")
        charts.update({f"decoding_time_k{k}": time, f"decoding_cache_k{k}": cache})
        sections += [
            comparison.table("seconds", _DECODING_TEXT, time),
            comparison.table("cache", chart=cache),
            comparison.table("memory", _DECODING_MEMORY),
        ]
    return sections, drawn(charts)


class Growth(NamedTuple):
    """What a longer past costs one decoder.

    Attributes:
        contender: its name.
        k: slots; 0 where it has none.
        lengths: tokens of the shortest and of the longest past that were measured.
        seconds: of a token after either.
        caches: bytes kept of either.
        time_ratio: seconds after the longest past over those after the shortest.
        more_cache: bytes by which the cache of the longest past is larger.
    """

    contender: str
    k: int
    lengths: tuple[int, int]
    seconds: tuple[float, float]
    caches: tuple[int, int]
    time_ratio: float
    more_cache: int


def _growths(results: Measurements) -> list[Growth]:
    """One for each decoder and K with two lengths or more, ours first."""
    names = dict.fromkeys((row.contender, row.case.k) for row in results.rows)
    growths = []
    for name, k in sorted(names, key=lambda each: each[0] != decoding.OURS):
        seconds, caches = (results.points(quantity, name, "decoding", k) for quantity in ("seconds", "cache"))
        both = [length for length in seconds if length in caches]
        if len(both) > 1:
            short, long = both[0], both[-1]
            times, kept = (seconds[short], seconds[long]), (int(caches[short]), int(caches[long]))
            growths.append(Growth(name, k, (short, long), times, kept, times[1] / times[0], kept[1] - kept[0]))
    return growths


def _growth_section(growths: Sequence[Growth]) -> Section:
    rows = [
        [
            with_k(growth.contender, growth.k),
            "–".join(map(format_count, growth.lengths)),
            _factor(growth.time_ratio),
            " to ".join(map(format_bytes, growth.caches)),
            format_bytes(growth.more_cache),
        ]
        for growth in growths
    ]
    columns = ["", "tokens read", "time", "cache", "more"]
    return Section(heading="What a longer past costs", text=_GROWTH, columns=columns, rows=rows)


def _decoding_headlines(growths: Sequence[Growth]) -> list[Headline]:
    """Time and cache of ours with the largest K, beside its twin's."""
    ours = max((growth for growth in growths if growth.contender == decoding.OURS), key=lambda x: x.k, default=None)
    if ours is None:
        return []
    shortest, longest = map(format_count, ours.lengths)
    # Sizes that look alike when they are rounded need not be equal.
    same = "the same" if ours.more_cache == 0 else f"{format_bytes(ours.more_cache)} less"
    times = [f"required: at most {_factor(TIME_LIMIT)}, K = {format_count(ours.k)}"]
    caches = [f"after {shortest}: {same} (required: the same)"]
    for growth in growths:
        if growth.contender == decoding.TWIN:
            pasts = " to ".join(map(format_count, growth.lengths))
            times.append(f"full attention: {_factor(growth.time_ratio)} from {pasts}")
            caches.append(f"full attention: {' to '.join(map(format_bytes, growth.caches))} from {pasts}")
    name = f"time of a token after {longest} others, over one after {shortest}"
    return [
        Headline(name=name, value=_factor(ours.time_ratio), note="\n".join(times)),
        Headline(name=f"cache after {longest} tokens", value=format_bytes(ours.caches[1]), note="\n".join(caches)),
    ]


def _factor(ratio: float) -> str:
    """A factor whose limit is given to the hundredth."""
    return f"{ratio:.2f}×" if ratio < 10 else format_ratio(ratio)

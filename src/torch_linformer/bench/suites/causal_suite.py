"""Causal attention: what a training step costs over length, and what a new token costs behind a long past."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace

from torch_linformer.bench.contenders import causal_contenders as attention
from torch_linformer.bench.contenders import decoding_contenders as decoding
from torch_linformer.bench.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary
from torch_linformer.bench.suites.grids import beyond_full_attention, grid_cases, require_cases
from torch_linformer.bench.suites.measurements import (
    LengthComparison,
    Measurements,
    Quantity,
    headline_ratio,
    ratio_records,
)
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import format_bytes, format_count, format_ratio

ATTENTION_SIZES = {"width": 768, "heads": 12}
DECODER_SIZES = {"width": 256, "heads": 4, "layers": 4, "feedforward": 1024}
LENGTHS, PASTS, KS = (1024, 4096, 16384, 65536), (1000, 10000, 100000), (64,)
QUICK_LENGTHS, QUICK_PASTS = (512, 2048), (1000, 10000)
READ_LIMIT = 131072  # tokens; what ordinary attention takes to read more, a CPU needs a quarter of an hour for
STEPS: tuple[StepKind, ...] = ("forward", "training")
ASKED_TIME = 1.1  # of a token behind the longest past, over one behind the shortest

_ATTENTION_TEXT = (
    f"One causal attention of width 768, 12 heads: running slots and the last {attention.WINDOW} tokens, that window "
    "alone, and ordinary attention. With each value stands its ratio to the first row's."
)
_LEAKS = (
    "linformer-pytorch with causal=True is not causal: position t attends to slots 0 to t, and each of them has mixed "
    "the whole sequence, what comes after t included. Its output is checked against that formula."
)
_DECODING_TEXT = (
    "One more token, from its id to the scores of the vocabulary, behind N tokens that were read before: language "
    "models of 4 layers, width 256, 4 heads, feed-forward 1,024, rotary positions, random weights; the twin's full "
    "attention is SDPA's. Every step begins behind the same N tokens. Up to "
    f"{format_count(decoding.LONGEST_PASS)} of them, its scores are compared with those of one pass without a cache."
)
_DECODING_MEMORY = (
    "Beyond the cache that is there before. Ordinary attention writes each layer's keys and values anew with every "
    "token, and here the old ones stay for the next step: memory of a second cache, of which text generation, which "
    "lets go of the old ones, needs one layer at a time."
)
_GROWTH = (
    "A token behind the longest past over one behind the shortest, timed in turn, and what is kept of both. Asked of "
    f"ours: at most {ASKED_TIME:.2f}× the time, and a cache of the same size."
)


class CausalSuite(Suite):
    """Forward and training of one causal attention over lengths, and decoding behind pasts of other lengths."""

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
        return [
            *attention.ours(),
            attention.full_attention(),
            *attention.peers(),
            decoding.our_decoder(),
            decoding.twin_decoder(),
        ]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        decodes = contender.name in (decoding.OURS, decoding.TWIN)
        return decodes == (case.step == "decoding") and super().takes_part(contender, case)

    def turn(self, case: Case) -> Case:
        """Decoding is timed behind all pasts in turn: what a longer one costs is asked of noisy machines too."""
        return replace(super().turn(case), length=0) if case.step == "decoding" else super().turn(case)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.name == attention.SDPA:
            return beyond_full_attention(case, eager=False, causal=True)
        if contender.name == decoding.TWIN and case.device == "cpu" and case.length > READ_LIMIT:
            return f"reading more than {format_count(READ_LIMIT)} tokens takes too long on a CPU"
        return None

    def summarise(self, rows: Sequence[Measurement]) -> Summary:
        attended = Measurements([row for row in rows if row.case.step != "decoding"])
        decoded = Measurements([row for row in rows if row.case.step == "decoding"])
        growths = list(_growths(decoded.rows))
        sections, figures = _attention_sections(attended)
        more_sections, more_figures = _decoding_sections(decoded)
        growth = [_growth_section(growths)] if growths else []
        return Summary(
            headlines=[*_attention_headlines(attended), *_decoding_headlines(growths)],
            sections=[*sections, *more_sections, *growth],
            figures={**figures, **more_figures},
            derived={
                "ratios": ratio_records(attended, attention.OURS),
                "decoding_ratios": ratio_records(decoded, decoding.OURS),
                "decoding_growth": [each.record() for each in growths],
            },
        )


def _attention_sections(results: Measurements) -> tuple[list[Section], dict[str, bytes]]:
    sections, figures = [], {}
    names = _ours_first(results.contenders)
    for step in results.steps:
        for k in results.ks:
            comparison = LengthComparison(results=results, ours=attention.OURS, step=step, k=k)
            title = f"One causal attention, {step}, K = {format_count(k)}"
            chart = comparison.chart("seconds", title, names)
            if chart is not None:
                figures[f"causal_{step}_k{k}"] = chart.png()
            leaks = _LEAKS if any("leaks" in name for name in results.contenders) else ""
            text = "\n\n".join(filter(None, (f"{_ATTENTION_TEXT} {comparison.crossing(attention.SDPA)}", leaks)))
            sections.append(comparison.table("seconds", text, figure="" if chart is None else chart.svg()))
            sections.append(replace(comparison.table("memory"), text=""))
    return sections, figures


def _decoding_sections(results: Measurements) -> tuple[list[Section], dict[str, bytes]]:
    sections, figures = [], {}
    texts: dict[Quantity, str] = {"seconds": _DECODING_TEXT, "cache": "", "memory": _DECODING_MEMORY}
    titles: dict[Quantity, str] = {"seconds": "Time of one token behind N others", "cache": "Cache behind N tokens"}
    for k in results.ks:
        comparison = LengthComparison(results=results, ours=decoding.OURS, step="decoding", k=k)
        for quantity, text in texts.items():
            table = comparison.table(quantity, text)
            title = f"{titles.get(quantity, '')}, K = {format_count(k)}"
            chart = comparison.chart(quantity, title, _ours_first(results.contenders)) if quantity in titles else None
            if chart is not None:
                figures[f"decoding_{'time' if quantity == 'seconds' else quantity}_k{k}"] = chart.png()
                table = replace(table, figure=chart.svg())
            sections.append(table if quantity == "seconds" else replace(table, text=text))
    return sections, figures


def _ours_first(names: Sequence[str]) -> list[str]:
    return sorted(names, key=lambda name: name not in (attention.OURS, decoding.OURS))


@dataclass(frozen=True, kw_only=True)
class Growth:
    """What a longer past changed for one decoder.

    Attributes:
        contender: its name.
        k: slots; 0 where it has none.
        lengths: tokens of the shortest and of the longest past that were measured.
        seconds: of a token behind either.
        caches: bytes kept of either.
    """

    contender: str
    k: int
    lengths: tuple[int, int]
    seconds: tuple[float, float]
    caches: tuple[int, int]

    @property
    def time_ratio(self) -> float:
        """Seconds behind the longest past over those behind the shortest."""
        return self.seconds[1] / self.seconds[0]

    @property
    def more_cache(self) -> int:
        """Bytes by which the cache of the longest past is larger."""
        return self.caches[1] - self.caches[0]

    def record(self) -> dict[str, object]:
        """The same for ``results.json``."""
        return {**asdict(self), "time_ratio": self.time_ratio, "more_cache": self.more_cache}


def _growths(rows: Sequence[Measurement]) -> Iterator[Growth]:
    """One for each decoder and K with two lengths or more."""
    measured: dict[tuple[str, int], dict[int, tuple[float, int]]] = {}
    for row in rows:
        if row.seconds is not None and row.cache is not None:
            measured.setdefault((row.contender, row.case.k), {})[row.case.length] = (row.seconds, row.cache)
    for name, k in sorted(measured, key=lambda each: each[0] != decoding.OURS):
        found = measured[name, k]
        if len(found) > 1:
            shortest, longest = min(found), max(found)
            (first, first_cache), (last, last_cache) = found[shortest], found[longest]
            yield Growth(
                contender=name,
                k=k,
                lengths=(shortest, longest),
                seconds=(first, last),
                caches=(first_cache, last_cache),
            )


def _growth_section(growths: Sequence[Growth]) -> Section:
    rows = [
        [
            growth.contender + (f", K = {format_count(growth.k)}" if growth.k else ""),
            "–".join(map(format_count, growth.lengths)),
            _factor(growth.time_ratio),
            " to ".join(map(format_bytes, growth.caches)),
            format_bytes(growth.more_cache),
        ]
        for growth in growths
    ]
    columns = ["", "tokens read", "time", "cache", "more"]
    return Section(heading="What a longer past costs", text=_GROWTH, columns=columns, rows=rows)


def _attention_headlines(results: Measurements) -> list[Headline]:
    """Against ordinary causal attention, with the largest K."""
    return [
        headline_ratio(f"time of {attention.SDPA} over ours, {step}", ratios, f"K = {format_count(k)}")
        for k in results.ks[-1:]
        for step in results.steps
        if (ratios := results.ratios("seconds", attention.SDPA, attention.OURS, step, k))
    ]


def _decoding_headlines(growths: Sequence[Growth]) -> list[Headline]:
    """Time and cache of ours with the largest K, beside its twin's."""
    ours = max((growth for growth in growths if growth.contender == decoding.OURS), key=lambda x: x.k, default=None)
    if ours is None:
        return []
    shortest, longest = map(format_count, ours.lengths)
    times, caches = [f"asked: at most {_factor(ASKED_TIME)}, K = {format_count(ours.k)}"], [_sameness(ours)]
    for growth in growths:
        if growth.contender == decoding.TWIN:
            pasts = " to ".join(map(format_count, growth.lengths))
            times.append(f"full attention: {_factor(growth.time_ratio)} from {pasts}")
            caches.append(f"full attention: {' to '.join(map(format_bytes, growth.caches))} from {pasts}")
    return [
        Headline(
            name=f"time of a token behind {longest} others, over one behind {shortest}",
            value=_factor(ours.time_ratio),
            note="\n".join(times),
        ),
        Headline(name=f"cache behind {longest} tokens", value=format_bytes(ours.caches[1]), note="\n".join(caches)),
    ]


def _sameness(growth: Growth) -> str:
    """How the caches compare: sizes that look alike when they are rounded need not be equal."""
    shortest = format_count(growth.lengths[0])
    found = "the same" if growth.more_cache == 0 else f"{format_bytes(growth.more_cache)} less"
    return f"behind {shortest}: {found} (asked: the same)"


def _factor(ratio: float) -> str:
    """A factor that is asked for to the hundredth."""
    return f"{ratio:.2f}×" if ratio < 10 else format_ratio(ratio)

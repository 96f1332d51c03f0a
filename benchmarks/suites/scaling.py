"""How our time and memory grow with length: one attention to 65,536 tokens, an encoder to 1,048,576."""

from collections.abc import Sequence
from typing import Any

from runner.lines import Line
from runner.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary
from suites import attention
from suites import encoder as encoders
from suites.grids import grid_cases, require_cases
from suites.measurements import (
    Measurements,
    Quantity,
    drawn,
    fit_exponent,
    length_chart,
    measured_section,
    with_k,
)
from torch_linformer.nn.options import DEFAULT_K
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import MISSING, format_count, format_ratio

ATTENTION_SIZES = {"width": 768, "heads": 12}
ENCODER_SIZES = {"width": 256, "heads": 4, "layers": 4, "feedforward": 1024}
LENGTHS, KS = (1024, 4096, 16384, 65536, 262144, 1048576), (DEFAULT_K,)
QUICK_LENGTHS = LENGTHS[:3]
CHUNK_SIZE = 2048
ENCODER_OPTIONS: dict[str, Any] = {
    "sharing": "layerwise",
    "position_embedding": "sinusoidal",
    "norm_first": True,
    "chunk_size": CHUNK_SIZE,
}
ATTENTION_LENGTH, TRAINING_LENGTH = 65536, 131072  # beyond these only the encoder's forward goes on
QUANTITIES: dict[Quantity, str] = {"seconds": "time", "memory": "memory"}
FIT_FROM = 4096  # tokens; in shorter ones the fixed cost of a call counts too much

ATTENTION = "attention, width 768"
ENCODER = "encoder, 4 layers of width 256"
REVERSIBLE = "encoder, training, reversible"

_TEXT = (
    "Forward of one attention (width 768, 12 heads, headwise sharing) and of an encoder (4 pre-norm layers of width "
    "256, 4 heads, feed-forward 1,024, layerwise sharing, sinusoidal positions), "
    f"{format_count(CHUNK_SIZE)} tokens at a time; training of the same encoder with reversible layers, which keep no "
    "layer's activations."
)
_EXPONENT = f"p of cost ∝ Nᵖ, fitted from {format_count(FIT_FROM)} tokens on: 1 is linear, 2 quadratic."


class ScalingSuite(Suite):
    """Time and memory of our attention and encoder, from a thousand tokens to a million."""

    name = "scaling"
    title = "Scaling to a million tokens"

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        ks = grid.ks or KS
        trained = [length for length in lengths if length <= TRAINING_LENGTH]
        trained += [] if grid.lengths or grid.quick else [TRAINING_LENGTH]
        attended = [length for length in lengths if length <= ATTENTION_LENGTH]
        cases = [
            *grid_cases(grid, attended, ks, step="forward", **ATTENTION_SIZES),
            *grid_cases(grid, lengths, ks, step="forward", **ENCODER_SIZES),
            *grid_cases(grid, trained, ks, step="training", **ENCODER_SIZES),
        ]
        return require_cases([case for case in cases if case.k], lengths, ks)

    def contenders(self) -> list[Contender]:
        return [
            Contender(name=ATTENTION, build=attention.build_ours),
            encoders.our_encoder(ENCODER, **ENCODER_OPTIONS),
            encoders.our_encoder(REVERSIBLE, **ENCODER_OPTIONS, activation_memory="reversible"),
        ]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        if not case.layers:
            return contender.name == ATTENTION
        return contender.name == (ENCODER if case.step == "forward" else REVERSIBLE)

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        results = Measurements(rows)
        charts = {
            f"scaling_{name}": length_chart(quantity, f"{name.capitalize()} against length", _lines(results, quantity))
            for quantity, name in QUANTITIES.items()
        }
        sections = [
            Section(heading=chart.title, text=_TEXT, figure=chart.svg()) for chart in charts.values() if chart.lines
        ]
        exponents, ratio = _exponents(results), _attention_ratio(results)
        growth = [
            [entry["contender"], entry["k"], *(_two_decimals(entry[name]) for name in QUANTITIES.values())]
            for entry in exponents
        ]
        columns = ["", "K", *QUANTITIES.values()]
        sections.append(Section(heading="Growth", text=_EXPONENT, columns=columns, rows=growth))
        return Summary(
            headlines=_headlines(exponents, ratio),
            sections=[*sections, measured_section(results)],
            figures=drawn(charts),
            derived={"exponents": exponents, "attention_time_65536_over_4096": ratio},
        )


def _series(results: Measurements) -> list[tuple[str, int]]:
    """Every (contender, K) that there are rows of."""
    return list(dict.fromkeys((row.contender, row.case.k) for row in results.rows))


def _points(results: Measurements, quantity: Quantity, contender: str, k: int) -> list[tuple[int, float]]:
    step: StepKind = "training" if contender == REVERSIBLE else "forward"
    return list(results.points(quantity, contender, step, k).items())


def _lines(results: Measurements, quantity: Quantity) -> list[Line]:
    several = len(results.ks) > 1
    return [
        Line(name=with_k(contender, k) if several else contender, points=points)
        for contender, k in _series(results)
        if (points := _points(results, quantity, contender, k))
    ]


def _exponents(results: Measurements) -> list[dict[str, Any]]:
    """The exponents of time and memory of every (contender, K), for ``results.json``."""

    def exponent(quantity: Quantity, contender: str, k: int) -> float | None:
        return fit_exponent([point for point in _points(results, quantity, contender, k) if point[0] >= FIT_FROM])

    return [
        {"contender": name, "k": k, **{label: exponent(quantity, name, k) for quantity, label in QUANTITIES.items()}}
        for name, k in _series(results)
    ]


def _attention_ratio(results: Measurements) -> float | None:
    """Time of one attention at 65,536 tokens over its time at 4,096, a sixteenth of them."""
    for k in results.ks:
        points = dict(_points(results, "seconds", ATTENTION, k))
        if 4096 in points and 65536 in points:
            return points[65536] / points[4096]
    return None


def _headlines(exponents: Sequence[dict[str, Any]], ratio: float | None) -> list[Headline]:
    found = [
        Headline(name=f"exponent of time: {entry['contender']}", value=_two_decimals(entry["time"]), note="1 is linear")
        for entry in exponents
        if entry["time"] is not None
    ]
    if ratio is not None:
        note = "16 times the tokens"
        found.append(Headline(name="attention at 65,536 over 4,096 tokens", value=format_ratio(ratio), note=note))
    return found


def _two_decimals(exponent: float | None) -> str:
    return MISSING if exponent is None else f"{exponent:.2f}"

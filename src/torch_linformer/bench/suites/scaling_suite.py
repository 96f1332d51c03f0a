"""How our time and memory grow with length: one attention to 65,536 tokens, an encoder to 1,048,576."""

from collections.abc import Sequence

from torch_linformer.bench.contenders import attention_contenders as attention
from torch_linformer.bench.contenders import encoder_contenders as encoders
from torch_linformer.bench.fits import fit_exponent
from torch_linformer.bench.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary
from torch_linformer.bench.suites.grids import grid_cases, require_cases
from torch_linformer.bench.suites.measurements import (
    FORMATS,
    Measurements,
    Quantity,
    failures_text,
    length_chart,
)
from torch_linformer.reporting.lines import Line
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import MISSING, format_count, format_ratio

ATTENTION_SIZES = {"width": 768, "heads": 12}
ENCODER_SIZES = {"width": 256, "heads": 4, "layers": 4, "feedforward": 1024}
LENGTHS, KS = (1024, 4096, 16384, 65536, 262144, 1048576), (256,)
QUICK_LENGTHS = LENGTHS[:3]
CHUNK_SIZE = 2048
ATTENTION_LENGTH, TRAINING_LENGTH = 65536, 131072  # beyond these the encoder's forward alone goes on
QUANTITIES: dict[Quantity, str] = {"seconds": "time", "memory": "memory"}
FIT_FROM = 4096  # below it what a call costs whatever its length is part of the time

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
    """Time and memory of ours alone, from a thousand tokens to a million."""

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
        options = {
            "sharing": "layerwise",
            "position_embedding": "sinusoidal",
            "norm_first": True,
            "chunk_size": CHUNK_SIZE,
        }
        return [
            Contender(name=ATTENTION, build=attention.build_ours, ours=True),
            encoders.our_encoder(ENCODER, **options),
            encoders.our_encoder(REVERSIBLE, **options, activation_memory="reversible"),
        ]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        if not case.layers:
            return contender.name == ATTENTION
        return contender.name == (ENCODER if case.step == "forward" else REVERSIBLE)

    def summarise(self, rows: Sequence[Measurement]) -> Summary:
        results = Measurements(rows)
        sections, figures = [], {}
        for quantity, name in QUANTITIES.items():
            chart = length_chart(quantity, f"{name.capitalize()} against length", _lines(results, quantity))
            if chart is not None:
                figures[f"scaling_{name}"] = chart.png()
                sections.append(Section(heading=chart.title, text=_TEXT, figure=chart.svg()))
        exponents = _exponents(results)
        ratio = _attention_ratio(results)
        sections += [_exponent_section(exponents), _measured(results)]
        return Summary(
            headlines=_headlines(exponents, ratio),
            sections=sections,
            figures=figures,
            derived={"exponents": exponents, "attention_time_65536_over_4096": ratio},
        )


def _series(results: Measurements) -> list[tuple[str, int]]:
    """Every (contender, K) there are rows of."""
    return list(dict.fromkeys((row.contender, row.case.k) for row in results.rows))


def _points(results: Measurements, quantity: Quantity, contender: str, k: int) -> list[tuple[int, float]]:
    step: StepKind = "training" if contender == REVERSIBLE else "forward"
    return results.points(quantity, contender, step, k)


def _lines(results: Measurements, quantity: Quantity) -> list[Line]:
    several = len(results.ks) > 1
    return [
        Line(name=f"{contender}, K = {format_count(k)}" if several else contender, points=points)
        for contender, k in _series(results)
        if (points := _points(results, quantity, contender, k))
    ]


def _exponents(results: Measurements) -> list[dict[str, object]]:
    def exponent(quantity: Quantity, contender: str, k: int) -> float | None:
        return fit_exponent([point for point in _points(results, quantity, contender, k) if point[0] >= FIT_FROM])

    return [
        {
            "contender": contender,
            "k": k,
            "time": exponent("seconds", contender, k),
            "memory": exponent("memory", contender, k),
        }
        for contender, k in _series(results)
    ]


def _attention_ratio(results: Measurements) -> float | None:
    """Time of one attention at 65,536 tokens over its time at 4,096, which is 16 times shorter."""
    for k in results.ks:
        points = dict(_points(results, "seconds", ATTENTION, k))
        if 4096 in points and 65536 in points:
            return points[65536] / points[4096]
    return None


def _headlines(exponents: Sequence[dict[str, object]], ratio: float | None) -> list[Headline]:
    found = [
        Headline(name=f"exponent of time: {entry['contender']}", value=f"{entry['time']:.2f}", note="1 is linear")
        for entry in exponents
        if entry["time"] is not None
    ]
    if ratio is not None:
        note = "16 times the tokens"
        found.append(Headline(name="attention at 65,536 over 4,096 tokens", value=format_ratio(ratio), note=note))
    return found


def _exponent_section(exponents: Sequence[dict[str, object]]) -> Section:
    def cell(value: object) -> str:
        return f"{value:.2f}" if isinstance(value, float) else MISSING

    return Section(
        heading="Growth",
        text=_EXPONENT,
        columns=["", "K", "time", "memory"],
        rows=[[entry["contender"], entry["k"], cell(entry["time"]), cell(entry["memory"])] for entry in exponents],
    )


def _measured(results: Measurements) -> Section:
    rows = [
        [
            row.contender,
            format_count(row.case.length),
            MISSING if row.seconds is None else FORMATS["seconds"](row.seconds),
            MISSING if row.memory is None else FORMATS["memory"](row.memory),
            MISSING if not row.seconds else format_count(row.case.batch * row.case.length / row.seconds),
        ]
        for row in results.rows
    ]
    failures = failures_text(results.only(lambda row: row.seconds is None))
    columns = ["", "N", "time", "peak memory", "tokens/s"]
    return Section(heading="Measured", text=failures, columns=columns, rows=rows)

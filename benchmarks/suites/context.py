"""One sequence over several processes: what a training step costs, and what it would cost many GPUs."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from runner.suite import Case, Contender, Grid, Measurement, Suite, Summary, Workload
from suites.contenders import placed
from suites.grids import grid_cases, require_cases
from suites.measurements import failures_text
from torch_linformer.distributed import SequencePiece
from torch_linformer.nn import LinformerEncoder
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import MISSING, format_bytes, format_count, format_duration, format_ratio

WINDOW = 64
MEANS, DYNAMIC, CAUSAL = "means", "dynamic", "causal"
OPTIONS: dict[str, dict[str, Any]] = {
    MEANS: {"projection": "mean"},
    DYNAMIC: {"projection": "dynamic", "sharing": "kv_per_head"},
    CAUSAL: {"causal": True},
}


def encoders() -> list[Contender]:
    """One for each kind of slots that processes put together in another way, all with a window."""
    return [Contender(name=name, build=partial(_build, options=options)) for name, options in OPTIONS.items()]


def _build(case: Case, options: dict[str, Any]) -> Workload:
    sizes = case.width, case.heads, case.layers, case.feedforward, 0.0
    encoder = placed(LinformerEncoder(*sizes, max_len=case.length, k=case.k, window=WINDOW, **options), case)
    pieces: list[SequencePiece] = []

    def run(states: Tensor) -> Tensor:
        pieces[:] = [new_piece()]  # one serves one pass, as in training
        output: Tensor = encoder(states, src_key_padding_mask=pieces[0], is_causal=bool(options.get("causal")))
        return output

    def new_piece() -> SequencePiece:
        return SequencePiece(dist.group.WORLD, case.batch, case.length, device=case.device)

    here = new_piece()
    shape = case.batch, here.stop - here.start, case.width
    states = torch.randn(shape, generator=torch.Generator().manual_seed(here.start))
    return Workload(
        module=encoder,
        inputs=(states.to(case.device, case.torch_dtype).requires_grad_(case.step == "training"),),
        run=run,
        output_shape=shape,
        sent=lambda: (pieces[0].peers.sent, pieces[0].peers.messages),
    )


SIZES = {"width": 128, "heads": 4, "layers": 2, "feedforward": 512}
LENGTHS, RANKS, KS = (65536, 262144), (1, 2, 4), (256,)
PIECES = (4096, 8192, 16384, 32768)  # of the longest of them, one for each of 64, 32, 16 and 8 processes
QUICK_LENGTHS, QUICK_RANKS = (4096, 16384), (1, 2)
COMPUTED = (8, 16, 32, 64)
LINK = 50e9  # bytes a second that a process gives and takes: a network of 400 Gbit/s
LATENCY = 50e-6  # seconds of a message, however short

_TEXT = (
    "A training step of an encoder (2 layers of width 128, 4 heads, feed-forward 512, a window of "
    f"{WINDOW}), of which each process computes a piece of every row. Time is that of the slowest process, "
    "memory and bytes are the most of one. Slots: means of segments, dynamic (chosen by the input), causal. Ring "
    "attention would give the others all keys and values: 4·N·C·(R − 1)/R numbers a layer, forward and backward, "
    "counted on paper."
)
_COMPUTED = (
    "Computed, not measured: the time that one process took for a piece of N/R tokens, and for what it gives to the "
    f"others 2·(R − 1)/R times its bytes over a link of {format_bytes(LINK)}/s (400 Gbit/s, assumed) with "
    f"{format_duration(LATENCY)} a message (assumed). Causal processes wait for each other once a step: "
    "(layers + R − 1)/layers times the time of a piece."
)


class ContextSuite(Suite):
    """Time, memory and messages of one sequence over 1, 2 and 4 processes, one thread each."""

    name = "context"
    title = "One sequence over several processes"
    threads = 1

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        ks = grid.ks or KS
        found = [
            replace(case, ranks=ranks)
            for case in require_cases([*grid_cases(grid, lengths, ks, step="training", **SIZES)], lengths, ks)
            for ranks in (QUICK_RANKS if grid.quick else RANKS)
        ]
        if not grid.lengths and not grid.quick:
            pieces = grid_cases(grid, PIECES, ks, step="training", **SIZES)
            found = [*(replace(case, ranks=1) for case in pieces), *found]
        return [case for case in found if case.k]

    def contenders(self) -> list[Contender]:
        return encoders()

    def turn(self, case: Case) -> Case:
        return replace(super().turn(case), ranks=0)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if case.device == "cuda" and case.ranks > torch.cuda.device_count():
            return f"{case.ranks} processes need a GPU each, and there are {torch.cuda.device_count()}"
        return None

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        sections = [_measured_section(rows)]
        computed = _estimates(rows)
        if computed:
            sections.append(_computed_section(computed))
        return Summary(
            headlines=_headlines(rows), sections=sections, derived={"computed": [asdict(each) for each in computed]}
        )


def ring_bytes(case: Case) -> float:
    """Bytes that a process of ring attention gives to the others in a training step."""
    numbers = 4 * case.batch * case.length * case.width * case.layers * (case.ranks - 1) / case.ranks
    return numbers * case.torch_dtype.itemsize


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A step that was not run, of more processes than there are.

    Attributes:
        contender: whose.
        length: tokens N of the whole row.
        ranks: processes R.
        seconds: of the step.
        sent: bytes that each gives to the others.
    """

    contender: str
    length: int
    ranks: int
    seconds: float
    sent: int


def estimate(piece: Measurement, shared: Measurement, ranks: int) -> Estimate:
    """A step of ``ranks`` processes.

    Args:
        piece: what one process measured of its share of the tokens.
        shared: the same row over several processes: what is given to others does not depend on how many there are.
        ranks: how many processes the estimate is for.
    """
    assert piece.seconds is not None and shared.sent is not None and shared.messages is not None
    layers = piece.case.layers
    waiting = (layers + ranks - 1) / layers if piece.contender == CAUSAL else 1.0
    told = 2 * (ranks - 1) / ranks * shared.sent / LINK + shared.messages * LATENCY
    return Estimate(
        contender=piece.contender,
        length=shared.case.length,
        ranks=ranks,
        seconds=piece.seconds * waiting + told,
        sent=shared.sent,
    )


def _estimates(rows: Sequence[Measurement]) -> list[Estimate]:
    """One for each piece that one process measured and that is the share of 8 to 64 of a longer row."""
    there = {(row.contender, row.case): row for row in rows if row.seconds is not None}
    return [
        estimate(piece, shared, ranks)
        for (name, case), shared in there.items()
        if case.ranks == max(RANKS)
        for ranks in COMPUTED
        if (piece := there.get((name, replace(case, length=case.length // ranks, ranks=1)))) is not None
    ]


def _measured_section(rows: Sequence[Measurement]) -> Section:
    """Every step that was run, beside the same row in one process."""
    there = {(row.contender, row.case): row.seconds for row in rows}
    cells = []
    for row in rows:
        alone = there.get((row.contender, replace(row.case, ranks=1)))
        cells.append(
            [
                row.contender,
                format_count(row.case.length),
                row.case.ranks,
                MISSING if row.seconds is None else format_duration(row.seconds),
                MISSING if not row.seconds or not alone else format_ratio(row.seconds / alone),
                MISSING if row.memory is None else format_bytes(row.memory),
                MISSING if row.sent is None else format_bytes(row.sent),
                MISSING if row.messages is None else row.messages,
                format_bytes(ring_bytes(row.case)),
            ]
        )
    columns = ["slots", "N", "processes", "time", "of one", "memory", "given", "messages", "ring"]
    text = "\n\n".join(filter(None, (_TEXT, failures_text(rows))))
    return Section(heading="Measured", text=text, columns=columns, rows=cells)


def _computed_section(estimates: Sequence[Estimate]) -> Section:
    rows = [
        [
            each.contender,
            format_count(each.length),
            each.ranks,
            format_duration(each.seconds),
            format_count(each.length / each.seconds),
            format_bytes(each.sent),
        ]
        for each in estimates
    ]
    columns = ["slots", "N", "processes", "time", "tokens/s", "given"]
    return Section(heading="Computed for 8 to 64 processes", text=_COMPUTED, columns=columns, rows=rows)


def _headlines(rows: Sequence[Measurement]) -> list[Headline]:
    """Memory and bytes of the most processes that were measured, at the greatest length, for each kind of slots."""
    found = []
    for name in OPTIONS:
        last = [row for row in rows if row.contender == name and row.sent]
        if last:
            row = max(last, key=lambda row: (row.case.length, row.case.ranks))
            note = f"of {format_bytes(ring_bytes(row.case))} of ring attention; "
            note += f"N = {format_count(row.case.length)}, {row.case.ranks} processes"
            found.append(Headline(name=f"given by a process: {name}", value=format_bytes(row.sent or 0), note=note))
    return found

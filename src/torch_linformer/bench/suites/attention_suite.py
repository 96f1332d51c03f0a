"""One attention: ours in every form beside ordinary attention and the packages that offer something like it."""

from collections.abc import Sequence

from torch_linformer.bench.contenders import attention_contenders as contenders
from torch_linformer.bench.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary
from torch_linformer.bench.suites.grids import beyond_full_attention, grid_cases, require_cases
from torch_linformer.bench.suites.measurements import Measurements, compare_lengths, ratio_headlines, ratio_records
from torch_linformer.measuring.costs import linformer_attention_cost
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import format_count, format_percent

WIDTH, HEADS = 768, 12
LENGTHS, KS = (1024, 4096, 16384), (128, 256)
QUICK_LENGTHS, QUICK_KS = (512, 2048), (128,)
MATRIX, QUICK_MATRIX = 4096, 2048
STEPS: tuple[StepKind, ...] = ("forward", "training")

_TEXT = "Each value is followed by its ratio to the first row's: 2× is twice as much."
_SHARE_TEXT = (
    "The share that our forward step reaches of the rate at which this machine multiplies large matrices, counting "
    "only the multiplications of the compress-first formula: not softmax, bias or anything else."
)


class AttentionSuite(Suite):
    """Forward and training of one attention over lengths and K."""

    name = "attention"
    title = "One attention"

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        ks = grid.ks or (QUICK_KS if grid.quick else KS)
        cases = [case for step in STEPS for case in grid_cases(grid, lengths, ks, step=step, width=WIDTH, heads=HEADS)]
        return [_machine_case(grid), *require_cases(cases, lengths, ks)]

    def contenders(self) -> list[Contender]:
        return [
            contenders.matrix_product(),
            *contenders.ours(),
            *contenders.full_attention(),
            *contenders.peers(),
        ]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        if contender.name == contenders.MATRIX_PRODUCT or not case.heads:
            return contender.name == contenders.MATRIX_PRODUCT and not case.heads
        return super().takes_part(contender, case)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.name in (contenders.SDPA, contenders.EAGER):
            return beyond_full_attention(case, eager=contender.name == contenders.EAGER)
        return None

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        results, ours = Measurements([row for row in rows if row.case.heads]), contenders.OURS
        others = [name for name in results.contenders if not name.startswith(ours)]
        sections, figures = compare_lengths(
            results,
            ours=ours,
            rival=contenders.SDPA,
            text=_TEXT,
            title="One attention",
            file="attention",
            names=[ours, *contenders.DYNAMIC, *others],
        )
        shares = _shares(results, rows)
        if shares:
            table = [[f"N = {format_count(n)}, K = {format_count(k)}", format_percent(share)] for n, k, share in shares]
            columns = ["", "share of the rate"]
            sections.append(
                Section(heading="Share of the matrix-multiply rate", text=_SHARE_TEXT, columns=columns, rows=table)
            )
        rivals = [name for name in others if name.startswith("linformer ") or name == contenders.SDPA]
        return Summary(
            headlines=[*ratio_headlines(results, ours, rivals), *_share_headline(shares)],
            sections=sections,
            figures=figures,
            derived={
                "ratios": ratio_records(results, ours),
                "share_of_matrix_product": [{"length": n, "k": k, "share": share} for n, k, share in shares],
            },
        )


def _machine_case(grid: Grid) -> Case:
    """The product of two square matrices: a case without heads."""
    side = QUICK_MATRIX if grid.quick else MATRIX
    return Case(step="forward", length=side, k=0, batch=1, width=side, heads=0, device=grid.device, dtype=grid.dtype)


def _shares(results: Measurements, rows: Sequence[Measurement]) -> list[tuple[int, int, float]]:
    """(N, K, share) of our forward steps; none where the machine's rate is not known."""
    machine = next((row for row in rows if row.contender == contenders.MATRIX_PRODUCT and row.seconds), None)
    if machine is None or not machine.seconds:
        return []
    rate = machine.case.length * machine.case.width**2 / machine.seconds
    return [
        (row.case.length, row.case.k, linformer_attention_cost(row.case).multiplications / row.seconds / rate)
        for row in results.rows
        if row.contender == contenders.OURS and row.case.step == "forward" and row.seconds
    ]


def _share_headline(shares: Sequence[tuple[int, int, float]]) -> list[Headline]:
    if not shares:
        return []
    length, k, share = max(shares)
    note = f"forward, N = {format_count(length)}, K = {format_count(k)}"
    return [Headline(name="of the matrix-multiply rate", value=format_percent(share), note=note)]

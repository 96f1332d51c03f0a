"""One attention: ours in every form beside ordinary attention and the packages that offer something like it."""

from collections.abc import Sequence

from torch_linformer.bench.contenders import attention_contenders as contenders
from torch_linformer.bench.contenders.compiled import MODES, compiled, compiled_name
from torch_linformer.bench.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary
from torch_linformer.bench.suites.grids import beyond_full_attention, grid_cases, require_cases
from torch_linformer.bench.suites.measurements import Measurements, compare_lengths, ratio_headlines, ratio_records
from torch_linformer.bench.suites.step_floors import (
    machine_case,
    machine_contenders,
    measures_the_machine,
    share_headline,
    shares,
    shares_records,
    shares_section,
)

WIDTH, HEADS = 768, 12
LENGTHS, KS = (1024, 4096, 16384), (128, 256)
QUICK_LENGTHS, QUICK_KS = (512, 2048), (128,)
STEPS: tuple[StepKind, ...] = ("forward", "training")

COMPILED = [compiled_name(name, way) for name in (contenders.OURS, contenders.SDPA) for way in MODES]

_TEXT = "Each value is followed by its ratio to the first row's: 2× is twice as much."


class AttentionSuite(Suite):
    """Forward and training of one attention over lengths and K."""

    name = "attention"
    title = "One attention"
    several_batches = True

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        ks = grid.ks or (QUICK_KS if grid.quick else KS)
        cases = [case for step in STEPS for case in grid_cases(grid, lengths, ks, step=step, width=WIDTH, heads=HEADS)]
        return [machine_case(grid), *require_cases(cases, lengths, ks)]

    def contenders(self) -> list[Contender]:
        ours, full = contenders.ours(), contenders.full_attention()
        return [
            *machine_contenders(),
            *ours,
            *compiled(ours[0]),
            *full,
            *compiled(full[0]),
            *contenders.peers(),
        ]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        if measures_the_machine(contender) or not case.heads:
            return measures_the_machine(contender) and not case.heads
        return super().takes_part(contender, case)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.name.startswith((contenders.SDPA, contenders.EAGER)):
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
            names=[ours, *contenders.DYNAMIC, *COMPILED[: len(MODES)], *others],
        )
        found = shares(rows, [ours, contenders.SDPA, *COMPILED])
        if found:
            sections.append(shares_section(found))
        rivals = [name for name in others if name.startswith("linformer ") or name == contenders.SDPA]
        return Summary(
            headlines=[*ratio_headlines(results, ours, rivals), *share_headline(found, ours)],
            sections=sections,
            figures=figures,
            derived={"ratios": ratio_records(results, ours), "share_of_floor": shares_records(found)},
        )

"""What to run first on a GPU: few contenders, eager, compiled and as CUDA graphs, over lengths and batches."""

from collections.abc import Sequence
from dataclasses import replace

from runner.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary
from suites import attention
from suites import encoder as encoders
from suites.contenders import compiled
from suites.grids import beyond_full_attention, grid_cases, require_cases
from suites.least_time import (
    machine_case,
    machine_contenders,
    measures_the_machine,
    share_headline,
    shares,
    shares_records,
    shares_section,
)
from suites.measurements import Measurements, compare_lengths, ratio_headlines, ratio_records

ATTENTION_SIZES = {"width": attention.WIDTH, "heads": attention.HEADS}
LENGTHS, KS, BATCHES = (4096, 16384, 65536), (256,), (1, 16)
QUICK_LENGTHS = (1024, 4096)
MOST_TOKENS = 2**18  # a call: 16 rows of 16,384; beyond it a GPU has long been full
ENCODER_LENGTHS, ENCODER_KS, ENCODER_BATCHES = (2048,), (128,), (16,)
QUICK_ENCODER_LENGTHS = (512,)
STEPS: tuple[StepKind, ...] = ("forward", "training")

ENCODER = "torch-linformer encoder"

_ATTENTION = (
    "One attention of width 768, 12 heads, B rows of N tokens a call. CUDA graphs, which save the launching of "
    "kernels, take part with one row a call, where launches are what a step waits for. Each value is followed by its "
    "ratio to the first row's."
)
_ENCODERS = (
    "6 layers of width 384, 12 heads, feed-forward 1,536, random weights, no dropout, from token ids to the last "
    "hidden state. Each value is followed by its ratio to the first row's."
)


class GpuSuite(Suite):
    """Ours and its rivals in every way that a GPU runs them, in nine minutes."""

    name = "gpu"
    title = "On a GPU"
    packages = ("linformer",)
    several_batches = True
    dtype = "bfloat16"
    minutes = 9

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        encoded = grid.lengths or (QUICK_ENCODER_LENGTHS if grid.quick else ENCODER_LENGTHS)
        ks = grid.ks or KS
        cases: list[Case] = []
        for step in STEPS:
            for batch in grid.batches or BATCHES:
                fitting = [n for n in lengths if grid.batches or batch * n <= MOST_TOKENS]
                cases += grid_cases(replace(grid, batches=(batch,)), fitting, ks, step=step, **ATTENTION_SIZES)
            for batch in grid.batches or ENCODER_BATCHES:
                one = replace(grid, batches=(batch,))
                cases += grid_cases(one, encoded, grid.ks or ENCODER_KS, step=step, **encoders.SIZES)
        return [machine_case(grid), *require_cases(cases, lengths, ks)]

    def contenders(self) -> list[Contender]:
        bert = next(each for each in encoders.encoders() if each.name.startswith(encoders.BERT))
        everyone = attention.ours()[0], attention.full_attention()[0], encoders.our_encoder(ENCODER), bert
        return [
            *machine_contenders(),
            *(form for each in everyone for form in (each, *compiled(each))),
            *(each for each in attention.peers() if each.name.startswith("linformer ")),
        ]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        if measures_the_machine(contender) or not case.heads:
            return measures_the_machine(contender) and not case.heads
        if (case.layers > 0) != contender.name.startswith((ENCODER, "BERT")):
            return False
        if contender.compilation == "CUDA graphs" and case.batch > 1 and not case.layers:
            return False
        return super().takes_part(contender, case)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.name.startswith(attention.SDPA):
            return beyond_full_attention(case, eager=False)
        return None

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        attended = Measurements([row for row in rows if row.case.heads and not row.case.layers])
        encoded = Measurements([row for row in rows if row.case.layers])
        bert = next((name for name in encoded.contenders if name.startswith("BERT")), "BERT")
        sections, figures = compare_lengths(
            attended,
            ours=attention.OURS,
            rival=attention.SDPA,
            text=_ATTENTION,
            title="One attention",
            file="gpu_attention",
        )
        more, more_figures = compare_lengths(
            encoded, ours=ENCODER, rival=bert, text=_ENCODERS, title="Encoders", file="gpu_encoder"
        )
        found = shares(rows, [*attended.contenders, *encoded.contenders])
        found = [share for share in found if not share.contender.startswith("linformer ")]  # its order costs more
        return Summary(
            headlines=[
                *ratio_headlines(attended, attention.OURS, [attention.SDPA]),
                *ratio_headlines(encoded, ENCODER, [bert]),
                *share_headline(found, attention.OURS),
            ],
            sections=[*sections, *more, *([shares_section(found)] if found else [])],
            figures={**figures, **more_figures},
            derived={
                "ratios": ratio_records(attended, attention.OURS),
                "encoder_ratios": ratio_records(encoded, ENCODER),
                "share_of_least_time": shares_records(found),
            },
        )

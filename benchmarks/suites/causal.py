"""Causal attention: what a training step costs over length, and what a new token costs after a long past."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from runner.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary, Workload
from suites import decoding
from suites.attention import build_full
from suites.contenders import (
    WINDOW,
    call,
    linformer_pytorch_attention,
    self_attention,
    sequence_workload,
)
from suites.grids import beyond_full_attention, grid_cases, require_cases
from suites.measurements import (
    Measurements,
    compare_lengths,
    ratio_headlines,
    ratio_records,
)
from suites.plain import plain_causal_attention, plain_leaking_attention
from torch_linformer.measuring.machine import package_versions
from torch_linformer.nn.attention import LinformerAttention
from torch_linformer.reporting.tables import format_count

LONGEST_LOOP = 16384  # positions up to which ours is compared with a loop over them

OURS = f"torch-linformer, slots and window of {WINDOW}"
WINDOW_ALONE = f"torch-linformer, window of {WINDOW} alone"
SDPA = f"full causal attention, SDPA (torch {torch.__version__})"


def contenders() -> list[Contender]:
    """Running slots beside a local window, only the window, torch's fused kernel, and linformer-pytorch if installed.

    What that one computes is not causal, and its name says so.
    """
    found = [
        Contender(name=OURS, build=_build_ours),
        Contender(name=WINDOW_ALONE, build=_build_ours, has_slots=False),
        Contender(name=SDPA, build=partial(build_full, causal=True), has_slots=False),
    ]
    for name, version in package_versions(["linformer-pytorch"]).items():
        found.append(Contender(name=f"{name} {version}, causal=True (leaks the future)", build=_build_leaking))
    return found


def _build_ours(case: Case) -> Workload:
    options: dict[str, Any] = {"causal": True, "window": min(WINDOW, case.length)}
    module = LinformerAttention(case.width, case.heads, max_len=case.length, k=case.k, **options)
    expected = plain_causal_attention if case.length <= LONGEST_LOOP else None
    return sequence_workload(module, case, self_attention, expected, keys=case.k + WINDOW)


def _build_leaking(case: Case) -> Workload:
    from linformer_pytorch.linformer_pytorch import gen_causal_mask

    mask = gen_causal_mask(case.length, case.k)  # what its models pass for causal=True
    return sequence_workload(linformer_pytorch_attention(case, mask), case, call, plain_leaking_attention)


ATTENTION_SIZES = {"width": 768, "heads": 12}
DECODER_SIZES = {"width": 256, "heads": 4, "layers": 4, "feedforward": 1024}
LENGTHS, PASTS, KS = (1024, 4096, 16384, 65536), (1000, 10000, 100000), (64,)
QUICK_LENGTHS, QUICK_PASTS = (512, 2048), (1000, 10000)
READ_LIMIT = 131072  # tokens; to read more with ordinary attention takes a CPU a quarter of an hour
STEPS: tuple[StepKind, ...] = ("forward", "training")

_ATTENTION_TEXT = (
    f"One causal attention of width 768, 12 heads: running slots and the last {WINDOW} tokens, only that "
    "window, and ordinary attention. Each value is followed by its ratio to the first row's."
)
_LEAKS = (
    "linformer-pytorch with causal=True is not causal: position t attends to slots 0 to t, and each of them mixes the "
    "whole sequence, later positions included. Its output is checked against that formula."
)


class CausalSuite(Suite):
    """Forward and training of one causal attention over lengths, and decoding after pasts of other lengths."""

    name = "causal"
    title = "Causal attention"
    packages = ("linformer-pytorch",)

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        pasts = grid.lengths or (QUICK_PASTS if grid.quick else PASTS)
        ks = grid.ks or KS
        cases = [case for step in STEPS for case in grid_cases(grid, lengths, ks, step=step, **ATTENTION_SIZES)]
        cases += grid_cases(grid, pasts, ks, step="decoding", **DECODER_SIZES)
        return require_cases(cases, lengths, ks)

    def contenders(self) -> list[Contender]:
        return [*contenders(), *decoding.contenders()]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        decodes = contender.name in (decoding.OURS, decoding.TWIN)
        return decodes == (case.step == "decoding") and super().takes_part(contender, case)

    def turn(self, case: Case) -> Case:
        """Decoding after pasts of all lengths is timed in turn: their ratio must hold on noisy machines too."""
        return replace(super().turn(case), length=0) if case.step == "decoding" else super().turn(case)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.name == SDPA:
            return beyond_full_attention(case, eager=False, causal=True)
        if contender.name == decoding.TWIN and case.device == "cpu" and case.length > READ_LIMIT:
            return f"reading more than {format_count(READ_LIMIT)} tokens takes too long on a CPU"
        return None

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        attended = Measurements([row for row in rows if row.case.step != "decoding"])
        decoded = Measurements([row for row in rows if row.case.step == "decoding"])
        growths = decoding.growths(decoded)
        sections, figures = compare_lengths(
            attended,
            ours=OURS,
            rival=SDPA,
            text=_ATTENTION_TEXT,
            title="One causal attention",
            file="causal",
            note=_LEAKS if any("leaks" in name for name in attended.contenders) else "",
        )
        more_sections, more_figures = decoding.sections(decoded)
        headlines = ratio_headlines(attended, OURS, [SDPA])
        return Summary(
            headlines=[*headlines, *decoding.headlines(growths)],
            sections=[*sections, *more_sections, *([decoding.growth_section(growths)] if growths else [])],
            figures={**figures, **more_figures},
            derived={
                "ratios": ratio_records(attended, OURS),
                "decoding_ratios": ratio_records(decoded, decoding.OURS),
                "decoding_growth": [growth._asdict() for growth in growths],
            },
        )

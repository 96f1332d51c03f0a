"""One attention: ours in every form, full attention, and the packages that offer something like it."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, get_args

import torch
from torch import nn

from runner.suite import Case, Contender, Grid, Measurement, StepKind, Suite, Summary, Workload
from suites.contenders import (
    MODES,
    call,
    compiled,
    compiled_name,
    linformer_pytorch_attention,
    self_attention,
    sequence_workload,
)
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
from suites.plain import plain_full_attention, plain_linformer_attention
from torch_linformer.choices import FixedProjection, Sharing
from torch_linformer.measuring.machine import package_versions
from torch_linformer.nn.attention import FullAttention, LinformerAttention
from torch_linformer.nn.options import AttentionConfig

OURS = "torch-linformer"
SDPA = f"full attention, SDPA (torch {torch.__version__})"
EAGER = f"full attention, eager (torch {torch.__version__})"

# Slots chosen by the input, by one P a layer and by one a head.
DYNAMIC: dict[str, dict[str, Any]] = {
    f"{OURS}, dynamic, sharing kv": {"projection": "dynamic", "sharing": "kv"},
    f"{OURS}, dynamic, sharing kv_per_head": {"projection": "dynamic", "sharing": "kv_per_head"},
}

_BUCKET = 64  # reformer-pytorch's own choice


def ours() -> list[Contender]:
    """Our attention with default options, the other ways of sharing that one attention has, and the other maps."""
    options: dict[str, dict[str, Any]] = {OURS: {}}
    for sharing in get_args(Sharing):
        if sharing not in (AttentionConfig.sharing, "layerwise"):
            options[f"{OURS}, sharing {sharing}"] = {"sharing": sharing}
    for projection in get_args(FixedProjection):
        if projection != AttentionConfig.projection:
            options[f"{OURS}, {projection}"] = {"projection": projection}
    options |= DYNAMIC
    return [Contender(name=name, build=partial(build_ours, **chosen)) for name, chosen in options.items()]


def full_attention() -> list[Contender]:
    """Ordinary attention with the same parameters: torch's fused kernel, and the formula step by step."""
    return [
        Contender(name=SDPA, build=build_full, has_slots=False),
        Contender(name=EAGER, build=partial(build_full, eager=True), has_slots=False),
    ]


def peers() -> list[Contender]:
    """The packages that are installed, named with their versions."""
    return [
        Contender(
            name=f"{name} {version}", build=partial(_build, make=PEERS[name]), has_slots=name != "reformer-pytorch"
        )
        for name, version in package_versions(PEERS).items()
    ]


def build_ours(case: Case, **options: Any) -> Workload:
    """Our attention for a case."""
    module = LinformerAttention(case.width, case.heads, max_len=case.length, k=case.k, **options)
    return sequence_workload(module, case, self_attention, plain_linformer_attention)


def build_full(case: Case, eager: bool = False, causal: bool = False) -> Workload:
    """Ordinary attention for a case."""
    run = partial(self_attention, need_weights=eager, average_attn_weights=False)
    return sequence_workload(FullAttention(case.width, case.heads, causal=causal), case, run, plain_full_attention)


def _build(case: Case, make: Callable[[Case], nn.Module]) -> Workload:
    return sequence_workload(make(case), case, call)


def _linformer(case: Case) -> nn.Module:
    from linformer import LinformerSelfAttention

    attention: nn.Module = LinformerSelfAttention(case.width, case.length, k=case.k, heads=case.heads)
    return attention


def _nystrom(case: Case) -> nn.Module:
    from nystrom_attention import NystromAttention

    if case.dtype != "float32":
        raise ValueError(f"nystrom-attention multiplies by a float32 identity: it cannot compute in {case.dtype}")
    head_dim = case.width // case.heads
    attention: nn.Module = NystromAttention(case.width, dim_head=head_dim, heads=case.heads, num_landmarks=case.k)
    return attention


def _performer(case: Case) -> nn.Module:
    from performer_pytorch import SelfAttention

    head_dim = case.width // case.heads
    attention: nn.Module = SelfAttention(case.width, heads=case.heads, dim_head=head_dim, nb_features=case.k)
    return attention


def _reformer(case: Case) -> nn.Module:
    from reformer_pytorch import LSHSelfAttention

    if case.length % (2 * _BUCKET):
        raise ValueError(f"reformer-pytorch takes multiples of {2 * _BUCKET} tokens, got {case.length}")
    attention: nn.Module = LSHSelfAttention(case.width, heads=case.heads, bucket_size=_BUCKET)
    return attention


# By their names on PyPI.
PEERS: dict[str, Callable[[Case], nn.Module]] = {
    "linformer": _linformer,
    "linformer-pytorch": linformer_pytorch_attention,
    "nystrom-attention": _nystrom,
    "performer-pytorch": _performer,
    "reformer-pytorch": _reformer,
}


WIDTH, HEADS = 768, 12
LENGTHS, KS = (1024, 4096, 16384), (128, 256)
QUICK_LENGTHS, QUICK_KS = (512, 2048), (128,)
STEPS: tuple[StepKind, ...] = ("forward", "training")

COMPILED = [compiled_name(name, way) for name in (OURS, SDPA) for way in MODES]

_TEXT = "Each value is followed by its ratio to the first row's: 2× is twice as much."


class AttentionSuite(Suite):
    """Forward and training of one attention over lengths and K."""

    name = "attention"
    title = "One attention"
    packages = tuple(PEERS)
    several_batches = True

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        ks = grid.ks or (QUICK_KS if grid.quick else KS)
        cases = [case for step in STEPS for case in grid_cases(grid, lengths, ks, step=step, width=WIDTH, heads=HEADS)]
        return [machine_case(grid), *require_cases(cases, lengths, ks)]

    def contenders(self) -> list[Contender]:
        mine, full = ours(), full_attention()
        return [
            *machine_contenders(),
            *mine,
            *compiled(mine[0]),
            *full,
            *compiled(full[0]),
            *peers(),
        ]

    def takes_part(self, contender: Contender, case: Case) -> bool:
        if measures_the_machine(contender) or not case.heads:
            return measures_the_machine(contender) and not case.heads
        return super().takes_part(contender, case)

    def reason_to_skip(self, contender: Contender, case: Case) -> str | None:
        if contender.name.startswith((SDPA, EAGER)):
            return beyond_full_attention(case, eager=contender.name == EAGER)
        return None

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        results, ours = Measurements([row for row in rows if row.case.heads]), OURS
        others = [name for name in results.contenders if not name.startswith(ours)]
        sections, figures = compare_lengths(
            results,
            ours=ours,
            rival=SDPA,
            text=_TEXT,
            title="One attention",
            file="attention",
            names=[ours, *DYNAMIC, *COMPILED[: len(MODES)], *others],
        )
        found = shares(rows, [ours, SDPA, *COMPILED])
        if found:
            sections.append(shares_section(found))
        rivals = [name for name in others if name.startswith("linformer ") or name == SDPA]
        return Summary(
            headlines=[*ratio_headlines(results, ours, rivals), *share_headline(found, ours)],
            sections=sections,
            figures=figures,
            derived={"ratios": ratio_records(results, ours), "share_of_least_time": shares_records(found)},
        )

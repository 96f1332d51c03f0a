"""The least time of a step on this machine: its least work at the rates that were measured in the same run."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from runner.suite import Case, Contender, Grid, Measurement, Workload
from suites.contenders import call, sequence_workload
from torch_linformer.measuring.costs import (
    Cost,
    LayerSizes,
    feedforward_cost,
    full_attention_cost,
    linformer_attention_cost,
)
from torch_linformer.reporting.report import Headline, Section
from torch_linformer.reporting.tables import format_count, format_duration, format_percent

MATRIX_PRODUCT = f"matrix product (torch {torch.__version__})"
MEMORY_COPY = f"copy in memory (torch {torch.__version__})"
COPIED = 8  # times the elements of the matrix product's input: more than the caches of a GPU hold
MATRIX, QUICK_MATRIX = 4096, 2048

_TEXT = (
    "The least time is the larger of two: the multiplications of the matrix products at the rate of the large product "
    "(in training three times those of the forward step), and the bytes of input, output and weights (in training also "
    "of their gradients) at the rate of the copy, both measured in this run. Softmax and norms are not counted, and "
    "nothing in between is written. More than 100 % means a higher rate than that of the large product."
)


class Share(NamedTuple):
    """A row's least time in seconds, what bounds it, and its share in the time that was measured."""

    contender: str
    case: Case
    seconds: float
    bound: str
    share: float


def machine_contenders() -> list[Contender]:
    """What measures the machine."""
    return [matrix_product(), memory_copy()]


def machine_case(grid: Grid) -> Case:
    """Theirs: square matrices, and no heads."""
    side = QUICK_MATRIX if grid.quick else MATRIX
    return Case(step="forward", length=side, k=0, batch=1, width=side, heads=0, device=grid.device, dtype=grid.dtype)


def measures_the_machine(contender: Contender) -> bool:
    """Whether it takes part in :func:`machine_case` and in nothing else."""
    return contender.name in (MATRIX_PRODUCT, MEMORY_COPY)


def shares(rows: Sequence[Measurement], names: Sequence[str]) -> list[Share]:
    """Those of the named contenders; none where the machine's rates are not known."""
    timed = {row.contender: row for row in rows if row.seconds}
    if not {MATRIX_PRODUCT, MEMORY_COPY} <= timed.keys():
        return []
    product, copy = timed[MATRIX_PRODUCT], timed[MEMORY_COPY]
    found = []
    for row in rows:
        if row.contender in names and row.seconds and product.seconds and copy.seconds:
            work = least_work(row.case, layers=max(1, row.case.layers), training=row.case.step == "training")
            of_product = product.case.length * product.case.width**2
            times = {
                "multiplications": work.multiplications / of_product * product.seconds,
                "memory": work.bytes / copied_bytes(copy.case) * copy.seconds,
            }
            bound = max(times, key=lambda name: times[name])
            found.append(Share(row.contender, row.case, times[bound], bound, times[bound] / row.seconds))
    return found


def shares_section(found: Sequence[Share]) -> Section:
    """A row for each of them."""
    rows = [
        [
            share.contender,
            share.case.step,
            *(format_count(size) if size else None for size in (share.case.length, share.case.k, share.case.batch)),
            format_duration(share.seconds),
            share.bound,
            format_percent(share.share),
        ]
        for share in found
    ]
    columns = ["", "step", "N", "K", "B", "least time", "bound by", "share"]
    return Section(heading="Share of the least time", text=_TEXT, columns=columns, rows=rows)


def shares_records(found: Sequence[Share]) -> list[dict[str, object]]:
    """The same for ``results.json``."""
    return [
        {
            "contender": share.contender,
            **{name: getattr(share.case, name) for name in ("step", "length", "k", "batch")},
            "least_time": share.seconds,
            "bound": share.bound,
            "share": share.share,
        }
        for share in found
    ]


def share_headline(found: Sequence[Share], name: str) -> list[Headline]:
    """The forward step of one contender with the most tokens a call."""
    of_name = [share for share in found if (share.contender, share.case.step) == (name, "forward")]
    if not of_name:
        return []
    best = max(of_name, key=lambda share: (share.case.batch * share.case.length, share.case.k))
    sizes = {"N": best.case.length, "K": best.case.k, "B": best.case.batch}
    note = ", ".join(["forward", *(f"{letter} = {format_count(size)}" for letter, size in sizes.items())])
    return [Headline(name=f"of the least time, {name}", value=format_percent(best.share), note=f"{note}; {best.bound}")]


def matrix_product() -> Contender:
    """No attention: the product of two matrices, the best rate that the machine reaches."""

    def build(case: Case) -> Workload:
        return sequence_workload(nn.Linear(case.width, case.width, bias=False), case, call)

    return Contender(name=MATRIX_PRODUCT, build=build, has_slots=False)


def memory_copy() -> Contender:
    """No attention: a copy of ``COPIED`` matrices, the best rate at which memory is read and written."""

    def build(case: Case) -> Workload:
        source = torch.ones(COPIED, case.length, case.width, device=case.device, dtype=case.torch_dtype)
        copy = torch.empty_like(source).copy_
        return Workload(module=nn.Identity(), inputs=(source,), run=copy, output_shape=tuple(source.shape))

    return Contender(name=MEMORY_COPY, build=build, has_slots=False)


def copied_bytes(case: Case) -> int:
    """Bytes that the copy reads and writes."""
    return 2 * COPIED * case.length * case.width * case.torch_dtype.itemsize


def least_work(sizes: LayerSizes, layers: int = 1, training: bool = False) -> Cost:
    """What no implementation of these layers can do without; ordinary attention where ``k`` is 0.

    Multiplications are those of the matrix products, with one E and one F a layer in the cheaper order; a training step
    takes three times as many. Bytes are those of input, output and weight matrices, read or written once; a training
    step moves their gradients too.
    """
    n, c, k = sizes.length, sizes.width, sizes.k
    attention = linformer_attention_cost(sizes) if k else full_attention_cost(sizes)
    products = layers * (attention.multiplications + feedforward_cost(sizes).multiplications)
    weights = layers * (4 * c**2 + 2 * n * k + 2 * c * sizes.feedforward)
    moved = (2 * sizes.batch * n * c + weights) * sizes.torch_dtype.itemsize
    return Cost(multiplications=(3 if training else 1) * products, bytes=(2 if training else 1) * moved)

"""Compare speed and memory with full attention and other packages: one suite, from its first case to its report.

    make bench SUITE=attention ARGS="--quick"
    python benchmarks/run.py table3 --output runs/table3      # the paper's Table 3 and Figure 2

Peak memory is that of one step in a fresh process; times are those of contenders that take turns in one process.
"""

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch
import typer

from runner.benchmark import run_benchmark
from runner.results import Settings
from runner.suite import Grid
from suites import SUITES
from torch_linformer.cli.explaining import explain
from torch_linformer.cli.options import positive_numbers
from torch_linformer.cli.resumable import saying_how_to_go_on
from torch_linformer.opening.devices import require_compiler, resolve_device, why_not_compile

DTYPES = ("float32", "bfloat16", "float16")


def bench(
    suite: Annotated[str, typer.Argument(metavar="SUITE", help=" | ".join(SUITES))],
    device: Annotated[str, typer.Option(help="auto | cpu | cuda")] = "auto",
    dtype: Annotated[
        str, typer.Option(help=f"{' | '.join(DTYPES)}  [float32; gpu: bfloat16]", show_default=False)
    ] = "",
    lengths: Annotated[str, typer.Option(help="sequence lengths N, such as 512,1024  [depends on the suite]")] = "",
    k: Annotated[str, typer.Option(help="numbers of slots K, such as 128,256  [depends on the suite]")] = "",
    batch: Annotated[str, typer.Option(help="batch sizes B, such as 1,16  [1; gpu: depends on the suite]")] = "",
    only: Annotated[
        str, typer.Option(help="contenders whose names begin with one of these, semicolon between  [everyone]")
    ] = "",
    compiled: Annotated[
        bool | None,
        typer.Option("--compile/--no-compile", help="also measure torch.compile and CUDA graphs  [on a GPU]"),
    ] = None,
    minutes: Annotated[
        float | None,
        typer.Option(min=0, help="skip measurements that would end after N minutes  [gpu: 9]", show_default=False),
    ] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="timed repetitions  [7; 3 with --quick]")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads  [chosen by torch; context: 1 per process]")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="output folder  [runs/bench-SUITE]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="a small version: two minutes on two cores")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="resume an interrupted benchmark")] = False,
) -> None:
    """Measure a suite; rows, tables, figures and a page go into the output folder."""
    try:
        chosen = SUITES[_one_of("SUITE", suite, SUITES)]
        device = resolve_device(device, among=("cuda", "cpu"))
        grid = Grid(
            lengths=positive_numbers("--lengths", lengths),
            ks=positive_numbers("--k", k),
            batches=positive_numbers("--batch", batch, "1,16"),
            only=[name.strip() for name in only.split(";") if name.strip()],
            device=device,
            dtype=_one_of("--dtype", dtype or chosen.dtype, DTYPES),
            compile=_compiles(compiled, device),
            quick=quick,
        )
        threads = threads or chosen.threads or torch.get_num_threads()
        settings = Settings(grid=grid, repeat=repeat or (3 if quick else 7), threads=threads)
        folder = output or Path("runs") / f"bench-{suite}"
        limit = chosen.minutes if minutes is None else minutes
        with saying_how_to_go_on(resume, start=f"python {shlex.quote(sys.argv[0])}") as command:
            run_benchmark(chosen, settings, folder, resume=resume, minutes=limit, command=command)
    except (ValueError, OSError) as error:
        print(f"benchmarks: {explain(error)}", file=sys.stderr)
        raise SystemExit(2) from None


def _compiles(wanted: bool | None, device: str) -> bool:
    """Whether compiled contenders take part: as asked, else on a GPU where they can."""
    if wanted:
        require_compiler(device)
    if wanted is not None or device != "cuda":
        return bool(wanted)
    reason = why_not_compile(device)
    if reason is not None:
        typer.echo(f"without compiled contenders: {reason}")
    return reason is None


def _one_of(name: str, value: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
    return value


if __name__ == "__main__":
    typer.run(bench)

"""``linformer bench``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import Debug, positive_numbers
from torch_linformer.cli.resumable import saying_how_to_go_on


def bench(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="attention | encoder | table3 | scaling | causal | context")
    ],
    device: Annotated[str, typer.Option(help="auto | cpu | cuda")] = "auto",
    dtype: Annotated[str, typer.Option(help="float32 | bfloat16 | float16")] = "float32",
    lengths: Annotated[str, typer.Option(help="tokens N, such as 512,1024  [the suite's]")] = "",
    k: Annotated[str, typer.Option(help="slots K, such as 128,256  [the suite's]")] = "",
    batch: Annotated[int, typer.Option(min=1, help="rows B")] = 1,
    repeat: Annotated[int | None, typer.Option(min=1, help="timed rounds  [7; 3 with --quick]")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="CPU threads  [torch's choice; context: 1 a process]")
    ] = None,
    output: Annotated[Path | None, typer.Option(help="folder to fill  [runs/bench-SUITE]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="two minutes on two cores")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="go on with an interrupted benchmark")] = False,
    debug: Debug = False,
) -> None:
    """Measure speed and memory beside full attention and other packages.

    Peak memory is that of one step in a fresh process; times are those of contenders that take turns in one process.
    """
    import torch

    from torch_linformer.bench.benchmark import run_benchmark
    from torch_linformer.bench.results import Settings
    from torch_linformer.bench.suite import Grid
    from torch_linformer.bench.suites import SUITES
    from torch_linformer.opening.devices import resolve_device

    _check_choice("SUITE", suite, tuple(SUITES))
    _check_choice("--dtype", dtype, ("float32", "bfloat16", "float16"))
    grid = Grid(
        lengths=positive_numbers("--lengths", lengths),
        ks=positive_numbers("--k", k),
        batch=batch,
        device=resolve_device(device, among=("cuda", "cpu")),
        dtype=dtype,
        quick=quick,
    )
    chosen = SUITES[suite]
    threads = threads or chosen.threads or torch.get_num_threads()
    settings = Settings(grid=grid, repeat=repeat or (3 if quick else 7), threads=threads)
    folder = output or Path("runs") / f"bench-{suite}"
    with saying_how_to_go_on(resume) as command:
        run_benchmark(chosen, settings, folder, resume=resume, command=command)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")

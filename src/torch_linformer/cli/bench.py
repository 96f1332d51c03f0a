"""``linformer bench``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import Debug, positive_numbers
from torch_linformer.cli.resumable import saying_how_to_go_on


def bench(
    suite: Annotated[
        str, typer.Argument(metavar="SUITE", help="attention | encoder | table3 | scaling | causal | context | gpu")
    ],
    device: Annotated[str, typer.Option(help="auto | cpu | cuda")] = "auto",
    dtype: Annotated[
        str, typer.Option(help="float32 | bfloat16 | float16  [float32; gpu: bfloat16]", show_default=False)
    ] = "",
    lengths: Annotated[str, typer.Option(help="sequence lengths N, such as 512,1024  [depends on the suite]")] = "",
    k: Annotated[str, typer.Option(help="numbers of slots K, such as 128,256  [depends on the suite]")] = "",
    batch: Annotated[str, typer.Option(help="batch sizes B, such as 1,16  [1; gpu: depends on the suite]")] = "",
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
    debug: Debug = False,
) -> None:
    """Compare speed and memory with full attention and other packages.

    Peak memory is that of one step in a fresh process; times are those of contenders that take turns in one process.
    """
    import torch

    from torch_linformer.bench.benchmark import run_benchmark
    from torch_linformer.bench.results import Settings
    from torch_linformer.bench.suite import Grid
    from torch_linformer.bench.suites import SUITES
    from torch_linformer.opening.devices import resolve_device

    _check_choice("SUITE", suite, tuple(SUITES))
    chosen = SUITES[suite]
    dtype = dtype or chosen.dtype
    _check_choice("--dtype", dtype, ("float32", "bfloat16", "float16"))
    device = resolve_device(device, among=("cuda", "cpu"))
    grid = Grid(
        lengths=positive_numbers("--lengths", lengths),
        ks=positive_numbers("--k", k),
        batches=positive_numbers("--batch", batch, "1,16"),
        device=device,
        dtype=dtype,
        compile=_compiles(compiled, device),
        quick=quick,
    )
    threads = threads or chosen.threads or torch.get_num_threads()
    settings = Settings(grid=grid, repeat=repeat or (3 if quick else 7), threads=threads)
    folder = output or Path("runs") / f"bench-{suite}"
    with saying_how_to_go_on(resume) as command:
        limit = chosen.minutes if minutes is None else minutes
        run_benchmark(chosen, settings, folder, resume=resume, minutes=limit, command=command)


def _compiles(asked: bool | None, device: str) -> bool:
    """Whether compiled contenders take part: as asked, else on a GPU where they can."""
    from torch_linformer.opening.compiling import require_compiler, why_not_compile

    if asked:
        require_compiler(device)
    if asked is not None or device != "cuda":
        return bool(asked)
    reason = why_not_compile(device)
    if reason is not None:
        typer.echo(f"without compiled contenders: {reason}")
    return reason is None


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, got {value!r}")

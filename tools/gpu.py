"""What is run first on a GPU at hand: the tests of the arithmetic and the models there, then the gpu suite.

    make gpu
    python tools/gpu.py --minutes 9 --output benchmarks/results/h100-2026-11-28

The folder holds `tests.txt` (what pytest printed), `bench/` (rows, tables and figures of the suite) and `session.json`
(seconds and exit status of both). Half of the minutes are the tests'; they are stopped then, and their last line says
how far they came. Status 1 where a test failed, or the suite.
"""

import signal
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import torch
import typer

from torch_linformer.measuring.machine import machine_and_versions
from torch_linformer.reporting.files import write_json

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/functional", "tests/nn", "tests/models", "tests/fuzz")
SHARE_OF_TESTS = 0.5
TO_STOP = 20.0  # seconds that pytest may take to say what it has done, once it was stopped


def main(
    minutes: Annotated[float, typer.Option(min=0.5, help="for all of it")] = 9,
    output: Annotated[Path | None, typer.Option(help="new folder  [benchmarks/results/gpu-DATE]")] = None,
    device: Annotated[str, typer.Option(help="cuda; cpu tries the commands on a machine without a GPU")] = "cuda",
    quick: Annotated[bool, typer.Option("--quick", help="the suite's own small version, and a few tests")] = False,
) -> None:
    """Test and measure on a GPU, into one folder of results."""
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("gpu: torch sees no CUDA device here; --device cpu --quick only tries the commands")
    folder = output or ROOT / "benchmarks" / "results" / f"gpu-{datetime.now(UTC):%Y-%m-%d}"
    if folder.exists():
        raise SystemExit(f"gpu: {folder} exists; name another --output")
    folder.mkdir(parents=True)
    ends = time.monotonic() + 60 * minutes
    wanted = (*TESTS, *(("-k", "padding and shape") if quick else ()))
    tests = [
        sys.executable,
        "-m",
        "pytest",
        f"--device={device}",
        "-q",
        "--numprocesses=auto",
        "--maxprocesses=4",
        *wanted,
    ]
    steps = {"tests": _run(tests, folder / "tests.txt", 60 * minutes * SHARE_OF_TESTS)}
    left = max(0.0, (ends - time.monotonic()) / 60)
    suite = [sys.executable, "benchmarks/run.py", "gpu", f"--device={device}", f"--minutes={left:.2f}"]
    suite += [f"--output={(folder / 'bench').resolve()}", *(["--quick", "--no-compile"] if quick else [])]
    steps["bench"] = _run(suite, folder / "bench.txt", 60 * left + TO_STOP)
    write_json(folder / "session.json", {"machine": machine_and_versions(device), **steps})
    for step, told in steps.items():
        print(f"{step}: {told['last line']} ({told['seconds']:.0f} s, status {told['status']})")
    print(f"results are in {folder}")
    raise SystemExit(any(told["status"] not in (0, "stopped") for told in steps.values()))


def _run(command: list[str], log: Path, seconds: float) -> dict[str, object]:
    """Run a command, stopped as by Ctrl-C after so many seconds; what it printed goes into a file."""
    start = time.monotonic()
    with log.open("w", encoding="utf-8") as file:
        process = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
        status: int | str
        try:
            status = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGINT)
            status = "stopped"
            try:
                process.wait(timeout=TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    lines = log.read_text(encoding="utf-8").strip().splitlines() or ["nothing was printed"]
    return {"command": command[1:], "seconds": time.monotonic() - start, "status": status, "last line": lines[-1]}


if __name__ == "__main__":
    typer.run(main)

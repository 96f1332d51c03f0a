"""Is this source tree as fast as another one? Attention of four kinds, forward and training, in turn in both.

    python benchmarks/before_after.py path/to/other/src --rounds 9

Two processes, one for each tree, take turns call by call, so that a busy machine disturbs both alike. A row is the
median of its ratios, new over other, and the median time of the new one.
"""

import itertools
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

HERE = Path(__file__).resolve()
WIDTH, HEADS, K = 384, 6, 128
KINDS: dict[str, dict[str, Any]] = {
    "headwise": {},
    "means and a window": {"projection": "mean", "window": 64},
    "dynamic per head and a window": {
        "projection": "dynamic",
        "sharing": "kv_per_head",
        "window": 64,
        "slot_mass": "learned",
        "exact_first": 1,
        "exact_last": 1,
    },
    "causal": {"causal": True, "window": 64},
}


def serve() -> None:
    """Time what standard input asks for, a JSON line each, with the package that this process imports."""
    import torch

    from torch_linformer.nn import LinformerAttention

    modules: dict[tuple[str, int], Any] = {}
    for line in sys.stdin:
        kind, length, precision, training, calls = json.loads(line)
        if (kind, length) not in modules:
            torch.manual_seed(0)
            module = LinformerAttention(WIDTH, HEADS, length, K, **KINDS[kind])
            modules[kind, length] = module, torch.randn(max(1, 4096 // length), length, WIDTH)
        module, x = modules[kind, length]
        begin = time.perf_counter()
        for _ in range(calls):
            with torch.set_grad_enabled(training), torch.autocast("cpu", enabled=precision == "bfloat16"):
                output = module(x.requires_grad_(training))[0]
            if training:
                output.sum().backward()
        print(json.dumps((time.perf_counter() - begin) / calls), flush=True)


def main(
    other: Annotated[str, typer.Argument(help="src folder of the tree to compare with")],
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    lengths: Annotated[str, typer.Option(help="tokens")] = "512,4096,16384",
    precisions: Annotated[str, typer.Option(help="float32, or bfloat16 by autocast")] = "float32,bfloat16",
) -> None:
    """Compare two source trees."""
    trees = [str(HERE.parents[1] / "src"), other]
    workers = [
        subprocess.Popen(
            [sys.executable, str(HERE), "--serve"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": tree},
        )
        for tree in trees
    ]

    def seconds(worker: "subprocess.Popen[str]", *case: Any) -> float:
        assert worker.stdin is not None and worker.stdout is not None
        print(json.dumps(case), file=worker.stdin, flush=True)
        return float(json.loads(worker.stdout.readline()))

    print("| attention | tokens | dtype | | new over other | least, largest | new, ms |\n|---|---|---|---|---|---|---|")
    for kind, length, precision, training in itertools.product(
        KINDS, map(int, lengths.split(",")), precisions.split(","), (False, True)
    ):
        ratios, times = [], []
        for turn in range(rounds + 1):
            pair = workers if turn % 2 else workers[::-1]
            seconds_of = {id(worker): seconds(worker, kind, length, precision, training, 3) for worker in pair}
            new, before = (seconds_of[id(worker)] for worker in workers)
            if turn:  # the first one warms up
                ratios.append(new / before)
                times.append(new)
        row = f"| {kind} | {length:,} | {precision} | {'training' if training else 'forward'} "
        row += f"| {statistics.median(ratios):.3f} | {min(ratios):.2f}, {max(ratios):.2f} "
        print(row + f"| {1e3 * statistics.median(times):.1f} |", flush=True)
    for worker in workers:
        worker.terminate()


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else typer.run(main)

"""Time, memory and bytes of one training step over a sequence that several processes share.

    python benchmarks/context_parallel.py --lengths 65536,262144 --ranks 1,2,4

An encoder of 2 layers (width 256, 4 heads, K 256, a window of 64), one row, float32, one thread a process, gloo on this
machine's CPU: the median of --repeat steps, forward and backward, after one that is not counted. Memory is the most
that one process holds beyond what it held before the step. Bytes are what one process gives to the others in a step;
beside them those of ring attention, which hands keys and values of all positions round: 2 · 2 · N · C · (R − 1) / R
numbers a layer forward and backward, counted on paper.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist

from torch_linformer.distributed import SequencePiece
from torch_linformer.nn import LinformerEncoder

WIDTH, HEADS, LAYERS, K, WINDOW = 256, 4, 2, 256, 64
KINDS = {
    "means": {"projection": "mean", "window": WINDOW},
    "learned E and F": {"projection": "linear", "window": WINDOW},
    "chosen by the input": {"projection": "dynamic", "sharing": "kv_per_head", "window": WINDOW},
    "causal": {"causal": True, "window": WINDOW},
}


def resident() -> int:
    """Bytes that this process holds now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def peak() -> int:
    """The most bytes that it has held since it was last asked."""
    most = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    Path("/proc/self/clear_refs").write_text("5")
    return int(most.split()[1]) * 1024


def measure(rank: int, count: int, store: str, kind: str, length: int, repeat: int, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    torch.manual_seed(0)
    encoder = LinformerEncoder(WIDTH, HEADS, LAYERS, 4 * WIDTH, 0.0, max_len=length, k=K, **KINDS[kind])
    before, seconds, sent, most = 0, [], 0, 0
    for step in range(repeat + 1):
        piece = SequencePiece(dist.group.WORLD, 1, length)
        source = torch.randn(1, piece.stop - piece.start, WIDTH)
        before = before or resident()
        peak()
        dist.barrier()
        started = time.perf_counter()
        hidden = encoder(source, src_key_padding_mask=piece, is_causal=kind == "causal")
        hidden.square().mean().backward()
        dist.barrier()
        seconds += [time.perf_counter() - started] if step else []
        sent, most = piece.peers.sent, max(most, peak() - before)
    found = [None] * count
    dist.all_gather_object(found, (sent, most))
    if rank == 0:
        answer = [statistics.median(seconds), max(x for x, _ in found), max(x for _, x in found)]
        Path(file).write_text(json.dumps(answer), encoding="utf-8")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", default="65536,262144", help="tokens of the whole sequence")
    parser.add_argument("--ranks", default="1,2,4", help="processes")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of slots")
    parser.add_argument("--repeat", type=int, default=3, help="steps that are timed")
    given = parser.parse_args()
    print("| slots | tokens | processes | s a step | memory a process, MB | bytes a process, MB | ring attention, MB |")
    print("|---|---|---|---|---|---|---|")
    for kind in given.kinds.split(","):
        for length in map(int, given.lengths.split(",")):
            for count in map(int, given.ranks.split(",")):
                with tempfile.TemporaryDirectory() as folder:
                    options = count, f"{folder}/store", kind, length, given.repeat, f"{folder}/answer"
                    torch.multiprocessing.spawn(measure, options, nprocs=count)
                    seconds, sent, most = json.loads(Path(f"{folder}/answer").read_text())
                ring = LAYERS * 2 * 2 * length * WIDTH * (count - 1) / count * 4
                row = kind, f"{length:,}", count, f"{seconds:.2f}", f"{most / 1e6:,.0f}"
                print("|", *(f"{x} |" for x in (*row, f"{sent / 1e6:.1f}", f"{ring / 1e6:,.0f}")), flush=True)


if __name__ == "__main__":
    main()

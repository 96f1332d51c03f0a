"""Train over two processes: the same command, started by torchrun; here two processes of one CPU, elsewhere two GPUs.

Install: pip install "torch-linformer[train]"
Run: python examples/lessons/two_processes.py
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from shared import source_files

parser = argparse.ArgumentParser()
parser.add_argument("--steps", default="150")
options = parser.parse_args()
folder = Path(tempfile.mkdtemp())
rows = [
    {"text": text, "label": name.split("/")[0]}
    for name, text in source_files("asyncio", "email", "encodings", "idlelib", "unittest")
]
data = folder / "files.jsonl"
data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")

# 1. --batch-size is the whole batch: two processes take half of it each. Without dropout both ways would end with the
# same weights; with it, their random numbers differ, and so do scores by a little.
settings = [
    "--data",
    data,
    "--max-length",
    "512",
    "--patience",
    "0",
    "--max-steps",
    options.steps,
    "--lexical",
    "none",
    "--from",
    "none",
    "--no-baseline",
]
COMMAND = ["-m", "torch_linformer.cli", "train", *settings, "--no-probe", "--batch-size", "8"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def train(name, *started_by, threads):
    """Train, and return the scores; the processes together have as many threads as one has by itself."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    command = [*started_by, *COMMAND, "--output", str(folder / name)]
    print("$ python", *command, flush=True)
    done = subprocess.run([sys.executable, *map(str, command)], env=environment)
    if done.returncode:  # it has said why, in one line
        sys.exit(done.returncode)
    scores = json.loads((folder / name / "metrics.json").read_text())
    print(f"{name}, accuracy on documents held out: {round(scores['accuracy'], 3)}")
    print(f"{name}, tokens of training a second: {round(scores['training_tokens_per_second'])}", flush=True)


train("one process", threads=2)
train("two processes", *TORCHRUN, threads=1)

# 2. One folder, one report, one set of weights, whoever trained it: it opens in any number of processes, and an
# interrupted run of two goes on with --resume in two or in one.
one, two = (json.loads((folder / name / "config.json").read_text()) for name in ("one process", "two processes"))
print("configurations that differ:", int(one != two))

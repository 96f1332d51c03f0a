"""Does a bulk run come out the same however often it is killed and its parts are damaged?

    python tools/soak.py                                     # some minutes
    python tools/soak.py --documents 1000 --kills 2          # a short one; --seed repeats a run

Trains a tiny model, and lets `linformer predict` and `linformer embed` answer made documents, in parts of a second,
without an interruption. Then each runs again: it is killed by `kill -9` at random moments, also while it starts and
while it makes parts anew, and between two starts parts are removed, halved, overwritten with zeros, or changed by a
byte. In the end the rows must be those of the first run, bit for bit. All of it lies in a temporary folder.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from pyarrow import parquet

from torch_linformer.inference.output_parts import MANIFEST
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.reporting.report import markdown_table

# Parts of a second, so that a run of half a minute has many.
START = (
    "from torch_linformer.inference import output_parts; from torch_linformer.cli import main; "
    "output_parts.PART_SECONDS = 1.0; main()"
)
TRAINING = ("--tokenizer", "bytes", "--max-length", "256", "--max-steps", "1", "--no-probe", "--no-baseline")
DAMAGED_AT_THE_END = 3
LETTERS = "etaoinshrdlu"

DAMAGES: dict[str, Callable[[Path], object]] = {
    "removed": lambda part: part.unlink(),
    "halved": lambda part: os.truncate(part, part.stat().st_size // 2),
    "zeroed": lambda part: part.write_bytes(bytes(part.stat().st_size)),
    "a byte changed": lambda part: change_byte(part),
}


@dataclass
class Counts:
    """What happened to a run."""

    kills: int = 0
    damaged: dict[str, int] = field(default_factory=dict)
    made_anew: int = 0


def change_byte(part: Path) -> None:
    """Flip a bit in the middle."""
    content = bytearray(part.read_bytes())
    content[len(content) // 2] ^= 1
    part.write_bytes(content)


def write_documents(path: Path, number: int, draw: random.Random) -> None:
    """JSON lines of made words, of 50 to 2,000 characters."""
    words = ["".join(draw.choices(LETTERS, k=draw.randint(2, 9))) for _ in range(2000)]
    with path.open("w", encoding="utf-8") as file:
        for row in range(number):
            text = " ".join(draw.choices(words, k=draw.randint(9, 350)))
            file.write(json.dumps({"id": f"{row}", "text": text}) + "\n")


def train(folder: Path) -> Path:
    """A tiny classifier: what it predicts is of no interest, and has to stay the same."""
    rows = [{"text": f"{letter} " * (9 + row), "label": letter} for letter in "ab" for row in range(40)]
    (folder / "posts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = [sys.executable, "-m", "torch_linformer.cli", "train", "--data", folder / "posts.jsonl", *TRAINING]
    subprocess.run([*command, "--output", folder / "model"], check=True, stdout=subprocess.DEVNULL)
    return folder / "model"


def rows_of(output: Path) -> object:
    """What the parts of an output hold, in their order: bytes of lines, or a table."""
    parts = [output / part["file"] for part in json.loads((output / MANIFEST).read_text())["parts"]]
    if parts[0].suffix == ".parquet":
        return parquet.read_table(parts)
    return b"".join(part.read_bytes() for part in parts)


class Run:
    """A command that can be started again and again on one output."""

    def __init__(self, arguments: list[str], output: Path) -> None:
        self.command = [sys.executable, "-c", START, *arguments, "--output", str(output), "--resume"]
        self.output = output
        self.counts = Counts()

    def to_the_end(self) -> float:
        """Seconds that it took; it must succeed."""
        start = time.monotonic()
        done = subprocess.run(self.command, stderr=subprocess.PIPE, text=True)
        if done.returncode:
            sys.exit(f"{' '.join(self.command[3:])}\nended with status {done.returncode}: {done.stderr}")
        self.counts.made_anew += done.stderr.count("; it is made anew")
        return time.monotonic() - start

    def killed_after(self, seconds: float) -> None:
        """Start it, and kill it unless it ends before."""
        process = subprocess.Popen(self.command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        try:
            _, said = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            _, said = process.communicate()
            self.counts.kills += 1
        if process.returncode not in (0, -signal.SIGKILL):
            sys.exit(f"{' '.join(self.command[3:])}\nended with status {process.returncode}: {said}")
        self.counts.made_anew += said.count("; it is made anew")

    def damage(self, number: int, draw: random.Random) -> None:
        """Damage so many of its parts, if there are as many."""
        parts = sorted(self.output.glob("part-*"))
        for part in draw.sample(parts, min(number, len(parts))):
            name = draw.choice(list(DAMAGES))
            DAMAGES[name](part)
            self.counts.damaged[name] = self.counts.damaged.get(name, 0) + 1


def soak(arguments: list[str], folder: Path, kills: int, draw: random.Random) -> list[object]:
    """A row of the table: what happened to a command, and whether its rows are the same."""
    whole, run = Run(arguments, folder / f"{arguments[0]}-whole"), Run(arguments, folder / arguments[0])
    seconds = whole.to_the_end()
    while run.counts.kills < kills:
        run.killed_after(draw.uniform(0, seconds))
        run.damage(draw.randint(0, 2), draw)
    run.to_the_end()
    run.damage(DAMAGED_AT_THE_END, draw)  # of a finished run
    run.to_the_end()
    expected, found = rows_of(whole.output), rows_of(run.output)
    same = found.equals(expected) if hasattr(found, "equals") else found == expected
    damaged = ", ".join(f"{number} {name}" for name, number in sorted(run.counts.damaged.items()))
    parts = len(list(run.output.glob("part-*")))
    verdict = "the same" if same else "NOT THE SAME"
    return [arguments[0], f"{seconds:.0f}", parts, run.counts.kills, damaged, run.counts.made_anew, verdict]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--documents", type=int, default=3_000)
    parser.add_argument("--kills", type=int, default=5, help="of each command")
    parser.add_argument("--workers", type=int, default=1, help="processes that compute")
    parser.add_argument("--precision", default="bf16", help="what depends most on which documents are a batch  [bf16]")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="[another one each time]")
    chosen = parser.parse_args()
    print(f"to repeat this run: --documents {chosen.documents} --kills {chosen.kills} --seed {chosen.seed}", flush=True)
    draw, start = random.Random(chosen.seed), time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        model = train(folder)
        write_documents(folder / "documents.jsonl", chosen.documents, draw)
        options = ["--device", "cpu", "--precision", chosen.precision, "--workers", str(chosen.workers)]
        given = [str(model), str(folder / "documents.jsonl"), *options]
        rows = [soak([command, *given], folder, chosen.kills, draw) for command in ("predict", "embed")]
    facts = machine_facts("cpu")
    took = f"{chosen.documents:,} documents, {time.monotonic() - start:.0f} s in all"
    print(f"{took}, {facts['cores']} cores of {facts['processor']}, Python {facts['Python']}")
    columns = ["command", "seconds without kills", "parts", "kills", "parts damaged", "parts made anew", "rows"]
    print(markdown_table(columns, rows))
    return 0 if all(row[-1] == "the same" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())

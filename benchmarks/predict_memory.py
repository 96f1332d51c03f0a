"""Does the memory of `linformer predict` grow with its input?

    linformer train --tokenizer bytes --max-length 64 --max-steps 1 --no-probe --no-baseline --lexical none \
        --output tiny
    python benchmarks/predict_memory.py tiny --gigabytes 10

Writes made documents as JSON lines, files of 100 MB each, reads them with `linformer predict --output FOLDER`, and at
each tenth of the documents takes down what the process holds and what it has held at most. All of it lies in a
temporary folder, which TMPDIR moves, and goes away at the end. For Linux, which tells these numbers in ``/proc``.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.inference.output_parts import MANIFEST
from torch_linformer.measuring.machine import machine_facts, package_versions
from torch_linformer.reporting.report import markdown_table

FILE_BYTES = 100_000_000
LETTERS = "etaoinshrdlu"


def main(
    model: Annotated[Path, typer.Argument(help="folder of a model that predicts")],
    gigabytes: Annotated[float, typer.Option(min=0.0001, help="of text")] = 10.0,
    shortest: Annotated[int, typer.Option(min=1, help="characters of a document")] = 2_000,
    longest: Annotated[int, typer.Option(min=1, help="characters of a document")] = 40_000,
) -> None:
    """Measure, and print a table."""
    with tempfile.TemporaryDirectory() as folder:
        archive, labels = Path(folder, "archive"), Path(folder, "labels")
        documents = write_documents(archive, int(gigabytes * 1e9), shortest, longest)
        print(f"{documents:,} documents of {shortest:,} to {longest:,} characters", flush=True)
        command = [sys.executable, "-m", "torch_linformer.cli", "predict", str(model), str(archive)]
        process = subprocess.Popen([*command, "--output", str(labels), "--device", "cpu"], stderr=subprocess.DEVNULL)
        rows = watched(process, labels, documents, gigabytes)
    facts = machine_facts("cpu") | package_versions(["torch", "transformers", "tokenizers"])
    print("\n".join(f"{name}: {value}" for name, value in facts.items()))
    print(markdown_table(["GB read", "documents", "minutes", "holds, MB", "held at most, MB"], rows))


def write_documents(folder: Path, total: int, shortest: int, longest: int) -> int:
    """Files of JSON lines with about so many bytes together; returns how many documents they have."""
    draw = random.Random(0)
    words = ["".join(draw.choices(LETTERS, k=draw.randint(2, 9))) for _ in range(20_000)]
    pool = " ".join(draw.choices(words, k=1_000_000))  # a document is a piece of it
    folder.mkdir()
    documents = written = 0
    while written < total:
        with (folder / f"{written // FILE_BYTES:05d}.jsonl").open("a", encoding="utf-8") as file:
            end = min(total, (written // FILE_BYTES + 1) * FILE_BYTES)
            while written < end:
                length = draw.randint(shortest, longest)
                begin = draw.randrange(len(pool) - length)
                written += file.write(json.dumps({"text": pool[begin : begin + length]}) + "\n")
                documents += 1
    return documents


def watched(process: "subprocess.Popen[bytes]", labels: Path, documents: int, gigabytes: float) -> list[list[str]]:
    """A row for each tenth of the documents that has its answers, as it gets them."""
    rows: list[list[str]] = []
    tenths, begin = 0, time.monotonic()
    while process.poll() is None:
        held = {name: _megabytes(process.pid, name) for name in ("VmRSS", "VmHWM")}
        done = _answered(labels / MANIFEST)
        if all(held.values()) and 10 * done // documents > tenths:
            tenths = 10 * done // documents
            row = [f"{gigabytes * done / documents:.2f}", f"{done:,}", f"{(time.monotonic() - begin) / 60:.1f}"]
            rows.append(row + [f"{number:,.0f}" for number in held.values()])
            print(*rows[-1], flush=True)
        time.sleep(0.2)
    if process.returncode:
        raise SystemExit(f"linformer predict ended with {process.returncode}")
    return rows


def _answered(manifest: Path) -> int:
    """How many documents have their answers in parts."""
    return sum(part["documents"] for part in json.loads(manifest.read_text())["parts"]) if manifest.exists() else 0


def _megabytes(process: int, name: str) -> float:
    """A number of its memory, in a million bytes; 0 once it has ended."""
    if not os.path.exists(f"/proc/{process}/status"):
        return 0
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name)), 0)


if __name__ == "__main__":
    typer.run(main)

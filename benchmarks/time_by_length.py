"""The time of one document by its length: MiniLM made linear, with full attention, and on chunks of 256 tokens.

    python benchmarks/time_by_length.py --output benchmarks/results/time-by-length

The three take turns. With full attention it is the same model, whose learned positions are repeated beyond 512.
"""

import time
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from transformers import AutoModel

from runner.lines import Line, LogLogChart
from runner.results import git_commit
from torch_linformer import encoder_folder, linearize
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.reporting.files import write_bytes, write_json
from torch_linformer.reporting.tables import format_duration

CHUNK, AT_ONCE = 256, 32
OURS, CHUNKS, FULL = "linear attention, K = 256, one vector", "chunks of 256 tokens, many vectors", "full attention"


def seconds_of(model: Any, rows: torch.Tensor) -> float:
    """The time of a forward pass of some rows, a batch after the other."""
    begin = time.perf_counter()
    with torch.inference_mode():
        for batch in rows.split(AT_ONCE):
            model(batch)
    return time.perf_counter() - begin


def main(
    output: Annotated[Path, typer.Option(help="folder for results.json and time_by_length.png")],
    lengths: Annotated[str, typer.Option(help="tokens, comma-separated")] = "512,1024,2048,4096,8192",
    passes: Annotated[int, typer.Option(min=1, help="of each; the fastest counts")] = 1,
) -> None:
    """Time them, and draw the picture."""
    sizes = [int(length) for length in lengths.split(",")]
    longest = 2 * max(sizes)
    original = AutoModel.from_pretrained(encoder_folder("minilm")).eval()
    models = {
        OURS: linearize(original, k=256, max_length=longest),
        CHUNKS: original,
        FULL: linearize(original, max_length=longest, exact_below=max(sizes)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for length in sizes:
        ids = torch.randint(1000, original.config.vocab_size, (1, length))
        rows = {OURS: ids, CHUNKS: ids.view(-1, CHUNK), FULL: ids}
        if length == sizes[0]:  # the first pass of each prepares
            for name, model in models.items():
                seconds_of(model, rows[name])
        taken = [{name: seconds_of(model, rows[name]) for name, model in models.items()} for _ in range(passes)]
        for name in models:
            seconds[name].append(min(each[name] for each in taken))
            print(f"{length:,} tokens, {name}: {seconds[name][-1]:.2f} s", flush=True)
    output.mkdir(parents=True, exist_ok=True)
    facts = {"machine": machine_facts("cpu"), "threads": torch.get_num_threads(), "commit": git_commit(__file__)}
    write_json(output / "results.json", {"lengths": sizes, "seconds": seconds, "passes": passes, **facts})
    draw(output, sizes, seconds)


def draw(folder: Path, sizes: list[int], seconds: dict[str, list[float]]) -> None:
    """The picture, on two logarithmic axes."""
    chart = LogLogChart(
        title=f"Time of one document, all-MiniLM-L6-v2, CPU threads: {torch.get_num_threads()}",
        x_label="tokens of the document",
        y_label="time",
        y_format=format_duration,
        lines=[
            Line(name=name, points=list(zip(sizes, times, strict=True)), thick=name == OURS)
            for name, times in seconds.items()
        ],
    )
    write_bytes(folder / "time_by_length.png", chart.png())


if __name__ == "__main__":
    typer.run(main)

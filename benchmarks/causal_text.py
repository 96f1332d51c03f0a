"""What each part of causal Linformer attention is worth on text: bits per byte, and names said long ago.

    python benchmarks/causal_text.py train --data novels.parquet --variant both --seed 0 --output causal-text
    python benchmarks/causal_text.py report --output causal-text

``train`` learns bytes from scratch with one kind of attention and scores the texts held out, the last five; all kinds
see the same batches. ``report`` puts every result of the folder into one table with its curves.
"""

import json
import math
import re
import time
from pathlib import Path
from statistics import mean
from typing import Annotated

import matplotlib
import numpy as np
import pandas as pd
import torch
import typer
from torch.nn import functional as F

from torch_linformer.models import LinformerConfig, LinformerForCausalLM
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.machine import git_commit, machine_facts
from torch_linformer.reporting.markdown import markdown_table

WINDOW, SLOTS = 64, 32
VARIANTS = {
    "full": {"attention": "full"},
    "window": {"k": 0, "window": WINDOW},
    "slots": {"k": SLOTS},
    "both": {"k": SLOTS, "window": WINDOW},
}
TITLES = {
    "full": "full causal attention",
    "window": f"window of {WINDOW}",
    "slots": f"{SLOTS} slots",
    "both": f"{SLOTS} slots + window of {WINDOW}",
}
HELD_OUT = 5  # texts, the last ones
DISTANCES = (64, 256, 1024, 2048)  # bytes back to where a name was said before
WARM_UP, PEAK_RATE, LAST_RATE = 60, 2e-3, 0.1

app = typer.Typer(add_completion=False)


@app.command()
def train(
    data: Annotated[Path, typer.Option(help="Parquet file with a column text")],
    variant: Annotated[str, typer.Option(help=", ".join(VARIANTS))],
    output: Annotated[Path, typer.Option(help="folder of the results")],
    seed: int = 0,
    steps: int = 2000,
    length: int = 2048,
    batch: int = 4,
    threads: int = 1,
) -> None:
    """Learn from all texts but the last five, score those, and write VARIANT-SEED.json."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    texts = [text.encode() for text in pd.read_parquet(data)["text"]]
    learnt, held_out = (as_bytes(part) for part in (texts[:-HELD_OUT], texts[-HELD_OUT:]))
    model = build(variant, length)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps))
    draws = np.random.default_rng(seed)
    curve, recent, begin = [], [], time.perf_counter()
    for step in range(1, steps + 1):
        starts = draws.integers(0, len(learnt) - length, batch)
        loss = nats(model, rows(learnt, starts, length)).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item() / math.log(2))
        if step % 50 == 0:
            curve.append((step, mean(recent)))
            recent.clear()
            print(
                f"{variant} {seed}: step {step}, {curve[-1][1]:.4f} bits, {time.perf_counter() - begin:.0f} s",
                flush=True,
            )
    seconds = time.perf_counter() - begin
    result = {
        "variant": variant,
        "seed": seed,
        **score(model, held_out, length),
        "curve": curve,
        "seconds": seconds,
        "tokens_per_second": steps * batch * length / seconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": steps,
        "tokens": steps * batch * length,
        "machine": machine_facts("cpu"),
        "commit": git_commit(__file__),
    }
    output.mkdir(parents=True, exist_ok=True)
    write_json(output / f"{variant}-{seed}.json", result)


def build(variant: str, length: int) -> LinformerForCausalLM:
    """A model of two layers, the same for all kinds of attention but for the attention."""
    config = LinformerConfig(
        vocab_size=256,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=length,
        type_vocab_size=0,
        pad_token_id=None,
        initializer_range=0.05,
        position_embedding="rotary",
        norm_first=True,
        embedding_norm=False,
        lm_head_transform=False,
        causal=True,
        **VARIANTS[variant],
    )
    return LinformerForCausalLM(config)


def as_bytes(texts: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"\n\n".join(texts), dtype=np.uint8)


def rows(text: np.ndarray, starts: np.ndarray, length: int) -> torch.Tensor:
    """``(B, length)`` bytes from each start."""
    return torch.from_numpy(np.stack([text[start : start + length] for start in starts]).astype(np.int64))


def rate(step: int, steps: int) -> float:
    """Share of the peak rate: a short rise, then a half cosine down to a tenth."""
    fall = LAST_RATE + (1 - LAST_RATE) * (1 + math.cos(math.pi * min(1, step / steps))) / 2
    return min(1, (step + 1) / WARM_UP) * fall


def nats(model: LinformerForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Loss of every byte but the first, ``(B, N - 1)``."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none").view(
        len(ids), -1
    )


@torch.inference_mode()
def score(model: LinformerForCausalLM, text: np.ndarray, length: int, most: int = 800) -> dict:
    """Bits per byte of rows spread over the text, by how much was read before, and of names by when they were said."""
    model.eval()
    starts = np.linspace(0, len(text) - length, most).astype(np.int64)
    bits = np.concatenate(
        [nats(model, rows(text, starts[begin : begin + 8], length)).numpy() for begin in range(0, most, 8)]
    ) / math.log(2)
    common = common_words(text)
    names: dict[str, list[float]] = {}
    for row, start in enumerate(starts):
        for group, first, last in said_before(text[start : start + length].tobytes(), common):
            names.setdefault(group, []).extend(bits[row, first:last].tolist())
    return {
        "bits_per_byte": float(bits.mean()),
        "by_eighth": [float(part.mean()) for part in np.array_split(bits, 8, axis=1)],
        "names": {group: {"bits": mean(values), "bytes": len(values)} for group, values in sorted(names.items())},
    }


def common_words(text: np.ndarray) -> set[bytes]:
    """Words that are written small somewhere: no names."""
    return set(re.findall(rb"\b[a-z]+\b", text.tobytes()))


def said_before(row: bytes, common: set[bytes]) -> list[tuple[str, int, int]]:
    """Every name's (group, first, last): which losses are of its bytes behind the second, and when it was said before.

    Two letters say which name it is going to be; the rest can be copied by who remembers it.
    """
    last_said: dict[bytes, int] = {}
    found = []
    for match in re.finditer(rb"\b[A-Z][a-z]{3,}\b", row):
        name, place = match.group(), match.start()
        if name.lower() not in common:
            # The loss at index i is that of byte i + 1.
            found.append((group_of(place - last_said[name] if name in last_said else None), place + 1, match.end() - 1))
            last_said[name] = place
    return found


def group_of(distance: int | None) -> str:
    if distance is None:
        return "not in this row"
    return next(f"up to {limit:,} bytes ago" for limit in DISTANCES if distance <= limit)


@app.command()
def report(output: Annotated[Path, typer.Option(help="folder of the results")]) -> None:
    """Write results.md and curves.png from what ``train`` left in the folder."""
    found = [json.loads(path.read_text()) for path in sorted(output.glob("*-*.json"))]
    runs = {name: [run for run in found if run["variant"] == name] for name in VARIANTS}
    runs = {name: each for name, each in runs.items() if each}
    groups = [f"up to {limit:,} bytes ago" for limit in DISTANCES] + ["not in this row"]
    quality = [
        [
            TITLES[name],
            *(mean(run["bits_per_byte"] for run in each), " / ".join(f"{run['bits_per_byte']:.4f}" for run in each)),
            mean(run["tokens_per_second"] for run in each),
            each[0]["parameters"],
        ]
        for name, each in runs.items()
    ]
    eighths = [
        [TITLES[name], *(mean(run["by_eighth"][part] for run in each) for part in range(8))]
        for name, each in runs.items()
    ]
    names = [
        [TITLES[name], *(mean(run["names"][group]["bits"] for run in each) for group in groups)]
        for name, each in runs.items()
    ]
    seeds = sorted({run["seed"] for run in found})
    parts = [
        "# Causal attention on text",
        f"{found[0]['tokens']:,} bytes, {found[0]['steps']:,} steps, seeds {', '.join(map(str, seeds))}; bits per byte "
        "of five novels held out. Commands: see the head of `benchmarks/causal_text.py`.",
        markdown_table(["attention", "bits per byte", "each seed", "bytes/s", "parameters"], quality),
        "By how much of the row was read before, in eighths of it:",
        markdown_table(["attention", *map(str, range(1, 9))], eighths),
        "Names, behind their second letter, by when they were said before:",
        markdown_table(["attention", *groups], names),
        "![learning curves](curves.png)",
    ]
    write_text(output / "results.md", "\n\n".join(parts) + "\n")
    draw_curves(runs, output / "curves.png")


def draw_curves(runs: dict[str, list[dict]], file: Path) -> None:
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    for number, (name, each) in enumerate(runs.items()):
        for index, run in enumerate(each):
            steps, bits = zip(*run["curve"], strict=True)
            axes.plot(steps, bits, color=f"C{number}", label=TITLES[name] if index == 0 else None, linewidth=1.2)
    axes.set(xlabel="steps", ylabel="bits per byte (training)", ylim=(None, 3.2), title="Causal attention on text")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)


if __name__ == "__main__":
    app()

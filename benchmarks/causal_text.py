"""What each part of causal Linformer attention contributes on text: bits per byte, and names that occurred long ago.

    python benchmarks/causal_text.py train --data novels.parquet --variant both --seed 0 --output causal-text
    python benchmarks/causal_text.py score --data novels.parquet --output causal-text
    python benchmarks/causal_text.py report --output causal-text

``train`` trains a byte model from scratch with one kind of attention and saves it in VARIANT-SEED; all kinds see the
same batches. ``score`` evaluates every model of the folder that has no scores yet on the held-out texts, the last five,
and ``report`` puts all of them into one table with their curves.
"""

import json
import math
import re
from pathlib import Path
from statistics import mean
from typing import Annotated

import matplotlib
import numpy as np
import pandas as pd
import torch
import typer
from torch.nn import functional as F

from learning import learn, one_of
from runner.results import git_commit
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.models import LinformerConfig, LinformerForCausalLM
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.report import markdown_table

LENGTH, WINDOW, SLOTS = 2048, 64, 32
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
DISTANCES = (64, 256, 1024, 2048)  # bytes back to the last occurrence of a name
JOINED = 256  # bytes after a past that may come from another text
WARM_UP, PEAK_RATE, LAST_RATE = 60, 2e-3, 0.1

app = typer.Typer(add_completion=False)


@app.command()
def train(
    data: Annotated[Path, typer.Option(help="Parquet file with a column text")],
    variant: Annotated[str, one_of(VARIANTS)],
    output: Annotated[Path, typer.Option(help="folder of the results")],
    seed: int = 0,
    steps: int = 1600,
    batch: int = 4,
    threads: int = 1,
) -> None:
    """Train on all texts but the last five, and write VARIANT-SEED/model and training.json."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    text = as_bytes(read(data)[:-HELD_OUT])
    model = build(variant)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.0)
    draws = np.random.default_rng(seed)

    def loss(step: int) -> torch.Tensor:
        return nats(model, rows(text, draws.integers(0, len(text) - LENGTH, batch))).mean()

    curve, seconds = learn(
        f"{variant} {seed}", model, loss, optimizer, steps, warm_up=WARM_UP, last_rate=LAST_RATE, unit="bits"
    )
    result = {
        "variant": variant,
        "seed": seed,
        "curve": curve,
        "seconds": seconds,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": steps,
        "tokens": steps * batch * LENGTH,
        "machine": machine_facts("cpu"),
        "commit": git_commit(__file__),
    }
    folder = output / f"{variant}-{seed}"
    model.save_pretrained(folder / "model")
    write_json(folder / "training.json", result)


def build(variant: str) -> LinformerForCausalLM:
    """A model of two layers; the variants differ only in the attention."""
    config = LinformerConfig(
        vocab_size=256,
        hidden_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=512,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=LENGTH,
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


def read(data: Path) -> list[bytes]:
    return [text.encode() for text in pd.read_parquet(data)["text"]]


def as_bytes(texts: list[bytes]) -> np.ndarray:
    return np.frombuffer(b"\n\n".join(texts), dtype=np.uint8)


def rows(text: np.ndarray, starts: np.ndarray) -> torch.Tensor:
    """``(B, LENGTH)`` bytes from each start."""
    return torch.from_numpy(np.stack([text[start : start + LENGTH] for start in starts]).astype(np.int64))


def nats(model: LinformerForCausalLM, ids: torch.Tensor) -> torch.Tensor:
    """Loss of every byte but the first, ``(B, N - 1)``."""
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(ids).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1).float(), ids[:, 1:].flatten(), reduction="none").view(
        len(ids), -1
    )


@app.command()
def score(
    data: Annotated[Path, typer.Option(help="the file that the models were trained on")],
    output: Annotated[Path, typer.Option(help="folder of the results")],
    threads: int = 2,
) -> None:
    """Score every model of the folder on the held-out texts, and write VARIANT-SEED/scores.json."""
    torch.set_num_threads(threads)
    held_out = read(data)[-HELD_OUT:]
    for folder in sorted(path.parent for path in output.glob("*/training.json")):
        if not (folder / "scores.json").exists():
            model = LinformerForCausalLM.from_pretrained(folder / "model").eval()
            write_json(folder / "scores.json", {**scores(model, held_out), "past": worth_of_past(model, held_out)})
            print(f"{folder.name} scored", flush=True)


def scores(model: LinformerForCausalLM, texts: list[bytes], count: int = 800) -> dict[str, object]:
    """Bits per byte of rows spread over the texts, by how much was read before; of names by their last occurrence."""
    text = as_bytes(texts)
    starts = spread(len(text), count)
    bits = bits_of(model, rows(text, starts))
    common = common_words(text)
    names: dict[str, list[float]] = {}
    for row, start in enumerate(starts):
        for group, first, last in said_before(text[start : start + LENGTH].tobytes(), common):
            names.setdefault(group, []).extend(bits[row, first:last].tolist())
    return {
        "bits_per_byte": float(bits.mean()),
        "by_eighth": [float(part.mean()) for part in np.array_split(bits, 8, axis=1)],
        "names": {group: {"bits": mean(values), "bytes": len(values)} for group, values in sorted(names.items())},
    }


def worth_of_past(model: LinformerForCausalLM, texts: list[bytes], count: int = 50) -> dict[str, float]:
    """Bits of the last 128 bytes of rows whose first 1,792 come from the same text, or from another one.

    Two layers with a window of 64 reach back 126 bytes, not to where the row was joined; the difference between the two
    is what a model gains from the rest of the past.
    """
    novels = [as_bytes([text]) for text in texts]
    own = [rows(novel, spread(len(novel), count)) for novel in novels]
    past = LENGTH - JOINED
    foreign = [
        torch.cat([other[:, :past], row[:, past:]], dim=1) for row, other in zip(own, own[1:] + own[:1], strict=True)
    ]
    return {
        name: float(bits_of(model, torch.cat(each))[:, -JOINED // 2 :].mean())
        for name, each in (("own", own), ("another", foreign))
    }


@torch.inference_mode()
def bits_of(model: LinformerForCausalLM, ids: torch.Tensor) -> np.ndarray:
    """Bits of every byte but the first, ``(B, N - 1)``."""
    return torch.cat([nats(model, some) for some in ids.split(8)]).numpy() / math.log(2)


def spread(length: int, count: int) -> np.ndarray:
    """The starts of ``count`` rows, spread evenly over a text."""
    return np.linspace(0, length - LENGTH, count).astype(np.int64)


def common_words(text: np.ndarray) -> set[bytes]:
    """Words that occur in lower case somewhere, so they are not names."""
    return set(re.findall(rb"\b[a-z]+\b", text.tobytes()))


def said_before(row: bytes, common: set[bytes]) -> list[tuple[str, int, int]]:
    """Every name's (group, first, last): its last occurrence, and the losses of its bytes after the second.

    Two letters show which name it is; a model that remembers it can copy the rest.
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
    found = [
        json.loads((path / "training.json").read_text()) | json.loads((path / "scores.json").read_text())
        for path in sorted(path.parent for path in output.glob("*/scores.json"))
    ]
    runs = {name: [run for run in found if run["variant"] == name] for name in VARIANTS}
    runs = {name: each for name, each in runs.items() if each}
    groups = [f"up to {limit:,} bytes ago" for limit in DISTANCES] + ["not in this row"]
    quality = [
        [
            TITLES[name],
            *(mean(run["bits_per_byte"] for run in each), " / ".join(f"{run['bits_per_byte']:.4f}" for run in each)),
            each[0]["parameters"],
            " / ".join(f"{run['seconds'] / 60:.0f}" for run in each),
        ]
        for name, each in runs.items()
    ]
    eighths = [
        [TITLES[name], *(mean(run["by_eighth"][part] for run in each) for part in range(8))]
        for name, each in runs.items()
    ]
    pasts = [
        [TITLES[name], own, another, another - own]
        for name, each in runs.items()
        for own, another in [[mean(run["past"][of] for run in each) for of in ("own", "another")]]
    ]
    names = [
        [TITLES[name], *(mean(run["names"][group]["bits"] for run in each) for group in groups)]
        for name, each in runs.items()
    ]
    seeds = sorted({run["seed"] for run in found})
    parts = [
        "# Causal attention on text",
        f"{found[0]['tokens']:,} bytes, {found[0]['steps']:,} steps, seeds {', '.join(map(str, seeds))}; bits per byte "
        "of five novels held out. Minutes are those of one thread on a machine with other work: not a comparison. "
        "Commands: see the head of `benchmarks/causal_text.py`.",
        markdown_table(["attention", "bits per byte", "each seed", "parameters", "minutes"], quality),
        "By how much of the row was read before, in eighths of it:",
        markdown_table(["attention", *map(str, range(1, 9))], eighths),
        f"The last {JOINED // 2} bytes of rows of {LENGTH:,} whose first {LENGTH - JOINED:,} are from the same novel "
        "or from another:",
        markdown_table(["attention", "the same", "another", "gain from the past"], pasts),
        "Names, after their second letter, by their last occurrence:",
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

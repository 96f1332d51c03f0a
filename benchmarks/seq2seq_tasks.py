"""What a compressed memory can and cannot do: two tasks that need all of a source of 4,096 tokens.

    python benchmarks/seq2seq_tasks.py train --task aggregate --variant linear-64 --output seq2seq-tasks
    python benchmarks/seq2seq_tasks.py report --output seq2seq-tasks

``train`` learns a task from rows that are drawn as they are needed, so none repeats, and writes the share of correct
target tokens in unseen rows to TASK/VARIANT-SEED.json. ``report`` puts all of them into one table and one figure.

- ``aggregate``: which kinds of records are the most frequent, in order? Each kind has its season in the source, so
  no part of the source is enough.
- ``lookup``: a source holds keys, each once and anywhere, with a value. What are the values of the keys asked for?
"""

import itertools
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from learning import learn, one_of
from runner.results import git_commit
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.models import LinformerForConditionalGeneration, LinformerSeq2SeqConfig
from torch_linformer.nn import SequenceProjection
from torch_linformer.reporting.files import atomic_path, write_json, write_text
from torch_linformer.reporting.plots import BLUE, INK, ORANGE, render_png
from torch_linformer.reporting.report import markdown_table

LENGTH, WIDTH = 4096, 64

KINDS, TOP = 16, 4
FALL = 0.7  # probability of a kind relative to the next more frequent one
SEASON = 0.1  # standard deviation of when records of one kind come, as a share of the source

KEYS, VALUES, ASKED = 64, 8, 32
FILLER, FIRST_KEY, FIRST_VALUE = 0, 1, 1 + KEYS

SLOTS, WINDOW = (1, 4, 16, 64, 256, 1024), 64
FULL_DECODER = {"attention": "full", "window": None}
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {  # how encoder and decoder attend
    **{
        f"{projection}-{k}": ({"projection": projection, "k": k}, {})
        for projection in ("linear", "mean")
        for k in SLOTS
    },
    "mean-64-window": ({"projection": "mean", "k": 64, "window": WINDOW}, {}),
    "full-decoder": ({"projection": "mean", "k": 64}, FULL_DECODER),
    "full": ({"attention": "full"}, FULL_DECODER),
}
MAPS = {"linear": "learned E and F", "mean": "means of segments"}
OTHERS = {
    "mean-64-window": f"means of segments, K 64, window of {WINDOW}",
    "full-decoder": "full attention only in the decoder",
    "full": "full attention",
}
WARM_UP, LAST_RATE = 50, 0.05
RATE_OF_MAPS = 0.1  # relative to all other rates: E and F are means over a row, which large steps make uneven

app = typer.Typer(add_completion=False)

Rows = dict[str, np.ndarray]  # what the model is called with


def aggregate(draws: np.random.Generator, rows: int, length: int) -> Rows:
    shares = FALL ** np.arange(KINDS)
    ranks = draws.choice(KINDS, (rows, length), p=shares / shares.sum())
    kinds = np.take_along_axis(shuffled(draws, rows, KINDS), ranks, axis=1)
    seasons = draws.random((rows, KINDS))
    when = np.take_along_axis(seasons, kinds, axis=1) + SEASON * draws.standard_normal(kinds.shape)
    source = np.take_along_axis(kinds, when.argsort(axis=1), axis=1)
    return {"input_ids": source, "labels": most_frequent(source)}


def most_frequent(source: np.ndarray) -> np.ndarray:
    """The ``TOP`` most frequent kinds in order; of two equally frequent ones the lower number first."""
    counts = np.stack([np.bincount(row, minlength=KINDS) for row in source])
    return np.argsort(-counts, axis=1, kind="stable")[:, :TOP]


def most_frequent_of_half(rows: Rows) -> np.ndarray:
    return most_frequent(rows["input_ids"][:, : LENGTH // 2])


def lookup(draws: np.random.Generator, rows: int, length: int) -> Rows:
    """A record is one token, the key, and its value is the token's type; shorter sources have proportionally fewer."""
    records = KEYS * length // LENGTH
    keys = FIRST_KEY + shuffled(draws, rows, KEYS)[:, :records]
    values = draws.integers(VALUES, size=(rows, records))
    places = shuffled(draws, rows, length)[:, :records]
    source, types = np.full((rows, length), FILLER), np.zeros((rows, length), dtype=np.int64)
    np.put_along_axis(source, places, keys, axis=1)
    np.put_along_axis(types, places, 1 + values, axis=1)
    asked = draws.integers(records, size=(rows, ASKED))
    return {
        "input_ids": source,
        "token_type_ids": types,
        "decoder_input_ids": np.take_along_axis(keys, asked, axis=1),
        "labels": FIRST_VALUE + np.take_along_axis(values, asked, axis=1),
    }


def most_frequent_value(rows: Rows) -> np.ndarray:
    counts = [np.bincount(types, minlength=1 + VALUES)[1:] for types in rows["token_type_ids"]]
    return FIRST_VALUE + np.argmax(counts, axis=1)[:, None]


def shuffled(draws: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """``(rows, size)``: the numbers from 0, in a different order in each row."""
    return draws.permuted(np.tile(np.arange(size), (rows, 1)), axis=1)


@dataclass(frozen=True)
class Task:
    """How rows are drawn, from which words, how they are learned, and what can be guessed without a model."""

    title: str
    draw: Callable[[np.random.Generator, int, int], Rows]
    words: int
    types: int
    peak_rate: float
    steps: int
    stages: dict[int, float]  # length of the sources, and the share of the steps
    baseline: str
    guess: Callable[[Rows], np.ndarray]

    def length_at(self, progress: float) -> int:
        """The length of the sources at this share of the training, from 0 to 1."""
        ends = itertools.accumulate(self.stages.values())
        return next((length for length, end in zip(self.stages, ends, strict=True) if progress <= end), LENGTH)

    def accuracy_of_baseline(self, rows: int = 256) -> float:
        drawn = self.draw(np.random.default_rng(0), rows, LENGTH)
        return float((self.guess(drawn) == drawn["labels"]).mean())


TASKS = {
    "aggregate": Task(
        f"The {TOP} most frequent kinds, in order",
        aggregate,
        words=KINDS + 1,
        types=0,
        peak_rate=5e-3,
        steps=1200,
        stages={LENGTH: 1.0},
        baseline="counting the first half of the source",
        guess=most_frequent_of_half,
    ),
    "lookup": Task(
        "The values of single keys",
        lookup,
        words=FIRST_VALUE + VALUES,
        types=1 + VALUES,
        peak_rate=3e-3,
        steps=1000,
        stages={256: 0.4, 512: 0.15, 1024: 0.15, 2048: 0.1, LENGTH: 0.2},
        baseline="the most frequent value of the source",
        guess=most_frequent_value,
    ),
}


@app.command()
def train(
    task: Annotated[str, one_of(TASKS)],
    variant: Annotated[str, one_of(VARIANTS)],
    output: Annotated[Path, typer.Option(help="folder of the results")],
    seed: int = 0,
    steps: Annotated[int | None, typer.Option(help="by default as many as the task takes")] = None,
    batch: int = 8,
    threads: int = 1,
) -> None:
    """Learn a task, score rows that were not trained on, and write TASK/VARIANT-SEED.json."""
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    chosen = TASKS[task]
    steps = chosen.steps if steps is None else steps
    commit = git_commit(__file__)  # of the code that runs, whatever is committed meanwhile
    model = build(chosen, variant)
    optimizer = torch.optim.AdamW(groups(model, chosen.peak_rate), betas=(0.9, 0.98), weight_decay=0.0)
    draws = np.random.default_rng([seed, 0])

    def loss(step: int) -> torch.Tensor:
        return model(**drawn(chosen, draws, batch, chosen.length_at(step / steps))).loss

    name = f"{task} {variant} {seed}"
    curve, seconds = learn(name, model, loss, optimizer, steps, warm_up=WARM_UP, last_rate=LAST_RATE)
    result = {
        "task": task,
        "variant": variant,
        "seed": seed,
        "curve": curve,
        "seconds": seconds,
        "processor_seconds": time.process_time(),
        "accuracy": accuracy(model, chosen, np.random.default_rng([seed, 1])),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "steps": steps,
        "rows": steps * batch,
        "machine": machine_facts("cpu"),
        "commit": commit,
    }
    print(f"{name}: accuracy {result['accuracy']:.4f}", flush=True)
    write_json(output / task / f"{variant}-{seed}.json", result)


def drawn(task: Task, draws: np.random.Generator, rows: int, length: int) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(ids) for name, ids in task.draw(draws, rows, length).items()}


def build(task: Task, variant: str) -> LinformerForConditionalGeneration:
    """One layer each for encoder and decoder; in the encoder only the maps to slots depend on positions."""
    of_encoder, of_decoder = VARIANTS[variant]
    both = {
        "vocab_size": task.words,
        "hidden_size": WIDTH,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 2 * WIDTH,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": None,
        "initializer_range": 0.1,
        "norm_first": True,
        "embedding_norm": False,
        "lm_head_transform": False,
    }
    encoder = {"max_position_embeddings": LENGTH, "position_embedding": "none", "type_vocab_size": task.types}
    decoder = {"position_embedding": "rotary", "type_vocab_size": 0, "causal": True, "k": 0, "window": ASKED}
    config = LinformerSeq2SeqConfig(
        encoder=both | encoder | of_encoder,
        decoder=both | decoder | of_decoder,
        share_embeddings=False,
        tie_word_embeddings=False,
        decoder_start_token_id=task.words - 1,
    )
    model = LinformerForConditionalGeneration(config)
    # A key is the same word on both sides, but not tied to the output: that would pull all keys, which are never
    # written, to one side. And initialized as small as the other weights they would stay too similar.
    model.decoder.set_input_embeddings(model.encoder.get_input_embeddings())
    embeddings = model.encoder.embeddings
    for embedding in filter(None, (embeddings.word_embeddings, embeddings.token_type_embeddings)):
        torch.nn.init.normal_(embedding.weight)
    return model


def groups(model: LinformerForConditionalGeneration, peak_rate: float) -> list[dict[str, Any]]:
    """The parameters of the maps to slots, and all others, with their rates."""
    maps = {
        id(weight)
        for module in model.modules()
        if isinstance(module, SequenceProjection)
        for weight in module.parameters()
    }
    return [
        {
            "params": [weight for weight in model.parameters() if (id(weight) in maps) == of_maps],
            "lr": share * peak_rate,
        }
        for of_maps, share in ((False, 1.0), (True, RATE_OF_MAPS))
    ]


@torch.inference_mode()
def accuracy(
    model: LinformerForConditionalGeneration, task: Task, draws: np.random.Generator, batches: int = 16, batch: int = 16
) -> float:
    """Share of target tokens that are right: those that ``generate`` writes, or after each key asked for."""
    model.eval()
    right = []
    for _ in range(batches):
        rows = drawn(task, draws, batch, LENGTH)
        labels = rows.pop("labels")
        if "decoder_input_ids" in rows:
            written = model(**rows).logits.argmax(-1)
        else:
            written = model.generate(**rows, max_new_tokens=labels.shape[1], do_sample=False)[:, 1:]
        right.append((written == labels).float().mean().item())
    return mean(right)


@app.command()
def report(output: Annotated[Path, typer.Option(help="folder of the results")]) -> None:
    """Write results.md and accuracy.png from what ``train`` left in the folder."""
    runs = [json.loads(path.read_text()) for path in sorted(output.glob("*/*.json"))]
    columns = ["memory", "accuracy", "each seed", "nats at the end", "training rows", "seconds", "parameters"]
    parts = [
        "# What a compressed memory can and cannot do",
        f"Sources of {LENGTH:,} tokens, one layer of width {WIDTH} each for encoder and decoder, K slots in both. "
        "Accuracy: the share of correct target tokens, in rows not trained on. Commands: see the head "
        "of `benchmarks/seq2seq_tasks.py`.",
    ]
    for name, task in TASKS.items():
        baseline = f"Without a model: {task.baseline} {task.accuracy_of_baseline():.3f}."
        parts += [
            f"## {task.title}",
            baseline,
            markdown_table(columns, table_rows([r for r in runs if r["task"] == name])),
        ]
    write_text(output / "results.md", "\n\n".join([*parts, "![accuracy against K](accuracy.png)"]) + "\n")
    with atomic_path(output / "accuracy.png") as file:
        file.write_bytes(render_png(lambda figure: draw_accuracy(figure, runs), height=380))


def table_rows(runs: list[dict]) -> list[list[object]]:
    """One row a variant that was measured, in the order of ``VARIANTS``."""
    by_variant = {name: [run for run in runs if run["variant"] == name] for name in VARIANTS}
    return [
        [
            title_of(name),
            mean(run["accuracy"] for run in each),
            " / ".join(f"{run['accuracy']:.3f}" for run in each),
            mean(run["curve"][-1][1] for run in each),
            each[0]["rows"],
            round(mean(run["seconds"] for run in each)),
            each[0]["parameters"],
        ]
        for name, each in by_variant.items()
        if each
    ]


def title_of(variant: str) -> str:
    kind, _, k = variant.partition("-")
    return OTHERS.get(variant) or f"{MAPS[kind]}, K {int(k):,}"


def draw_accuracy(figure: Figure, runs: list[dict]) -> None:
    for axes, (name, task) in zip(figure.subplots(1, len(TASKS), sharey=True), TASKS.items(), strict=True):
        draw_task(axes, [run for run in runs if run["task"] == name])
        baseline = task.accuracy_of_baseline()
        axes.axhline(baseline, color=INK, linewidth=1, linestyle=":")
        axes.text(SLOTS[0], baseline + 0.01, task.baseline, fontsize=10, ha="left", va="bottom")
        axes.set(title=task.title, xlabel="slots K", ylim=(0, 1.03), xlim=(SLOTS[0] / 1.3, SLOTS[-1] * 1.3))
        axes.set_xscale("log", base=4)
        axes.set_xticks(SLOTS, [f"{k:,}" for k in SLOTS])
        axes.xaxis.set_minor_locator(NullLocator())
    figure.axes[0].set_ylabel("accuracy")
    # Each label once, though one task may lack what the other has.
    drawn_once = {line.get_label(): line for axes in figure.axes for line in axes.lines if line.get_label()[0] != "_"}
    figure.legend(drawn_once.values(), drawn_once.keys(), loc="outside lower center", ncols=3, fontsize=10)


def draw_task(axes: Axes, runs: list[dict]) -> None:
    """Accuracy against K for each map to slots; what has no K is a line across, K with a window a cross."""
    found = {
        name: mean(run["accuracy"] for run in runs if run["variant"] == name) for name in {r["variant"] for r in runs}
    }
    for (kind, title), color in zip(MAPS.items(), (BLUE, ORANGE), strict=True):
        points = [(k, found[f"{kind}-{k}"]) for k in SLOTS if f"{kind}-{k}" in found]
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", color=color, label=title)
    for (name, title), style in zip(OTHERS.items(), ("x", "--", "-."), strict=True):
        if name in found and style == "x":
            axes.plot(64, found[name], "x", markersize=8, color=INK, label=title)
        elif name in found:
            axes.axhline(found[name], color=INK, linewidth=1.2, linestyle=style, label=title)


if __name__ == "__main__":
    app()

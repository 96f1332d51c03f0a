"""What slots can carry in encoders from scratch: full attention, only a window, and four kinds of slots, equal steps.

    python benchmarks/slot_tasks.py --output slot-tasks
    python benchmarks/slot_tasks.py --output slot-tasks --tasks text --text-train train.parquet --text-test test.parquet

Every run that is finished is a line of runs.jsonl; the same command again goes on after the last one. At the end, and
after each run, results.md has all of them as tables and curves.png has their learning curves. The tasks:

- ``lookup``: the last tokens of a row are keys, each of which stands once somewhere before, with a value. Which?
- ``needle``: one token anywhere is marked. The first token of the row says which word it is.
- ``listops``: the value of a nested expression of MAX, MIN, MED (median) and SM (sum modulo 10).
- ``text``: is a review of a film, read byte by byte, positive?

In the first two, what is asked for stands farther away than the windows of all layers reach.
"""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import torch
import typer

from learning import chosen, learn, run_all
from runner.results import git_commit
from slot_rows import (
    CLOSE,
    FIRST_VALUE,
    KEYS,
    NEEDLES,
    NOT_ASKED,
    VALUES,
    Rows,
    Texts,
    by_outer_operator,
    listops,
    lookup,
    most_frequent_value,
    needle,
)
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.models import (
    LinformerConfig,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from torch_linformer.nn.attention.slot_maps import maps_in
from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.reporting.files import write_text
from torch_linformer.reporting.plots import BLUE, INK, ORANGE
from torch_linformer.reporting.report import markdown_table
from variants import Variant, by_variant, draw_curves, in_sections

WIDTH, LAYERS, HEADS, WINDOW = 64, 2, 2, 64
GAP = LAYERS * WINDOW // 2  # as far as information comes by windows alone
TOKENS_A_SLOT = 16

Model = LinformerForSequenceClassification | LinformerForTokenClassification
DYNAMIC = {"projection": "dynamic", "slot_mass": "learned"}
PER_HEAD, PER_LAYER = {**DYNAMIC, "sharing": "kv_per_head"}, {**DYNAMIC, "sharing": "kv"}
WITH_WINDOW = {"window": WINDOW}
BROWN, PURPLE = "#8a6d3b", "#6f4a8e"
VARIANTS = {  # dashed with a window beside slots
    "full": Variant("full attention", {"attention": "full"}, INK),
    "window": Variant(f"window of {WINDOW}, no slots", {"k": 0, **WITH_WINDOW}, "gray"),
    "mean": Variant("means of segments", {"projection": "mean"}, ORANGE),
    "mean-window": Variant("means of segments + window", {"projection": "mean", **WITH_WINDOW}, ORANGE, "--"),
    "linear": Variant("learned E and F", {"projection": "linear"}, BROWN),
    "dynamic": Variant("input-dependent, one P a head", PER_HEAD, BLUE),
    "dynamic-window": Variant("input-dependent, one P a head + window", PER_HEAD | WITH_WINDOW, BLUE, "--"),
    "layer": Variant("input-dependent, one P a layer", PER_LAYER, PURPLE),
    "layer-window": Variant("input-dependent, one P a layer + window", PER_LAYER | WITH_WINDOW, PURPLE, "--"),
}
TITLES = {
    "lookup": "Lookup: the values of single keys",
    "needle": "Needle: which word is marked",
    "listops": "ListOps: nested expressions",
    "text": "Text: reviews as bytes",
}
COLUMNS = [
    "attention",
    "accuracy",
    "each seed",
    "of full attention",
    "nats at the end",
    "processor seconds",
    "parameters",
]

WARM_UP, LAST_RATE = 50, 0.05
# Of what makes the slots, relative to all others: E and F as in seq2seq_tasks.py; with 3 the slots that the input
# chooses learn to look up in fewer steps than with 1 (N 128).
RATES_OF_SLOTS = {"linear": 0.1, "dynamic": 3.0}
STAGES = {16: 0.4, 8: 0.15, 4: 0.15, 2: 0.1, 1: 0.2}  # rows shorter by this factor, and the share of the steps
SHORTEST = 256  # rows of a stage
EVALUATED = 16  # rows at a time


@dataclass(frozen=True)
class Task:
    """How rows are drawn, to be learned and held out, and what learns them."""

    draw: Callable[[np.random.Generator, int, int], Rows]
    words: int
    types: int
    labels: int
    held_out: Callable[[np.random.Generator, int, int], Rows] | None = None  # drawn like all others
    guess: Callable[[Rows], np.ndarray] | None = None  # by each row; otherwise the most frequent answer
    model_class: type[Model] = LinformerForSequenceClassification
    pooling: str = "mean"
    position_embedding: str = "sinusoidal"
    length: int = 4096
    steps: int = 2000
    batch: int = 8
    peak_rate: float = 3e-3
    stages: dict[int, float] = field(default_factory=lambda: {1: 1.0})

    def length_at(self, progress: float, length: int) -> int:
        """The length of the rows at this share of the training, from 0 to 1."""
        ends = itertools.accumulate(self.stages.values())
        factor = next((factor for factor, end in zip(self.stages, ends, strict=True) if progress <= end), 1)
        return min(length, max(SHORTEST, length // factor))


SEARCHES: dict[str, Any] = {"position_embedding": "none", "stages": STAGES}
TASKS = {
    "lookup": Task(
        partial(lookup, gap=GAP),
        words=1 + KEYS,
        types=FIRST_VALUE + VALUES,
        labels=VALUES,
        guess=most_frequent_value,
        model_class=LinformerForTokenClassification,
        **SEARCHES,
    ),
    "needle": Task(
        partial(needle, gap=GAP),
        words=1 + NEEDLES,
        types=2,
        labels=NEEDLES,
        pooling="cls",
        **SEARCHES,
    ),
    "listops": Task(
        lambda draws, rows, length: listops(draws, rows, length, shortest=length // 4),
        words=1 + CLOSE,
        types=0,
        labels=10,
        guess=by_outer_operator,
        length=2048,
        batch=16,
    ),
}


def text_task(train: Path, test: Path) -> Task:
    """IMDB's reviews in the shape of Long Range Arena's Text, arXiv 2011.04006."""
    texts, unseen = Texts.read(train), Texts.read(test)
    number = int(texts.labels.max()) + 1
    return Task(texts.draw, words=257, types=0, labels=number, held_out=unseen.draw, batch=32)


def build(task: Task, variant: str, length: int) -> Model:
    """A small pre-norm encoder; the variants differ only in the attention."""
    config = LinformerConfig(
        vocab_size=task.words,
        type_vocab_size=task.types,
        num_labels=task.labels,
        pooling=task.pooling,
        position_embedding=task.position_embedding,
        max_position_embeddings=length,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=2 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        pad_token_id=None,
        initializer_range=0.1,
        norm_first=True,
        embedding_norm=False,
        **{"k": length // TOKENS_A_SLOT} | VARIANTS[variant].options,
    )
    model = task.model_class(config)
    # Initialized as small as the other weights, words would stay too similar to be told apart.
    embeddings = model.linformer.embeddings
    for embedding in filter(None, (embeddings.word_embeddings, embeddings.token_type_embeddings)):
        torch.nn.init.normal_(embedding.weight)
    return model


def groups(model: Model, peak_rate: float) -> list[dict[str, Any]]:
    """All parameters but those that make slots, and these, with their rates."""
    own = {id(weight) for each in maps_in(model) for weight in each.parameters()}
    own |= {id(weight) for name, weight in model.named_parameters() if name.endswith("slot_terms.mass")}
    kind = "dynamic" if any(isinstance(each, DynamicProjection) for each in maps_in(model)) else "linear"
    return [
        {
            "params": [weight for weight in model.parameters() if (id(weight) in own) == of_slots],
            "lr": peak_rate * share,
        }
        for of_slots, share in ((False, 1.0), (True, RATES_OF_SLOTS[kind]))
    ]


def train(task: Task, setting: dict[str, Any], held_out_rows: int, device: str) -> dict:
    """Learn a task from scratch: what runs.jsonl has of a run."""
    seed, length, steps = setting["seed"], setting["length"], setting["steps"]
    torch.manual_seed(seed)
    model = build(task, setting["variant"], length).to(device)
    optimizer = torch.optim.AdamW(groups(model, task.peak_rate), betas=(0.9, 0.98), weight_decay=0.0)
    draws = np.random.default_rng([seed, 0])

    def loss(step: int) -> torch.Tensor:
        rows = task.draw(draws, setting["batch"], task.length_at(step / steps, length))
        return model(**as_tensors(rows, device)).loss

    name = "{task} {variant} {seed}".format(**setting)
    commit, begin = git_commit(__file__), time.process_time()  # of the code that runs, whatever is committed meanwhile
    curve, seconds = learn(name, model, loss, optimizer, steps, warm_up=WARM_UP, last_rate=LAST_RATE)
    result = {
        **setting,
        "slots": None if model.config.attention == "full" else model.config.k,
        **scores(model, task, np.random.default_rng([seed, 1]), held_out_rows, length),
        "curve": curve,
        "seconds": seconds,
        "processor_seconds": time.process_time() - begin,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "machine": machine_facts(device),
        "commit": commit,
    }
    print(f"{name}: accuracy {result['accuracy']:.4f}", flush=True)
    return result


def as_tensors(rows: Rows, device: str | torch.device) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(array).to(device) for name, array in rows.items()}


@torch.inference_mode()
def scores(model: Model, task: Task, draws: np.random.Generator, rows: int, length: int) -> dict[str, float]:
    """The share of right answers in unseen rows, of the model and of a guess without one."""
    model.eval()
    draw, answers, right, guessed = task.held_out or task.draw, [], [], []
    for _ in range(-(-rows // EVALUATED)):
        drawn = draw(draws, EVALUATED, length)
        labels = drawn.pop("labels")
        asked = labels != NOT_ASKED
        answers.append(labels[asked])
        right.append((model(**as_tensors(drawn, model.device)).logits.argmax(-1).cpu().numpy() == labels)[asked])
        if task.guess is not None:
            guessed.append((task.guess(drawn) == labels)[asked])
    counts = np.bincount(np.concatenate(answers))
    baseline = np.concatenate(guessed).mean() if guessed else counts.max() / counts.sum()
    return {"accuracy": float(np.concatenate(right).mean()), "baseline": float(baseline)}


def report(runs: list[dict], output: Path) -> None:
    """Write results.md and curves.png."""
    sections = in_sections(runs, ("task", "length", "steps", "batch"))
    parts = [
        "# What slots can carry",
        f"Encoders of {LAYERS} layers of width {WIDTH}, {HEADS} heads, from scratch. Accuracy: the share of right "
        "answers in rows not trained on. Commands: see the head of `benchmarks/slot_tasks.py`.",
    ]
    for (task, length, steps, batch), each in sections:
        slots = max(run["slots"] or 0 for run in each)
        parts += [
            f"## {TITLES[task]}",
            f"N {length:,}, K {slots:,}, {steps:,} steps of {batch} rows. A guess: {mean_of(each, 'baseline'):.3f}.",
            markdown_table(COLUMNS, table_rows(each)),
        ]
    write_text(output / "results.md", "\n\n".join([*parts, "![learning curves](curves.png)"]) + "\n")
    draw_curves(
        output / "curves.png",
        sections,
        VARIANTS,
        lambda common: f"{TITLES[common[0]]}, N {common[1]:,}",
        height=330,
        ylabel="nats (training)",
        ylim=(0, None),
    )


def table_rows(runs: list[dict]) -> list[list[object]]:
    """One row a variant that was measured, in the order of ``VARIANTS``."""
    measured = by_variant(runs, VARIANTS)
    full = mean_of(measured["full"], "accuracy") if "full" in measured else 0.0
    return [
        [
            VARIANTS[name].title,
            mean_of(each, "accuracy"),
            " / ".join(f"{run['accuracy']:.3f}" for run in each),
            f"{mean_of(each, 'accuracy') / full:.3f}" if full else "–",
            mean(run["curve"][-1][1] for run in each),
            round(mean_of(each, "processor_seconds")),
            each[0]["parameters"],
        ]
        for name, each in measured.items()
    ]


def mean_of(runs: list[dict], name: str) -> float:
    return mean(run[name] for run in runs)


def main(
    output: Annotated[Path, typer.Option(help="folder of the results")],
    tasks: Annotated[str, typer.Option(help=f"of {', '.join(TITLES)}")] = "lookup,needle,listops",
    variants: Annotated[str, typer.Option(help="kinds of attention")] = ",".join(VARIANTS),
    seeds: int = 2,
    length: Annotated[int | None, typer.Option(help="tokens N, by default those of the task; K is N / 16")] = None,
    steps: Annotated[int | None, typer.Option(help="by default as many as the task takes")] = None,
    batch: Annotated[int | None, typer.Option(help="rows of a step, by default those of the task")] = None,
    rows: Annotated[int, typer.Option(help="rows held out")] = 1024,
    text_train: Annotated[Path | None, typer.Option(help="CSV or Parquet with columns text and label")] = None,
    text_test: Annotated[Path | None, typer.Option(help="the same, of texts held out")] = None,
    threads: int = 1,
    device: str = "cpu",
) -> None:
    """Train each kind of attention on each task with each seed, unless it was done before, and report all of them."""
    torch.set_num_threads(threads)
    known = dict(TASKS)
    if text_train is not None and text_test is not None:
        known["text"] = text_task(text_train, text_test)
    orders = itertools.product(range(seeds), chosen(tasks, known, "--tasks"), chosen(variants, VARIANTS, "--variants"))
    settings = [
        {
            "task": name,
            "length": length or known[name].length,
            "steps": steps or known[name].steps,
            "batch": batch or known[name].batch,
            "variant": variant,
            "seed": seed,
        }
        for seed, name, variant in orders
    ]
    run_all(
        settings,
        lambda setting: train(known[setting["task"]], setting, rows, device),
        partial(report, output=output),
        output / "runs.jsonl",
    )


if __name__ == "__main__":
    typer.run(main)

"""Figure 3 of the paper on a small scale: perplexity of masked words by K and by sharing, beside what else there is.

    python benchmarks/masked_text.py --data novels.parquet --output masked-text

Encoders learn from the same rows of the same texts, cut at N tokens; the last five texts are held out. Every run that
is finished is a line of runs.jsonl; the same command again goes on after the last one. results.md has all of them as
tables, and curves.png the perplexity of words held out against steps.

What is not the paper's lets small encoders learn in minutes: words are letters and the most frequent pairs of them, two
in five are masked and none is replaced otherwise, and at first a token attends to those near it: each layer begins with
equal maps of queries and keys, and E and F as means of segments, which they leave slowly. One variant has E and F drawn
as the paper has them.

Source: arXiv 2006.04768, Figure 3: learned E and F with K of N / 8 to N / 2, and four ways to share them.
"""

import itertools
import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from statistics import mean
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast

from learning import chosen, learn, run_all
from runner.results import git_commit
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.models import LinformerConfig, LinformerForMaskedLM
from torch_linformer.nn import SequenceProjection
from torch_linformer.reporting.files import write_text
from torch_linformer.reporting.plots import BLUE, INK, ORANGE
from torch_linformer.reporting.report import markdown_table
from torch_linformer.tasks.task import IGNORED
from variants import Variant, by_variant, draw_curves, in_sections

WIDTH, LAYERS, HEADS, WINDOW = 128, 2, 4, 64
WORDS = 270  # of the tokenizer: bytes, and the most frequent pairs
MASKED = 0.4  # of the words
WORD_STD, ALIKE_STD = 0.5, 0.12  # with which words, and the weights of queries and keys, are drawn
HELD_OUT = 5  # texts, the last ones
READ = 2**17  # characters at the head of each text: what is learned from, and held out
SCORED = 2**15  # tokens held out whose masked words are scored, the same in every run
SCORED_AT_ONCE = 2**13
WARM_UP, PEAK_RATE, LAST_RATE = 100, 2e-3, 0.05
MAPS_RATE = 1e-4  # of E and F, whose numbers are small

LIGHT, BROWN, DARK = "#d9b98c", "#b8894a", "#7a5217"
HEADWISE = {"sharing": "headwise"}
MEAN = {"projection": "mean"}
DYNAMIC = {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned"}
WITH_WINDOW = {"window": WINDOW}
VARIANTS = {
    "full": Variant("full attention", {"attention": "full"}, INK),
    "headwise-8": Variant("E and F, headwise", HEADWISE, LIGHT, "-", 8),
    "headwise-4": Variant("E and F, headwise", HEADWISE, BROWN, "-", 4),
    "headwise-2": Variant("E and F, headwise", HEADWISE, DARK, "-", 2),
    "headwise-4-drawn": Variant("E and F, headwise, drawn", HEADWISE, "tan", (0, (1, 3)), 4),
    "none-4": Variant("E and F, not shared", {"sharing": "none"}, BROWN, ":", 4),
    "kv-4": Variant("E = F, key-value", {"sharing": "kv"}, BROWN, "--", 4),
    "layerwise-4": Variant("E = F, layerwise", {"sharing": "layerwise"}, BROWN, "-.", 4),
    "mean-8": Variant("means of segments", MEAN, ORANGE, "-", 8),
    "dynamic-8": Variant("input-dependent", DYNAMIC, BLUE, "-", 8),
    "window": Variant(f"window of {WINDOW}", {"k": 0, **WITH_WINDOW}, "gray"),
    "mean-window-8": Variant(f"means of segments + window of {WINDOW}", MEAN | WITH_WINDOW, ORANGE, "--", 8),
    "dynamic-window-8": Variant(f"input-dependent + window of {WINDOW}", DYNAMIC | WITH_WINDOW, BLUE, "--", 8),
}
DRAWN = "headwise-4-drawn"  # begins with E and F as they are drawn, all others with means of segments
COLUMNS = ["attention", "K", "perplexity", "of full attention", "each seed", "parameters", "processor seconds"]


class Corpus:
    """Texts as tokens, those held out apart.

    Args:
        data: Parquet file with a column ``text``.
    """

    def __init__(self, data: Path) -> None:
        texts = [text[:READ] for text in pd.read_parquet(data)["text"]]
        self.tokenizer: PreTrainedTokenizerFast = build_tokenizer(f"bpe:{WORDS}", texts[:-HELD_OUT], max_length=2**40)
        tokens = [np.array(ids, dtype=np.int64) for ids in self.tokenizer(texts, add_special_tokens=False)["input_ids"]]
        self.train, self.held_out = np.concatenate(tokens[:-HELD_OUT]), np.concatenate(tokens[-HELD_OUT:])

    def rows(self, seed: int, length: int, batch: int) -> Iterator[dict[str, torch.Tensor]]:
        """Rows from places drawn anew, with words masked."""
        draws = np.random.default_rng(seed)
        while True:
            yield self.masked(self.train, draws.integers(0, len(self.train) - length, size=batch), length, draws)

    def scored(self, length: int) -> Iterator[dict[str, torch.Tensor]]:
        """Rows spread over the texts held out, masked in the same way for all."""
        draws = np.random.default_rng(0)
        starts = np.linspace(0, len(self.held_out) - length, SCORED // length).astype(int)
        at_once = max(1, SCORED_AT_ONCE // length)
        for first in range(0, len(starts), at_once):
            yield self.masked(self.held_out, starts[first : first + at_once], length, draws)

    def masked(
        self, tokens: np.ndarray, starts: np.ndarray, length: int, draws: np.random.Generator
    ) -> dict[str, torch.Tensor]:
        """The rows that begin at these places, and what was masked in them."""
        rows = tokens[starts[:, None] + np.arange(length)]
        chosen = draws.random(rows.shape) < MASKED
        return {
            "input_ids": torch.from_numpy(np.where(chosen, self.tokenizer.mask_token_id, rows)),
            "labels": torch.from_numpy(np.where(chosen, rows, IGNORED)),
        }

    def without_context(self, scored: list[dict[str, torch.Tensor]]) -> float:
        """Nats a masked word of who knows how frequent words are, and nothing else."""
        counts = np.bincount(self.train, minlength=len(self.tokenizer)) + 1.0
        right = torch.cat([batch["labels"][batch["labels"] != IGNORED] for batch in scored]).numpy()
        return float(-np.log(counts[right] / counts.sum()).mean())


def build(variant: str, length: int, words: int) -> LinformerForMaskedLM:
    """A small pre-norm encoder; the variants differ only in the attention."""
    tokens_a_slot, options = VARIANTS[variant].tokens_a_slot, VARIANTS[variant].options
    k = {} if tokens_a_slot is None else {"k": length // tokens_a_slot}
    config = LinformerConfig(
        vocab_size=words,
        hidden_size=WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        intermediate_size=4 * WIDTH,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=length,
        type_vocab_size=0,
        pad_token_id=0,
        position_embedding="sinusoidal",
        initializer_range=0.05,  # of the other weights
        norm_first=True,
        embedding_norm=False,
        **k,
        **options,
    )
    model = LinformerForMaskedLM(config)
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_(0.0, WORD_STD)
        for layer in model.linformer.encoder.layers:
            attention = layer.self_attn
            attention.q_proj.weight.copy_(attention.k_proj.weight.normal_(0.0, ALIKE_STD))
        if variant != DRAWN:
            for weight in maps_of(model):
                means = F.one_hot(torch.arange(length) * weight.shape[-1] // length).float()
                weight.copy_(means / means.sum(0))
    return model


def maps_of(model: LinformerForMaskedLM) -> list[torch.nn.Parameter]:
    """The matrices E and F, where they are learned."""
    return [each for part in model.modules() if isinstance(part, SequenceProjection) for each in part.parameters()]


def train(corpus: Corpus, setting: dict[str, Any], device: str) -> dict:
    """Learn masked words from scratch: what runs.jsonl has of a run."""
    seed, length = setting["seed"], setting["length"]
    torch.manual_seed(seed)
    model = build(setting["variant"], length, len(corpus.tokenizer)).to(device)
    maps = set(maps_of(model))
    groups = [
        {"params": [each for each in model.parameters() if each not in maps], "lr": PEAK_RATE},
        {"params": list(maps), "lr": MAPS_RATE},
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.98), weight_decay=0.01)
    rows, scored = corpus.rows(seed, length, setting["batch"]), list(corpus.scored(length))

    masked = [int((batch["labels"] != IGNORED).sum()) for batch in scored]

    def loss(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16):
            return model(**{name: each.to(device) for name, each in batch.items()}, sparse_prediction=True).loss

    @torch.no_grad()
    def held_out() -> float:
        model.eval()
        nats = sum(loss(batch).item() * words for batch, words in zip(scored, masked, strict=True)) / sum(masked)
        model.train()
        return nats

    name = "{variant} {length} {seed}".format(**setting)
    commit, begin = git_commit(__file__), time.process_time()  # of the code that runs, whatever is committed meanwhile
    curve, seconds = learn(
        name,
        model,
        lambda step: loss(next(rows)),
        optimizer,
        setting["steps"],
        warm_up=WARM_UP,
        last_rate=LAST_RATE,
        held_out=held_out,
    )
    return {
        **setting,
        "slots": None if model.config.attention == "full" else model.config.k,
        "perplexity": math.exp(curve[-1][1]),
        "baseline": math.exp(corpus.without_context(scored)),
        "curve": curve,
        "seconds": seconds,
        "processor_seconds": time.process_time() - begin,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "machine": machine_facts(device),
        "commit": commit,
    }


def report(runs: list[dict], output: Path) -> None:
    """Write results.md and curves.png."""
    sections = in_sections(runs, ("length", "batch", "steps"))
    parts = [
        "# Masked words",
        f"Encoders of {LAYERS} layers of width {WIDTH}, {HEADS} heads, from scratch, bfloat16. Perplexity of words, "
        f"which are letters and frequent pairs of them, held out: {SCORED:,} of five novels, {MASKED:.0%} of them "
        "masked. Command and start: see the head of `benchmarks/masked_text.py`. Processor seconds are of a machine "
        "with other work: not a comparison.",
    ]
    for (length, batch, steps), each in sections:
        parts += [
            f"## N {length:,}",
            f"{steps:,} steps of {batch} rows, {steps * batch * length / 1e6:.1f} million tokens. Each word by itself, "
            f"from how frequent words are: {each[0]['baseline']:.1f}. What is not below that has not used its context.",
            markdown_table(COLUMNS, table_rows(each)),
        ]
    write_text(output / "results.md", "\n\n".join([*parts, "![perplexity against steps](curves.png)"]) + "\n")
    draw_curves(
        output / "curves.png",
        sections,
        VARIANTS,
        lambda common: f"N {common[0]:,}",
        height=380,
        values=np.exp,
        ylabel="perplexity of masked words",
        yscale="log",
    )


def table_rows(runs: list[dict]) -> list[list[object]]:
    """One row a variant that was measured, in the order of ``VARIANTS``."""
    measured = by_variant(runs, VARIANTS)
    perplexities = {name: mean(run["perplexity"] for run in each) for name, each in measured.items()}
    full = perplexities.get("full")
    return [
        [
            VARIANTS[name].title,
            each[0]["slots"] or "–",
            f"{perplexities[name]:.1f}",
            "–" if full is None else f"{perplexities[name] / full:.3f}",
            " / ".join(f"{run['perplexity']:.1f}" for run in each),
            each[0]["parameters"],
            round(mean(run["processor_seconds"] for run in each)),
        ]
        for name, each in measured.items()
    ]


def lengths_of(numbers: str, tokens: int) -> list[int]:
    """Lengths of rows, of which a step and the texts held out have at least one, and K at least one slot."""
    most = min(tokens, SCORED)
    for number in numbers.split(","):
        if not number.isdecimal() or not 8 <= int(number) <= most:
            raise typer.BadParameter(f"{number!r} is no number from 8 to {most}", param_hint="--lengths")
    return [int(number) for number in numbers.split(",")]


def main(
    data: Annotated[Path, typer.Option(help="Parquet file with a column text", exists=True)],
    output: Annotated[Path, typer.Option(help="folder of the results")],
    lengths: Annotated[str, typer.Option(help="tokens N of a row")] = "512,1024",
    variants: Annotated[str, typer.Option(help="kinds of attention")] = ",".join(VARIANTS),
    seeds: int = 1,
    steps: int = 2500,
    tokens: Annotated[int, typer.Option(help="of a step, all rows together")] = 2048,
    threads: int = 1,
    device: str = "cpu",
) -> None:
    """Train each kind of attention at each length with each seed, unless it was done before, and report all of them."""
    torch.set_num_threads(threads)
    settings = [
        {"length": length, "batch": tokens // length, "steps": steps, "variant": variant, "seed": seed}
        for seed, length, variant in itertools.product(
            range(seeds), lengths_of(lengths, tokens), chosen(variants, VARIANTS, "--variants")
        )
    ]
    corpus = Corpus(data)
    run_all(
        settings,
        lambda setting: train(corpus, setting, device),
        partial(report, output=output),
        output / "runs.jsonl",
    )


if __name__ == "__main__":
    typer.run(main)

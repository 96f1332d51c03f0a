"""Pretrained models trained on labelled documents, beside each other: the same recipe, steps or minutes, and seeds.

    python benchmarks/fine_tuned.py --data folder --models all-MiniLM-L6-v2,imdb-k128,imdb-k64 --sets imdb-longest \\
        --lengths 512 --max-steps 110 --output tuned

The folder is that of ``documents.py``, whose sets these are, and two more:

- ``imdb-longest``: is a review of a film positive? Of the longest quarter of the reviews, 2,000 to learn from.
- ``sst2-all``: is a phrase of a review positive? All of SST-2, scored on its part for development.

A model is a folder of ours, or a pretrained encoder, which then has its own full attention. It is trained as by
``linformer train --from MODEL --train-encoder``, which keeps it as it was where that is better. Each run becomes a
folder of the output, and a finished one is not repeated, so that several calls may share the seeds. results.md has the
accuracy on held-out documents of words, of the model and of both, of each seed, and the standard error of their mean;
that of a single score, from so many held-out documents, stands below.
"""

import json
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import pandas as pd
import typer

from documents import SETS, Parts, imdb, write_set
from learning import chosen, write_results
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.cli.options import positive_numbers
from torch_linformer.models import LinformerConfig
from torch_linformer.opening.devices import resolve_device
from torch_linformer.opening.model_folder import load_any_config
from torch_linformer.opening.run_folder import write_model
from torch_linformer.reporting.report import markdown_table
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import TrainSettings

PARTS = {
    "accuracy": "accuracy",
    "words_accuracy": "words alone",
    "model_accuracy": "the model alone",
}


def longest_reviews(data: Path) -> Parts:
    """Of the longest quarter of both parts 2,000 reviews to learn from, and 1,500 held out."""
    longest = [part[part.text.str.len() >= part.text.str.len().quantile(0.75)] for part in imdb(data)]
    known, held_out = (
        part.sample(min(most, len(part)), random_state=0) for part, most in zip(longest, (2000, 1500), strict=True)
    )
    return known, held_out


def all_of_sst2(data: Path) -> Parts:
    return pd.read_parquet(data / "sst2_train.parquet"), pd.read_parquet(data / "sst2_dev.parquet")


LABELED = {
    "authors": SETS["authors"],
    "imdb-longest": longest_reviews,
    "imdb": SETS["imdb"],
    "sst2-all": all_of_sst2,
}


def run_folder(output: Path, name: str, model: str, length: int, seed: int) -> Path:
    return output / f"{name}-{Path(model).name}-{length}-{seed}"


def scores_of(folder: Path) -> dict[str, Any]:
    """What a run has left; the model alone is what was trained, or what it was before where that is better."""
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return found | {"model_accuracy": found.get("network_accuracy", found.get("reader_accuracy"))}


def of_seeds(values: list[float]) -> str:
    """The mean, the standard error of it, and each value."""
    each = " / ".join(f"{value:.4f}" for value in values)
    error = f" ± {stdev(values) / len(values) ** 0.5:.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{error} ({each})"


def first_model(path: str, output: Path) -> str:
    """A folder that ``--from`` takes; that of an encoder of another package is made."""
    if isinstance(load_any_config(path), LinformerConfig):
        return path
    folder = output / f"{Path(path).name}-twin"
    if not folder.exists():
        encoder = load_encoder(path)
        folder.mkdir(parents=True)
        write_model(encoder.model, encoder.tokenizer, folder)
    return str(folder)


def report(runs: list[tuple[str, str, int, list[Path]]], output: Path, device: str) -> None:
    """Write results.md, of what is finished."""
    rows, errors = [], {}
    for name, model, length, folders in runs:
        found = [scores_of(folder) for folder in folders if (folder / "metrics.json").exists()]
        if not found:
            continue
        scores = [of_seeds([each[part] for each in found]) for part in PARTS]
        speed = mean(each["training_tokens_per_second"] for each in found)
        seconds = mean(each["train_seconds"] for each in found)
        rows.append((name, Path(model).name, f"{length:,}", *scores, f"{speed:,.0f}", f"{seconds:,.0f}"))
        right, documents = mean(each["accuracy"] for each in found), found[0]["documents"]["test"]
        errors[name] = f"- `{name}`: {(right * (1 - right) / documents) ** 0.5:.4f}, of {documents:,} documents"
    columns = ("set", "model", "tokens read", *PARTS.values(), "tokens/s", "seconds")
    text = "Accuracy on held-out documents: mean ± its standard error over seeds (each seed)."
    single = "\n".join(["Standard error of a single score:\n", *errors.values()])
    write_results(output, [text, markdown_table(columns, rows), single], device)


def main(
    data: Annotated[Path, typer.Option(help="folder of the data, see the head of this file")],
    models: Annotated[str, typer.Option(help="folders of models, comma-separated")],
    output: Annotated[Path, typer.Option(help="folder of the sets, the runs and the results")],
    sets: Annotated[str, typer.Option(help=", ".join(LABELED))] = "imdb-longest",
    lengths: Annotated[str, typer.Option(help="tokens read of a document")] = "512",
    seeds: Annotated[str, typer.Option(help="of the documents for validation, the order and the dropout")] = "1,2,3",
    max_steps: Annotated[int | None, typer.Option(help="steps of each run")] = None,
    minutes: Annotated[float | None, typer.Option(help="or minutes, of the fitted head too")] = None,
    batch_size: Annotated[int, typer.Option(help="documents a step")] = 8,
    freeze_layers: Annotated[int, typer.Option(help="lowest layers that stay as they are")] = 0,
    learning_rate: Annotated[float | None, typer.Option(help="peak; else that of linformer train --from")] = None,
    validation: Annotated[str, typer.Option(help="fraction of the training documents")] = "0.1",
    device: Annotated[str, typer.Option()] = "auto",
) -> None:
    """Train each model on each set at each length, unless it was done before, and report all of it."""
    device, first_models = resolve_device(device), [first_model(path, output) for path in models.split(",")]
    numbers = positive_numbers("--seeds", seeds)
    groups = list(product(chosen(sets, LABELED, "--sets"), first_models, positive_numbers("--lengths", lengths)))
    runs = [(*group, [run_folder(output, *group, seed) for seed in numbers]) for group in groups]
    for seed, (name, model, length) in product(numbers, groups):
        files = write_set(output, name, partial(LABELED[name], data))
        settings = TrainSettings(
            data=str(files[0]),
            test=str(files[1]),
            validation=validation,
            from_model=model,
            train_encoder=True,
            max_length=length,
            max_steps=max_steps,
            minutes=minutes,
            batch_size=batch_size,
            freeze_layers=freeze_layers,
            learning_rate=learning_rate,
            patience=0,
            seed=seed,
            baseline=False,
            probe=False,
            device=device,
            output=str(run_folder(output, name, model, length, seed)),
        )
        train(settings, resume=True)
        report(runs, output, device)


if __name__ == "__main__":
    typer.run(main)

"""Pretrained models trained on labelled documents, beside each other: the same recipe, steps or minutes, and seeds.

    python benchmarks/fine_tuned.py --data folder --models all-MiniLM-L6-v2,imdb-k128,imdb-k64 --sets imdb-longest \\
        --lengths 512 --max-steps 110 --output tuned

Folder, sets and models are those of ``frozen_heads.py``, whose heads such a training begins with (``linformer train
--from``). Each run becomes a folder of the output, and a finished one is not repeated, so that several calls may share
the seeds. results.md has the accuracy on held-out documents with and without the lexical head, of each seed, and the
standard error of their mean; that of a single score, from so many held-out documents, stands below.
"""

import json
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Annotated, Any

import typer

from documents import write_set
from frozen_heads import LABELED, first_model
from learning import chosen, write_results
from torch_linformer.cli.options import positive_numbers
from torch_linformer.opening.devices import resolve_device
from torch_linformer.reporting.report import markdown_table
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import TrainSettings

PARTS = {
    "rest_accuracy": "accuracy without the lexical head",
    "accuracy": "with it",
    "lexical_accuracy": "it alone",
}


def run_folder(output: Path, name: str, model: str, length: int, seed: int) -> Path:
    return output / f"{name}-{Path(model).name}-{length}-{seed}"


def scores_of(folder: Path) -> dict[str, Any]:
    """What a run has left; its accuracy without a lexical head is that of a model that keeps none."""
    found = json.loads((folder / "metrics.json").read_text(encoding="utf-8"))
    return {"rest_accuracy": found["accuracy"]} | found


def of_seeds(values: list[float]) -> str:
    """The mean, the standard error of it, and each value."""
    each = " / ".join(f"{value:.4f}" for value in values)
    error = f" ± {stdev(values) / len(values) ** 0.5:.4f}" if len(values) > 1 else ""
    return f"{mean(values):.4f}{error} ({each})"


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

"""What pretrained models make of the first tokens of documents, by the best head on them: ``--freeze``, several times.

    python benchmarks/frozen_heads.py --data folder --models adapted --sets authors,imdb-longest --output heads
    python benchmarks/frozen_heads.py --data folder --models original,adapted --sets sst2-all --lengths 128 \\
        --output heads

The folder is that of ``documents.py``, whose sets these are, and two more:

- ``imdb-longest``: is a review of a film positive? Of the longest quarter of the reviews, 2,000 to learn from.
- ``sst2-all``: is a phrase of a review positive? All of SST-2, scored on its part for development.

A model is a folder of ours, or a pretrained encoder, which then has its own full attention. Each reads every document
once at each length, and the head is fitted and chosen for several draws of the documents for validation, as ``linformer
train --freeze`` does with several seeds. Beside them stands TF-IDF with a linear classifier of whole documents.
results.md has the mean accuracy on held-out documents and, in brackets, how far the draws are apart; the error of so
many held-out documents is larger than that, and stands beside the difference from the first row of a set.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import numpy as np
import pandas as pd
import torch
import typer
from datasets import Dataset
from torch import Tensor
from torch_linformer.training.fitted_head import best_head, pooled_states

from documents import SETS, Parts, imdb, write_set
from learning import chosen, run_all, write_results
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.cli.options import positive_numbers
from torch_linformer.data.parts import parse_part, split_documents
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.model_folder import load_any_config, load_tokenizer
from torch_linformer.opening.run_folder import write_model
from torch_linformer.reporting.report import markdown_table
from torch_linformer.tasks.tallies import paired_difference
from torch_linformer.tasks.whole_documents import Classification
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.initial_model import build_model
from torch_linformer.training.prepared import new_task
from torch_linformer.training.splits import load_splits
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.trainer import quiet_arguments

TFIDF = "TF-IDF"


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


def settings_of(files: list[Path], **given: Any) -> TrainSettings:
    return TrainSettings(data=str(files[0]), test=str(files[1]), task="classify", **given)


def tfidf(files: list[Path]) -> dict[str, Any]:
    """The run of TF-IDF, which reads whole documents."""
    settings = settings_of(files)
    splits = load_splits(settings)
    task = Classification(cast(Any, None), splits.names)
    begin = time.perf_counter()
    found = task.baselines(splits.train, splits.validation, splits.test, settings.seed)["tfidf"]
    return {"tallies": [found["tallies"]["accuracy"]], "seconds": time.perf_counter() - begin}


def head_run(files: list[Path], folder: str, length: int, seeds: int, device: str) -> dict[str, Any]:
    """Read with a model, and fit a head for each draw of the documents for validation."""
    settings = settings_of(files, from_model=folder, max_length=length, freeze=True)
    tokenizer, splits, first = load_tokenizer(folder), load_splits(settings), FirstModel.of(settings)
    task = new_task(settings, first, tokenizer, splits.names, splits.train)
    model = cast(LinformerForSequenceClassification, build_model(settings, first, task, tokenizer, splits))
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as scratch:
        precision = resolve_precision("auto", device)
        arguments = quiet_arguments(Path(scratch), batch_size=8, device=device, precision=precision)
        trainer = DocumentTrainer(model=model, args=arguments, task=task)
        known = load_documents(settings.data).dataset
        states, wanted = states_and_labels(trainer, known, length)
        unseen, labels = states_and_labels(trainer, splits.test, length)
    seconds = time.perf_counter() - begin
    numbered = known.select_columns("label").add_column("number", list(range(len(known))))
    tallies = []
    for seed in range(seeds):
        parts = split_documents(numbered, cast(float, parse_part(settings.validation)), seed)
        learned, validation = (part["number"][:] for part in parts)
        weight, bias, _, _ = best_head(
            states[learned], wanted[learned], states[validation], wanted[validation], model.num_labels, model.loss_of
        )
        right = (unseen @ weight.T + bias).argmax(dim=-1) == labels
        tallies.append([[float(each), 1.0] for each in right])
    return {"tallies": tallies, "seconds": seconds}


def states_and_labels(trainer: DocumentTrainer, documents: Dataset, length: int) -> tuple[Tensor, Tensor]:
    """What the head reads of each document, and the documents' labels."""
    examples = trainer.task.examples(documents, trainer.task.encoder(length))
    windows = cast(Dataset, examples.windows)
    return pooled_states(trainer, windows), torch.tensor(windows["labels"][:])


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


def report(runs: list[dict[str, Any]], output: Path, device: str) -> None:
    """Write results.md."""
    rows = []
    first: dict[str, np.ndarray] = {}
    for run in sorted(runs, key=lambda run: list(LABELED).index(run["set"])):
        tallies = np.array(run["tallies"])
        each = tallies[..., 0].mean(axis=1)
        mean = tallies.mean(axis=0)
        beside = first.setdefault(run["set"], mean)
        more, error = paired_difference(mean, beside)
        rows.append(
            (
                run["set"],
                run["model"],
                f"{run['length']:,}" if run["length"] else "all",
                f"{each.mean():.4f}" + (f" ({each.std(ddof=1):.4f})" if len(each) > 1 else ""),
                f"{more:+.4f} ± {error:.4f}" if beside is not mean else None,
                f"{run['seconds']:.0f}",
            )
        )
    columns = ("set", "model", "tokens read", "accuracy", "beside the first", "seconds")
    text = "Accuracy on held-out documents, mean of several draws for validation (their standard deviation)."
    write_results(output, [text, markdown_table(columns, rows)], device)


def main(
    data: Annotated[Path, typer.Option(help="folder of the data, see the head of this file")],
    models: Annotated[str, typer.Option(help="folders of models, comma-separated")],
    output: Annotated[Path, typer.Option(help="folder of the sets and the results")],
    sets: Annotated[str, typer.Option(help=", ".join(LABELED))] = "authors,imdb-longest",
    lengths: Annotated[str, typer.Option(help="tokens read of a document")] = "512,1024,4096",
    seeds: Annotated[int, typer.Option(help="draws of the documents for validation")] = 3,
    device: Annotated[str, typer.Option()] = "auto",
) -> None:
    """Read each set with each model at each length, unless it was done before, and report all of it."""
    device, folders = resolve_device(device), {Path(path).name: first_model(path, output) for path in models.split(",")}
    settings = []
    for name in chosen(sets, LABELED, "--sets"):
        settings.append({"set": name, "model": TFIDF, "length": None})
        for length in positive_numbers("--lengths", lengths):
            settings += [{"set": name, "model": model, "length": length} for model in folders]

    def run(setting: dict[str, Any]) -> dict[str, Any]:
        files = write_set(output, setting["set"], partial(LABELED[setting["set"]], data))
        if setting["model"] == TFIDF:
            return setting | tfidf(files)
        return setting | head_run(files, folders[setting["model"]], setting["length"], seeds, device)

    run_all(settings, run, lambda runs: report(runs, output, device), output / "runs.jsonl")


if __name__ == "__main__":
    typer.run(main)

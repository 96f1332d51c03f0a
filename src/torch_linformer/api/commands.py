"""``linformer train``, ``adapt``, ``evaluate`` and ``export`` as functions: the same options, and objects back."""

import dataclasses
import inspect
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import run_adaptation
from torch_linformer.adaptation.adaptation_report import RESULT
from torch_linformer.api.calls import AdaptCall, EvaluateCall, PathOrName, TrainCall, called_as
from torch_linformer.api.run import Run
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.distributed import processes
from torch_linformer.inference.evaluate import evaluate as score_folder
from torch_linformer.inference.export import FILES, export_model
from torch_linformer.reporting.screen import Screen
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.training.run_options import check_names, settings_of
from torch_linformer.training.train import train as run_training
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen


class Exported(NamedTuple):
    """A model as one file, and the largest difference of its scores from the model's, relative to the largest score."""

    file: Path
    difference: float


@called_as(TrainCall)
def train(
    data: PathOrName = "stdlib", *, resume: bool = False, screen: TrainingScreen | None = None, **options: Any
) -> Run:
    """Train a model and score it on documents that it never saw, as ``linformer train``.

    Args:
        data: CSV, TSV, JSON, CoNLL, Parquet, a folder, or the name of a dataset.
        resume: go on with an interrupted run of the same options.
        screen: where progress is shown; on standard output if None.
        options: those of ``linformer train``, with underscores: ``task``, ``max_length``, ``k``, ``minutes``,
            ``output``, …; ``from_model`` is ``--from``.

    Returns:
        The run, with its model, tokenizer, scores and folder, ``runs/NAME OF THE DATA`` unless ``output`` is given.

    Raises:
        TypeError: an unknown option.
        InputError: for anything wrong with the options, the data or the folder, in one line.

    Example:
        >>> import torch_linformer
        >>> run = torch_linformer.train("posts.csv", max_length=512, minutes=10)  # doctest: +SKIP
        >>> run.scores  # doctest: +SKIP
        {'accuracy': 0.91, 'macro_f1': 0.87}
        >>> torch_linformer.Predictor(run)(["The parcel never came."])  # doctest: +SKIP
        [{'label': 'complaint', 'probabilities': {...}, 'tokens': 7, 'cut': False}]
    """
    settings = settings_of(TrainSettings, {"data": data, **options}, "train")
    folder = run_training(settings, resume=resume, command=_call("train", data, options), screen=screen)
    result = processes.on_main(lambda: _read(folder / "metrics.json"))
    # Tags that are numbers spell no entities, and have no F1.
    return Run(folder, {name: result[name] for name in HEADLINES[settings.task] if name in result}, result)


@called_as(AdaptCall)
def adapt(
    source: PathOrName,
    data: PathOrName,
    *,
    resume: bool = False,
    screen: TrainingScreen | None = None,
    **options: Any,
) -> Run:
    """Make a pretrained encoder linear by a distillation on texts, as ``linformer adapt``.

    Args:
        source: folder of an encoder of transformers or sentence-transformers, or its name on the hub.
        data: texts without labels, such as those that the model is to read.
        resume: go on with an interrupted adaptation of the same options.
        screen: where progress is shown; on standard output if None.
        options: those of ``linformer adapt``, with underscores: ``max_length``, ``k``, ``window``, ``minutes``, ….

    Returns:
        The run, with its model, tokenizer and folder, and scores that say how close the model is to its original.

    Raises:
        TypeError: an unknown option.
        InputError: for anything wrong with the source, the options, the texts or the folder, in one line.

    Example:
        >>> import torch_linformer
        >>> run = torch_linformer.adapt("all-MiniLM-L6-v2", "posts.csv", max_length=4096, minutes=30)  # doctest: +SKIP
        >>> torch_linformer.Embedder(run)(["The parcel never came."]).shape  # doctest: +SKIP
        (1, 384)
    """
    settings = settings_of(AdaptSettings, {"data": data, **options}, "adapt")
    command = _call("adapt", source, {"data": os.fspath(data), **options})
    folder = run_adaptation(os.fspath(source), settings, resume=resume, command=command, screen=screen)
    result = processes.on_main(lambda: _read(folder / RESULT))
    return Run(folder, result["end"], result)


@called_as(EvaluateCall)
def evaluate(
    model: PathOrName, data: PathOrName, *, documents: PathOrName | None = None, **options: Any
) -> dict[str, Any]:
    """Score a trained model on documents of its task, as ``linformer evaluate``.

    Args:
        model: its folder, or a :class:`Run`.
        data: documents with labels, as for :func:`train`.
        documents: of an embedder, the table in which its queries search.
        max_errors: skip up to this many unreadable rows.
        max_length: tokens read of a document; all that the model reads if None.
        overflow: how longer documents are read: ``cut`` or ``windows``.
        stride: tokens that neighboring windows share; a quarter of a window if None.
        batch_size: documents computed at once.
        device: ``auto`` takes a GPU if there is one.
        precision: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        screen: where notes on the data are shown.
        options: ``text_column``, ``label_column``, ``delimiter``, … of the command, with underscores.

    Returns:
        Every score by its name, and ``documents``, how many there were.

    Raises:
        TypeError: an unknown option.
        InputError: for anything wrong with the model, the data or the options, in one line.

    Example:
        >>> import torch_linformer
        >>> torch_linformer.evaluate("runs/posts", "more.csv")["accuracy"]  # doctest: +SKIP
        0.89
    """
    check_names(options, inspect.signature(EvaluateCall).parameters, "evaluate")
    names = {item.name for item in dataclasses.fields(DataOptions)}
    reading = {name: options.pop(name) for name in names & options.keys()}
    documents = None if documents is None else os.fspath(documents)
    _, scores = score_folder(
        os.fspath(model), os.fspath(data), documents=documents, options=DataOptions(**reading), **options
    )
    return scores


def export(
    model: PathOrName, output: PathOrName | None = None, *, format: str = "onnx", screen: Screen | None = None
) -> Exported:
    """Write a model as one file for onnxruntime or torch, as ``linformer export``.

    Args:
        model: its folder, or a :class:`Run`.
        output: the folder to make; ``MODEL-FORMAT`` if None.
        format: ``onnx`` or ``torch``.
        screen: where progress is shown; on standard output if None.

    Returns:
        The file, and how far its scores are from the model's at most.

    Raises:
        InputError: an unknown format, missing packages, a model that no single file can hold, or scores that differ.

    Example:
        >>> import torch_linformer
        >>> torch_linformer.export("runs/posts").file  # doctest: +SKIP
        PosixPath('runs/posts-onnx/model.onnx')
    """
    name = os.fspath(model)
    folder = Path(f"{name.rstrip('/')}-{format}" if output is None else output)
    difference = export_model(name, folder, format, screen)
    return Exported(folder / FILES[format], difference)


def _call(function: str, first: PathOrName, options: Mapping[str, Any]) -> str:
    """The call as it is written, for reports."""
    rest = "".join(f", {name}={value!r}" for name, value in options.items())
    return f"torch_linformer.{function}({os.fspath(first)!r}{rest})"


def _read(file: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return content

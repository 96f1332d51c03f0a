"""A trained model scored on documents with labels, by the code that scores a run at its end."""

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

from torch_linformer.data.labels import check_labels, check_one_hot, name_labels
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.windows import with_text
from torch_linformer.errors import InputError
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.folder import trained_columns
from torch_linformer.opening.load import load_model, load_tokenizer, read_length
from torch_linformer.opening.sentence_transformers import AS_THEY_ARE, document_vectors, sentence_settings
from torch_linformer.reporting.screen import Screen
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.tasks.tagging import NUMBERED, NumberedTagging
from torch_linformer.tasks.task import Task
from torch_linformer.tasks.whole_documents import MultiLabel
from torch_linformer.training.task_trainers import trainer_for
from torch_linformer.training.trainer import quiet_arguments


def evaluate(
    folder: str,
    data: str,
    *,
    documents: str | None = None,
    options: DataOptions = NO_OPTIONS,
    max_errors: int = 0,
    max_length: int | None = None,
    overflow: str = "cut",
    stride: int | None = None,
    batch_size: int = 16,
    device: str = "auto",
    precision: str = "auto",
    seed: int = 0,
    screen: Screen | None = None,
) -> tuple[Task, dict[str, Any]]:
    """Score the model in ``folder`` on ``data``, all labels of which it must know; returns its task and the scores.

    ``documents`` is the table in which an embedder's queries search, and ``max_length`` the tokens read of a document,
    all that the model reads if None.
    """
    screen = screen or Screen()
    device = resolve_device(device)
    precision = resolve_precision(precision, device)
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    task = task_of(model, tokenizer, seed)
    settings = sentence_settings(folder) if isinstance(task, Retrieval) else AS_THEY_ARE
    if isinstance(task, Retrieval):
        task.vectors, task.prompt = document_vectors(folder, model.config).to(device), settings.prompt()
    options = dataclasses.replace(options, trained=trained_columns(folder))
    read = task.load(data, documents, options, part="test", max_errors=max_errors)
    for note in read.notes:
        screen.say(note)
    scored = read.dataset
    if isinstance(task, MultiLabel) and not read.names:
        if options.label_column in task.names:
            raise InputError(f"--label-column {options.label_column}: one label of several; name two columns at least")
        check_one_hot(scored, data, task.names)
    if task.names:
        scored = name_labels(scored, task.names, several=isinstance(task, MultiLabel))
        check_labels(task.names, scored, data)
    if missing := sorted({*task.names} - {*read.names}) if read.names else []:
        screen.say(f"labels without a column are not scored: {', '.join(missing)}")
        scored = scored.map(lambda unknown: {"unknown": [*unknown, *missing]}, input_columns=["unknown"])
    if isinstance(task, NumberedTagging):
        screen.say(NUMBERED)
    longest = settings.longest(read_length(model.config))
    if max_length is not None and max_length > longest:
        raise InputError(f"--max-length {max_length}: {folder} reads {longest} tokens at most")
    encoder = task.encoder(max_length or longest, overflow=overflow, stride=stride)
    scored = with_text(scored, encoder, screen.say)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = quiet_arguments(Path(scratch), batch_size=batch_size, device=device, precision=precision)
        trainer = trainer_for(task, model)(model=model, args=arguments, task=task)
        scores = trainer.scores_of(task.examples(scored, encoder))
    scores.pop("tallies", None)  # of each document
    return task, {**scores, "documents": len(scored)}

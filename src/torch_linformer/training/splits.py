"""The three parts of a run's documents: training, validation (picks the checkpoint) and test (scored once)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from datasets import Dataset

from torch_linformer.data.labels import (
    alike_labels,
    are_numbers,
    check_known,
    check_labels,
    check_one_hot,
    check_repeated,
    label_names,
    missed_labels,
    name_labels,
)
from torch_linformer.data.parts import GROUP, content_digest, find_overlap, parse_part, split_documents
from torch_linformer.data.reading.documents import Documents
from torch_linformer.errors import InputError
from torch_linformer.tasks.registry import TASKS
from torch_linformer.tasks.tagging import NUMBERED, divided_otherwise
from torch_linformer.training.train_settings import TrainSettings

# The shares of the documents where nobody names parts.
DEFAULTS = {"validation": TrainSettings.validation, "test": TrainSettings.test}


@dataclass(frozen=True)
class Splits:
    """Datasets with the columns of the task's record; the names of its labels, if any; notes for the screen.

    ``warnings`` stand beside the scores too; ``repeats`` counts documents with the text of another one; ``digest``
    differs where the documents of any part do.
    """

    train: Dataset
    validation: Dataset
    test: Dataset
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    repeats: dict[str, int] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)
    digest: str = ""


def load_splits(settings: TrainSettings) -> Splits:
    """Load and split the documents of a run.

    Validation is a part of the training documents; the test documents are taken out first.

    Raises:
        InputError: for anything that is wrong with the data (see :mod:`torch_linformer.data.reading.documents`).
    """
    documents = _load(settings, settings.data)
    notes = list(documents.notes)
    if settings.task == "classify":
        check_repeated(documents.dataset, settings.data, documents.columns.get("label"))
    names: list[str] = []  # of the labels, in the order of the outputs: those that the user gives, or those there are
    if least := TASKS[settings.task].least_labels:
        names = list(documents.names) or label_names(documents.dataset, least)
        if documents.names:
            check_known(documents.dataset, names, settings.data)
        if settings.label_names is not None:
            names = settings.names
            check_labels(names, documents.dataset, settings.data, "which --label-names does not name")
    train, test = _part(settings, documents.dataset, "test", notes, documents.parts)
    train, validation = _part(settings, train, "validation", notes, documents.parts)
    if names:
        for part, source in ((validation, settings.validation), (test, settings.test)):
            check_labels(names, part, settings.data if isinstance(parse_part(source), float) else source)
    parts = {"training": train, "validation": validation, "test": test}
    overlap = find_overlap(parts)
    warnings = [*overlap.warnings, *alike_labels(names)]
    for name in ("validation", "test") if settings.task == "classify" else ():
        if name in documents.parts or not isinstance(parse_part(getattr(settings, name)), float):
            warnings += missed_labels(names, parts[name], name)
    if settings.task == "token-classify":
        warnings += [NUMBERED] if are_numbers(names) else []
        notes += divided_otherwise(train)
    digest = content_digest(parts)
    return Splits(train, validation, test, names, notes, warnings, overlap.repeats, documents.columns, digest)


def _load(settings: TrainSettings, source: str, part: str = "train") -> Documents:
    """The documents of a source, with the names that the user gives for their labels."""
    task, options = TASKS[settings.task], settings.reading
    documents = task.load(source, settings.documents, options, part=part, max_errors=settings.max_errors)
    dataset, several = documents.dataset, settings.task == "multilabel"
    if several and not documents.names:
        check_one_hot(dataset, source, settings.names)
    if settings.names:
        dataset = name_labels(dataset, settings.names, several=several)
    return dataclasses.replace(documents, dataset=dataset)


def _part(
    settings: TrainSettings, train: Dataset, name: str, notes: list[str], parts: Sequence[str]
) -> tuple[Dataset, Dataset]:
    """``train`` without the part ``name``, and the part; a part from a file of its own takes nothing from ``train``."""
    source = parse_part(getattr(settings, name))
    if name in parts and getattr(settings, name) == DEFAULTS[name]:
        try:
            documents = _load(settings, settings.data, name)
        except InputError as problem:
            raise InputError(f"{name}: {problem}; --data may name one file of the folder") from None
        notes.extend(f"{name}: {note}" for note in documents.notes if note not in notes)
        return train, documents.dataset
    if isinstance(source, float):
        together = GROUP if GROUP in train.column_names else TASKS[settings.task].together
        stratified = settings.task in ("classify", "embed")
        return split_documents(train, source, settings.seed, stratified=stratified, together=together)
    documents = _load(settings, source)
    notes.extend(f"{name}: {note}" for note in documents.notes)
    return train, documents.dataset

"""The three parts of a run's documents: training, validation (picks the checkpoint) and test (scored once)."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field

from datasets import Dataset

from torch_linformer.data.overlap import find_overlap
from torch_linformer.data.reading.documents import (
    Documents,
    check_labels,
    check_repeated,
    label_names,
    parse_part,
    split_documents,
)
from torch_linformer.data.reading.options import DataOptions
from torch_linformer.tasks.registry import TASKS
from torch_linformer.training.train_settings import TrainSettings

# The shares of the documents where nobody names parts.
DEFAULTS = {
    item.name: item.default for item in dataclasses.fields(TrainSettings) if item.name in ("validation", "test")
}


@dataclass(frozen=True)
class Splits:
    """Datasets with the columns of the task's record; the names of its labels, if any; notes for the screen.

    ``warnings`` stand beside the scores too; ``repeats`` counts documents with the text of another one.
    """

    train: Dataset
    validation: Dataset
    test: Dataset
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    repeats: dict[str, int] = field(default_factory=dict)
    columns: dict[str, str] = field(default_factory=dict)


def load_splits(settings: TrainSettings) -> Splits:
    """Load and split the documents of a run.

    Validation is a part of the training documents; the test documents are taken out first.

    Raises:
        InputError: for anything that is wrong with the data (see :mod:`torch_linformer.data.reading.documents`).
    """
    documents = _load(settings, settings.data)
    notes = list(documents.notes)
    least = TASKS[settings.task].least_labels
    names = list(documents.names) or (label_names(documents.dataset, least) if least else [])
    if settings.task == "classify":
        check_repeated(names, documents.dataset, settings.data)
    train, test = _part(settings, documents.dataset, "test", notes, documents.parts)
    train, validation = _part(settings, train, "validation", notes, documents.parts)
    if names:
        for part, source in ((validation, settings.validation), (test, settings.test)):
            check_labels(names, part, settings.data if isinstance(parse_part(source), float) else source)
    overlap = find_overlap({"to train on": train, "for validation": validation, "held out": test})
    return Splits(train, validation, test, names, notes, overlap.warnings, overlap.repeats, documents.columns)


def _load(settings: TrainSettings, source: str, part: str = "train") -> Documents:
    options = DataOptions.of(settings)
    return TASKS[settings.task].load(source, settings.documents, options, part=part, max_errors=settings.max_errors)


def _part(
    settings: TrainSettings, train: Dataset, name: str, notes: list[str], parts: Sequence[str]
) -> tuple[Dataset, Dataset]:
    """``train`` without the part ``name``, and the part; a part from a file of its own takes nothing from ``train``."""
    source = parse_part(getattr(settings, name))
    if name in parts and getattr(settings, name) == DEFAULTS[name]:
        documents = _load(settings, settings.data, name)
        notes.extend(f"{name}: {note}" for note in documents.notes if note not in notes)
        return train, documents.dataset
    if isinstance(source, float):
        return split_documents(train, source, settings.seed, stratified=settings.task in ("classify", "embed"))
    documents = _load(settings, source)
    notes.extend(f"{name}: {note}" for note in documents.notes)
    return train, documents.dataset

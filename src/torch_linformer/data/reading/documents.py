"""Documents and their labels as one memory-mapped `datasets.Dataset`, wherever they come from.

Every source is read row by row into an Arrow file in the cache of `datasets`, so nothing has to fit into
memory. The file is used again while the source, the columns and the code that reads them stay the same.
"""

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from datasets.utils import logging as datasets_logging

from torch_linformer.data.reading.columns import NOT_NAMED, USUAL, ChosenColumns, NamedColumns, find_columns, is_number
from torch_linformer.data.reading.readers import SAMPLE_ROWS, ReadReport
from torch_linformer.data.reading.records import LABELED, Record
from torch_linformer.data.reading.sources import DocumentSource, find_source
from torch_linformer.errors import InputError

READING = Path(__file__).parent  # the code that reads documents: this file and all beside it
_WRITER_BATCH = 64  # rows in memory at once while writing; a row may be a book
_FEW = 10  # with so few documents each may well have its own label
_LISTED_LABELS = 20  # labels an error message lists

_Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Documents:
    """The documents of one source.

    Attributes:
        dataset: memory-mapped, with the column "text" and those of the record.
        name: a short name, for the folder of a run: "reviews" for data/reviews.csv.
        notes: sentences for the screen: what was taken from where, what was skipped or replaced.
    """

    dataset: Dataset
    name: str
    notes: list[str]


def load_documents(
    source: str, record: Record = LABELED, *, named: NamedColumns = NOT_NAMED, split: str = "train"
) -> Documents:
    """Load documents from a file or folder (formats: `readers`), "stdlib", or a data set of the hub.

    Columns that are not named are recognized (`find_columns`). Documents without text are skipped.

    Args:
        source: a path; or "stdlib", the source files of this Python's standard library; or, if there is no
            such path, a name on the Hugging Face hub, `name` or `owner/name`, perhaps with `:configuration`.
        record: what is read of each row.
        named: the columns that the user has named.
        split: the part of a data set of the hub.
    """
    needs_label = bool(record.features)
    origin = find_source(source, split, whole=needs_label)
    sample = list(islice(origin.rows(ReadReport()), SAMPLE_ROWS))
    if not sample:
        raise InputError(f"{source}: holds no rows")
    if origin.note and record.usual.called != USUAL.called:
        one, two = record.usual.called
        raise InputError(f"{source}: holds only texts; give a table with a {one} and a {two} column")
    if origin.note and needs_label and not any("label" in row.values for row in sample):
        raise InputError(f"{source}: no labels; put the files of each label into a folder named after it")
    columns = find_columns(
        sample, source, named, usual=record.usual, needs_label=needs_label, several_labels=record.several_labels
    )
    dataset, empty, replaced = _store(origin, record, columns)
    if not len(dataset):
        raise InputError(f"{source}: no row of the {empty:,} has any text in column {columns.text!r}")
    notes = [origin.note or columns.reason]
    if empty:
        notes.append(f"skipped {_count(empty)} without text")
    if replaced:
        notes.append(f"{_count(replaced)} with bytes that are not UTF-8; U+FFFD stands in for each such byte")
    return Documents(dataset, origin.name, notes)


def parse_part(value: str) -> float | str:
    """PATH|FRACTION: a number between 0 and 1 is a share of the training data, anything else a path."""
    try:
        fraction = float(value)
    except ValueError:
        if value.strip():
            return value
        raise InputError("no part of the data is named: give a fraction above 0 and below 1, or a path") from None
    if not 0 < fraction < 1:
        raise InputError(f"{value} is no part of the data: give a fraction above 0 and below 1, or a path")
    return fraction


def split_documents(dataset: Dataset, fraction: float, seed: int, stratified: bool = True) -> tuple[Dataset, Dataset]:
    """Split off about `fraction` of the documents: (the rest, the part split off), both in their old order.

    Stratified, each label gives its share, rounded so that the total is right, and keeps at least one document. The
    same arguments give the same split.
    """
    generator = np.random.default_rng(seed)
    if stratified and "label" in dataset.column_names:
        _, groups = np.unique(dataset.select_columns("label")[:]["label"], return_inverse=True)
    else:
        groups = np.zeros(len(dataset), dtype=np.int64)
    members = [np.flatnonzero(groups == group) for group in range(groups.max(initial=-1) + 1)]
    quotas = _quotas(np.array([len(indices) for indices in members]), fraction)
    away = [generator.permutation(indices)[:quota] for indices, quota in zip(members, quotas, strict=True)]
    held_out = np.sort(np.concatenate([np.empty(0, dtype=np.int64), *away]))
    if not len(held_out):
        raise InputError(f"cannot split {_count(len(dataset))}: give more, or a file for each part")
    return dataset.select(np.setdiff1d(np.arange(len(dataset)), held_out)), dataset.select(held_out)


def label_names(dataset: Dataset, at_least: int = 2) -> list[str]:
    """The distinct labels, one or several a document: by number if all are whole numbers, otherwise by alphabet."""
    names = sorted({label for labels in _label_lists(dataset) for label in labels})
    if len(names) < at_least:
        found = f"every document has the label {names[0]!r}" if names else "no document has a label"
        raise InputError(f"{found}: a classifier needs {('one label', 'two labels')[at_least - 1]} at least")
    if all(re.fullmatch(r"-?\d+", name) for name in names):
        names.sort(key=int)
    return names


def check_labels(names: list[str], dataset: Dataset, source: str) -> None:
    """Raise an `InputError` if `dataset`, read from `source`, holds a label that is not in `names`."""
    holding = Counter(label for labels in _label_lists(dataset) for label in set(labels))
    for label, number in sorted(holding.items()):
        if label not in names:
            known = ", ".join(names[:_LISTED_LABELS]) + (", …" if len(names) > _LISTED_LABELS else "")
            what = f"{_count(number)} with label {label!r}, which no training document has"
            raise InputError(f"{source}: {what} ({known})")


def check_repeated(names: list[str], dataset: Dataset, source: str) -> None:
    """Raise an `InputError` if most of the documents of `dataset` have a label of their own, and it is a number."""
    if len(dataset) >= _FEW and 2 * len(names) > len(dataset) and all(map(is_number, names)):
        raise InputError(
            f"{source}: {len(names):,} different numbers as the labels of {_count(len(dataset))}: "
            "--task regress learns numbers, --task classify needs several documents of each label"
        )


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the progress bars and the log of `datasets` off the screen; afterwards both are as before."""
    had_bars, verbosity = not are_progress_bars_disabled(), datasets_logging.get_verbosity()
    disable_progress_bars()
    datasets_logging.set_verbosity_error()
    try:
        yield
    finally:
        datasets_logging.set_verbosity(verbosity)
        if had_bars:
            enable_progress_bars()


def _store(source: DocumentSource, record: Record, columns: ChosenColumns) -> tuple[Dataset, int, int]:
    """The documents in an Arrow file, perhaps from the cache; how many were empty, and how many had bytes replaced.

    Both marks are stored with each row, so that a cached file gives the counts as well.
    """
    features = {"text": Value("string"), "empty": Value("bool"), "replaced": Value("bool"), **record.features}
    code = [file.read_text(encoding="utf-8") for file in sorted(READING.rglob("*.py"))]
    try:
        with quiet():
            dataset = Dataset.from_generator(
                lambda: _records(source, record, columns),
                features=Features(features),
                fingerprint=Hasher.hash([source.version, tuple(columns), str(features), code]),
                writer_batch_size=_WRITER_BATCH,
            )
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None
    empty, replaced = (dataset.data.column(name).to_numpy() for name in ("empty", "replaced"))
    dataset = dataset.remove_columns(["empty", "replaced"])
    return dataset.select(np.flatnonzero(~empty)) if empty.any() else dataset, int(empty.sum()), int(replaced.sum())


def _records(source: DocumentSource, record: Record, columns: ChosenColumns) -> Iterator[dict[str, object]]:
    report = ReadReport()
    replaced = 0
    for row in source.rows(report):
        values = record.read(row, columns)
        yield {**values, "empty": not values["text"], "replaced": report.replaced > replaced}
        replaced = report.replaced


def _quotas(sizes: _Ints, fraction: float) -> _Ints:
    """How many members each group gives, by largest remainder; no group gives its last member."""
    shares = sizes * fraction
    quotas = np.floor(shares).astype(np.int64)
    missing = max(1, round(shares.sum())) - quotas.sum()
    quotas[np.argsort(quotas - shares, kind="stable")[:missing]] += 1
    limited: _Ints = np.minimum(quotas, sizes - 1)
    return limited


def _label_lists(dataset: Dataset) -> list[list[str]]:
    """The labels of each document, one or several."""
    labels = dataset.select_columns("label")[:]["label"]
    return [each if isinstance(each, list) else [each] for each in labels]


def _count(number: int) -> str:
    return f"{number:,} document{'' if number == 1 else 's'}"

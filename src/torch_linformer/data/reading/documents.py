"""Documents and their labels as one memory-mapped `datasets.Dataset`, wherever they come from.

Every source is read row by row into an Arrow file in the cache of `datasets`, so nothing has to fit into
memory. The file is used again while the source, the columns and the code that reads them stay the same.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from datasets import Dataset, Features, Value
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from datasets.utils import logging as datasets_logging

from torch_linformer.data.reading.columns import NOT_NAMED, USUAL, ChosenColumns, NamedColumns, find_columns
from torch_linformer.data.reading.readers import SAMPLE_ROWS, ReadReport
from torch_linformer.data.reading.records import LABELED, Record
from torch_linformer.data.reading.sources import DocumentSource, find_source
from torch_linformer.errors import InputError

READING = Path(__file__).parent  # the code that reads documents: this file and all beside it
_WRITER_BATCH = 64  # rows in memory at once while writing; a row may be a book


@dataclass(frozen=True)
class Documents:
    """The documents of one source.

    Attributes:
        dataset: memory-mapped, with the column "text" and those of the record.
        name: a short name, for the folder of a run: "reviews" for data/reviews.csv.
        notes: sentences for the screen: what was taken from where, what was skipped or replaced.
        label_column: where the labels come from, if they come from a column.
    """

    dataset: Dataset
    name: str
    notes: list[str]
    label_column: str | None = None


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
    return Documents(dataset, origin.name, notes, None if origin.note else columns.label)


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


def _count(number: int) -> str:
    return f"{number:,} document{'' if number == 1 else 's'}"

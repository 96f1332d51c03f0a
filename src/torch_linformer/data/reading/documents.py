"""Documents and their labels as one memory-mapped `datasets.Dataset`, wherever they come from.

Every source is read row by row into an Arrow file in the cache of `datasets`, so nothing has to fit into memory. The
file is used again while the source, the columns and the code that reads them stay the same.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Any
from uuid import uuid4

import datasets
import numpy as np
import pyarrow
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from datasets.utils import logging as datasets_logging

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.records import (
    LABELED,
    NULL,
    USUAL,
    ChosenColumns,
    Record,
    find_columns,
    joined_sentences,
)
from torch_linformer.data.reading.rows import SAMPLE_ROWS, Row, counted, located, some_of
from torch_linformer.data.reading.sources import STDLIB, DocumentSource, find_source
from torch_linformer.errors import InputError

READING = Path(__file__).parent  # the code that reads documents: this file and all beside it
_WRITER_BATCH = 64  # rows in memory at once while writing; a row may be a book
_WHOLE = re.compile(r"-?\d+(\.0+)?")
_LABELS = (Value("string"), ListOf(Value("string")))  # the features of labels that are no numbers
_SHOWN = 3  # rows that cannot be read that an error message lists


@dataclass(frozen=True)
class Documents:
    """The documents of one source.

    Attributes:
        dataset: memory-mapped, with the column "text" and those of the record, and "group" if its column is named.
        notes: sentences for the screen: what was taken from where, what was skipped or replaced.
        columns: those of a table that hold the texts, the labels and the questions.
        parts: the parts of a data set that the source has, beside the one that was read.
        names: the labels there are, where the user has named a column for each.
    """

    dataset: Dataset
    notes: list[str]
    columns: dict[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


@dataclass
class _Noticed:
    """What was noticed of the rows of a source, which is kept beside its documents."""

    empty: int = 0
    replaced: int = 0
    bad: int = 0
    problems: list[str] = field(default_factory=list)  # the first of the bad rows
    notes: list[str] = field(default_factory=list)


def load_documents(
    source: str,
    record: Record = LABELED,
    *,
    options: DataOptions = NO_OPTIONS,
    part: str = "train",
    max_errors: int = 0,
) -> Documents:
    """Load documents from a file or folder (formats: `sources`), "stdlib", or a data set of the hub.

    Columns that are not named are recognized (`find_columns`). Documents without text are skipped.

    Args:
        source: a path; or "stdlib", the source files of this Python's standard library; or, if there is no
            such path, a name on the Hugging Face hub, `name` or `owner/name`, perhaps with `:configuration`.
        record: what is read of each row.
        options: what the user says of the data.
        part: the part of a data set that is in several.
        max_errors: so many rows that cannot be read are left out.

    Raises:
        InputError: there is nothing to read, or more rows cannot be read; the message has the first of them.
    """
    needs_label = bool(record.features)
    origin = find_source(source, part, options, whole=needs_label, labeled=needs_label)
    noticed = _Noticed()
    rows = origin.rows(noticed.notes.append)
    good, seen = sample_of(rows)
    if not good:
        raise located(seen[0]) if seen else InputError(f"{source}: holds no rows")
    is_table = any(row.kind != "text" for row in good)
    if not is_table and record.usual.called != USUAL.called:
        one, two = record.usual.called
        raise InputError(f"{source}: holds only texts; give a table with a {one} and a {two} column")
    if not is_table and needs_label and not any("label" in row.values for row in good):
        table = ", or name a table .csv or .tsv, words with tags .conll" if Path(source).is_file() else ""
        raise InputError(f"{source}: no labels; put the files of each label into a folder named after it{table}")
    columns = find_columns(good, source, options, record, needs_label=needs_label)
    dataset, noticed = _stored(origin, chain(seen, rows), record, columns, noticed)
    first = "; ".join(noticed.problems)
    if noticed.bad > max_errors:
        if noticed.bad == 1:
            raise InputError(first)
        more = f"; and {noticed.bad - _SHOWN:,} more" if noticed.bad > _SHOWN else ""
        count = f"{noticed.bad:,} of {len(dataset) + noticed.empty + noticed.bad:,} rows cannot be read"
        raise InputError(f"{source}: {count}: {first}{more}; --max-errors {noticed.bad} leaves them out")
    if not len(dataset):
        raise InputError(f"{source}: no row of the {noticed.empty:,} has any text in column {columns.text!r}")
    notes = [*dict.fromkeys(noticed.notes), *filter(None, [columns.reason if is_table else origin.note])]
    if columns.sentence is not None:
        notes.append(f"one word a row: sentences by column {columns.sentence!r}")
    if noticed.empty:
        notes.append(f"skipped {counted(noticed.empty)} without text")
    if noticed.replaced:
        notes.append(f"{counted(noticed.replaced)} with half a character, a lone surrogate; U+FFFD stands in for it")
    if noticed.bad:
        notes.append(f"left out {counted(noticed.bad, 'row')} that cannot be read: {first}")
    if record.features.get("label") in _LABELS:
        dataset = _without_fractions(dataset)
    names: tuple[str, ...] = ()
    if record.several_labels:
        label = columns.label or ""
        names = tuple(label.split(",")) if "," in label and not any(label in row.values for row in good) else ()
        dataset = _with_known_labels(dataset, label, names, source, notes)
    used = columns.used if is_table and source != STDLIB else {}
    return Documents(dataset, notes, used, tuple(name for name in origin.parts if name != part), names)


def sample_of(rows: Iterable[Row]) -> tuple[list[Row], list[Row]]:
    """The first rows that can be read, and all that there are up to the last of them."""
    good, seen = list[Row](), list[Row]()
    for row in rows:
        seen.append(row)
        if not isinstance(row.values, InputError):
            good.append(row)
        if len(good) == SAMPLE_ROWS:
            break
    return good, seen


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


def _stored(
    source: DocumentSource, rows: Iterable[Row], record: Record, columns: ChosenColumns, noticed: _Noticed
) -> tuple[Dataset, _Noticed]:
    """The documents in an Arrow file, perhaps from the cache, and what was noticed of their rows."""
    group = {} if columns.group is None else {"group": Value("string")}
    features = Features({"text": Value("string"), **record.features, **group})
    code = [file.read_text(encoding="utf-8") for file in sorted(READING.rglob("*.py"))]
    key = hashlib.sha256(repr((source.version, columns, features, code)).encode()).hexdigest()[:32]
    folder = Path(datasets.config.HF_DATASETS_CACHE, "documents")
    path = folder / f"{key}.arrow"
    # Files that a table names may have changed: what was read of them is known by its content.
    if columns.folder is not None or not path.with_suffix(".json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        unfinished = folder / f"{key}.{uuid4().hex}"  # of this process, which may not be the only one
        try:
            with pyarrow.RecordBatchStreamWriter(str(unfinished), features.arrow_schema) as writer:
                documents = _documents(rows, record, columns, noticed)
                while batch := list(islice(documents, _WRITER_BATCH)):
                    writer.write_batch(pyarrow.RecordBatch.from_pylist(batch, features.arrow_schema))
            if columns.folder is not None:
                with unfinished.open("rb") as content:
                    key = hashlib.file_digest(content, "sha256").hexdigest()[:32]
                path = folder / f"{key}.arrow"
            unfinished.replace(path)
            unfinished.write_text(json.dumps(asdict(noticed)), encoding="utf-8")
            unfinished.replace(path.with_suffix(".json"))
        finally:
            unfinished.unlink(missing_ok=True)
    dataset = Dataset.from_file(str(path))
    dataset._fingerprint = key
    return dataset, _Noticed(**json.loads(path.with_suffix(".json").read_text(encoding="utf-8")))


def _documents(
    rows: Iterable[Row], record: Record, columns: ChosenColumns, noticed: _Noticed
) -> Iterator[dict[str, Any]]:
    """The record of each row that has text; the others are counted, and the first problems kept."""
    for row in joined_sentences(rows, columns):
        try:
            if isinstance(row.values, InputError):
                raise row.values
            document = record.read(row, columns)
            if document["text"] and columns.group is not None:
                document["group"] = columns.group_of(row)
        except InputError as problem:
            noticed.bad += 1
            if len(noticed.problems) < _SHOWN:
                noticed.problems.append(str(located(row, problem)))
            continue
        noticed.empty += not document["text"]
        noticed.replaced += row.replaced
        if document["text"]:
            yield document


def _with_known_labels(dataset: Dataset, column: str, names: Sequence[str], source: str, notes: list[str]) -> Dataset:
    """The documents of which some label is known; ``notes`` are told of labels that are not."""
    unknown = dataset["unknown"][:]
    if not names:
        written = Counter(cell for row in unknown for cell in row)
        if nulls := written.pop(NULL, 0):
            if nulls == len(dataset):
                raise InputError(f"{source}: no row has labels in column {column!r}: all are null")
            notes.append(f"left out {counted(nulls)} of which {column!r} is null; [] says that there is none")
            dataset = dataset.select([number for number, row in enumerate(unknown) if NULL not in row])
        notes.extend(f"column {column!r} holds {cell!r} in {count:,} rows: no label" for cell, count in written.items())
        return dataset
    known = np.flatnonzero([len(row) < len(names) for row in unknown])
    if not len(known):
        raise InputError(f"{source}: all cells in the columns of the labels ({', '.join(names)}) are empty")
    if len(known) < len(dataset):
        notes.append(f"left out {counted(len(dataset) - len(known))} of which no label is known")
        dataset = dataset.select(known)
    having, missing = label_counts(dataset)
    if missing:
        counts = [f"{name}: {missing[name]:,} of {len(dataset):,} rows unknown" for name in names if missing[name]]
        notes.append(f"empty cells are neither learned nor scored; {some_of(counts)}")
    for name in names:
        if not having[name] and missing[name] < len(dataset):
            notes.append(f"no document has the label {name!r}, whose column holds only zeros: it is learned as such")
    return dataset


def label_counts(dataset: Dataset) -> tuple[Counter[str], Counter[str]]:
    """How many documents have each of several labels, and of how many it is unknown whether they do."""
    having, unknown = (Counter(name for row in dataset[column][:] for name in row) for column in ("label", "unknown"))
    return having, unknown


def _without_fractions(dataset: Dataset) -> Dataset:
    """Labels that are all whole numbers, some of them with a fraction of 0 as pandas writes them, without it."""
    labels = {label for labels in dataset["label"][:] for label in (labels if isinstance(labels, list) else [labels])}
    if not any("." in label for label in labels) or not all(map(_WHOLE.fullmatch, labels)):
        return dataset

    def whole(label: Any) -> Any:
        return [whole(item) for item in label] if isinstance(label, list) else label.partition(".")[0]

    with quiet():
        return dataset.map(lambda label: {"label": whole(label)}, input_columns=["label"])

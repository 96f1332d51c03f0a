"""Documents and their labels as one memory-mapped `datasets.Dataset`, wherever they come from.

Every source is read row by row into an Arrow file in the cache of `datasets`, so nothing has to fit into
memory. The file is used again while the source, the columns and the code that reads them stay the same.
"""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.exceptions import DatasetGenerationError
from datasets.fingerprint import Hasher
from datasets.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars
from datasets.utils import logging as datasets_logging

from torch_linformer.data.reading.columns import USUAL, ChosenColumns, find_columns
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.delimited import joined_sentences, sentence_column
from torch_linformer.data.reading.records import LABELED, NULL, Record
from torch_linformer.data.reading.rows import SAMPLE_ROWS, ReadReport, Row
from torch_linformer.data.reading.sources import STDLIB, DocumentSource, find_source
from torch_linformer.errors import InputError

READING = Path(__file__).parent  # the code that reads documents: this file and all beside it
_WRITER_BATCH = 64  # rows in memory at once while writing; a row may be a book
_WHOLE = re.compile(r"-?\d+(\.0+)?")
_LABELS = (Value("string"), ListOf(Value("string")))  # the features of labels that are no numbers
_SHOWN = 3  # rows that cannot be read that an error message lists
_LISTED = 20  # labels in a note


@dataclass(frozen=True)
class Documents:
    """The documents of one source.

    Attributes:
        dataset: memory-mapped, with the column "text" and those of the record, and "group" if its column is named.
        name: a short name, for the folder of a run: "reviews" for data/reviews.csv.
        notes: sentences for the screen: what was taken from where, what was skipped or replaced.
        columns: those of a table that hold the texts, the labels and the questions.
        parts: the parts of a data set that the source has, beside the one that was read.
        names: the labels there are, where the user has named a column for each.
    """

    dataset: Dataset
    name: str
    notes: list[str]
    columns: dict[str, str] = field(default_factory=dict)
    parts: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def load_documents(
    source: str,
    record: Record = LABELED,
    *,
    options: DataOptions = NO_OPTIONS,
    part: str = "train",
    max_errors: int = 0,
) -> Documents:
    """Load documents from a file or folder (formats: `readers`), "stdlib", or a data set of the hub.

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
    sample = _sample(origin)
    if not sample:
        raise InputError(f"{source}: holds no rows")
    is_table = any(row.of_table for row in sample) and origin.name != STDLIB
    if not is_table and record.usual.called != USUAL.called:
        one, two = record.usual.called
        raise InputError(f"{source}: holds only texts; give a table with a {one} and a {two} column")
    if not is_table and needs_label and not any("label" in row.values for row in sample):
        table = ", or name a table .csv or .tsv, words with tags .conll" if Path(source).is_file() else ""
        raise InputError(f"{source}: no labels; put the files of each label into a folder named after it{table}")
    columns = find_columns(
        sample, source, options, usual=record.usual, needs_label=needs_label, several_labels=record.several_labels
    )
    sentence = sentence_column(sample, columns, source) if record.of_words and is_table else None
    stored = _store(origin, record, columns, sentence)
    _check_errors(stored.problems, len(stored.dataset), source, max_errors)
    if not len(stored.dataset):
        raise InputError(f"{source}: no row of the {stored.empty:,} has any text in column {columns.text!r}")
    notes = [*stored.notes, *filter(None, [columns.reason if is_table else origin.note])]
    if sentence is not None:
        notes.append(f"one word a row: sentences by column {sentence!r}")
    if stored.empty:
        notes.append(f"skipped {_count(stored.empty)} without text")
    if stored.replaced:
        notes.append(f"{_count(stored.replaced)} with half a character, a lone surrogate; U+FFFD stands in for it")
    if stored.problems:
        rows = f"{len(stored.problems):,} row{'' if len(stored.problems) == 1 else 's'}"
        notes.append(f"left out {rows} that cannot be read: {'; '.join(stored.problems[:_SHOWN])}")
    label = columns.label or ""
    several = record.several_labels and "," in label and label not in sample[0].values
    names = tuple(label.split(",")) if several else ()
    dataset = _without_fractions(stored.dataset) if record.features.get("label") in _LABELS else stored.dataset
    if names:
        dataset = _with_known_labels(dataset, names, source, notes)
    elif record.several_labels:
        written = Counter(cell for row in dataset["unknown"][:] for cell in row)
        if unknown := written.pop(NULL, 0):
            if unknown == len(dataset):
                raise InputError(f"{source}: no row has labels in column {label!r}: all are null")
            notes.append(f"left out {_count(unknown)} of which {label!r} is null; [] says that there is none")
            dataset = dataset.select([i for i, row in enumerate(dataset["unknown"][:]) if NULL not in row])
        notes.extend(f"column {label!r} holds {cell!r} in {count:,} rows: no label" for cell, count in written.items())
    return Documents(
        dataset,
        origin.name,
        notes,
        columns.used if is_table else {},
        tuple(name for name in origin.parts if name != part),
        names,
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


class _Stored(NamedTuple):
    """Documents in an Arrow file; how many were empty or had characters replaced; what could not be read; notes."""

    dataset: Dataset
    empty: int
    replaced: int
    problems: list[str]
    notes: list[str]


def _sample(origin: DocumentSource) -> list[Row]:
    """The first rows that can be read; if there are none, the first problem is raised."""
    problems: list[InputError] = []
    report = ReadReport(on_bad=lambda where, problem: problems.append(problem))
    sample = list(islice(origin.rows(report), SAMPLE_ROWS))
    if problems and not sample:
        raise problems[0]
    return sample


def _store(source: DocumentSource, record: Record, columns: ChosenColumns, sentence: str | None) -> _Stored:
    """The documents in an Arrow file, perhaps from the cache.

    What was noticed of each row is stored with it, so that a cached file tells it as well.
    """
    marks = {"empty": Value("bool"), "replaced": Value("bool"), "problem": Value("string"), "note": Value("string")}
    features = {"text": Value("string"), **record.features, **marks}
    if columns.group is not None:
        features["group"] = Value("string")
    key = [sentence, str(features), [file.read_text(encoding="utf-8") for file in sorted(READING.rglob("*.py"))]]
    try:
        with quiet():
            dataset = Dataset.from_generator(
                lambda: _records(source, record, columns, sentence, list(features)),
                features=Features(features),
                fingerprint=Hasher.hash([source.version, tuple(columns), _file_states(source, columns), *key]),
                writer_batch_size=_WRITER_BATCH,
            )
    except DatasetGenerationError as error:
        raise (error.__cause__ or error) from None
    empty, replaced = (dataset.data.column(name).to_numpy() for name in ("empty", "replaced"))
    told = {name: dataset.data.column(name).drop_null().to_pylist() for name in ("problem", "note")}
    unread = ~dataset.data.column("problem").is_null().to_numpy() | ~dataset.data.column("note").is_null().to_numpy()
    dataset = dataset.remove_columns(list(marks))
    if (empty | unread).any():
        dataset = dataset.select(np.flatnonzero(~(empty | unread)))
    return _Stored(dataset, int(empty.sum()), int(replaced.sum()), told["problem"], told["note"])


def _file_states(source: DocumentSource, columns: ChosenColumns) -> list[object]:
    """What tells whether a file has changed of which the text column has the name."""
    if columns.files is None:
        return []
    rows = source.rows(ReadReport(on_bad=lambda where, problem: None))
    return [columns.files.state(row.cell(columns.text)) for row in rows]


def _records(
    source: DocumentSource, record: Record, columns: ChosenColumns, sentence: str | None, names: list[str]
) -> Iterator[dict[str, object]]:
    nothing: dict[str, object] = {**dict.fromkeys(names), "empty": False, "replaced": False}
    problems: list[str] = []
    report = ReadReport(on_bad=lambda where, problem: problems.append(str(problem)))
    rows, replaced = source.rows(report), 0
    if sentence is not None:
        rows = joined_sentences(rows, columns, sentence)
    for row in rows:
        try:
            values = record.read(row, columns)
            group = {"group": columns.group_of(row)} if columns.group is not None and values["text"] else {}
            marks = {"empty": not values["text"], "replaced": report.replaced > replaced}
            yield {**nothing, **values, **group, **marks}
        except InputError as problem:
            problems.append(str(problem))
        replaced = report.replaced
        yield from ({**nothing, "problem": problem} for problem in problems)
        problems.clear()
    yield from ({**nothing, "problem": problem} for problem in problems)
    yield from ({**nothing, "note": note} for note in report.notes)


def _check_errors(problems: list[str], documents: int, source: str, most: int) -> None:
    """Raise an `InputError` with the first rows that could not be read, if there are more than ``most``."""
    if len(problems) <= most:
        return
    if len(problems) == 1:
        raise InputError(problems[0])
    more = f"; and {len(problems) - _SHOWN:,} more" if len(problems) > _SHOWN else ""
    raise InputError(
        f"{source}: {len(problems):,} of {documents + len(problems):,} rows cannot be read: "
        f"{'; '.join(problems[:_SHOWN])}{more}; --max-errors {len(problems)} leaves them out"
    )


def _with_known_labels(dataset: Dataset, names: Sequence[str], source: str, notes: list[str]) -> Dataset:
    """The documents of which some label is known; ``notes`` are told of labels that are not."""
    known = np.flatnonzero([len(unknown) < len(names) for unknown in dataset["unknown"][:]])
    if len(known) < len(dataset):
        if not len(known):
            raise InputError(f"{source}: all cells in the columns of the labels ({', '.join(names)}) are empty")
        notes.append(f"left out {_count(len(dataset) - len(known))} of which no label is known")
        dataset = dataset.select(known)
    having, unknown = (Counter(name for row in dataset[column][:] for name in row) for column in ("label", "unknown"))
    if unknown:
        counts = [f"{name}: {unknown[name]:,} of {len(dataset):,} rows unknown" for name in names if unknown[name]]
        more = f", … ({len(counts):,} labels in all)" if counts[_LISTED:] else ""
        notes.append(f"empty cells are neither learned nor scored; {', '.join(counts[:_LISTED])}{more}")
    for name in names:
        if not having[name] and unknown[name] < len(dataset):
            notes.append(f"no document has the label {name!r}, whose column holds only zeros: it is learned as such")
    return dataset


def _without_fractions(dataset: Dataset) -> Dataset:
    """Labels that are all whole numbers, some of them with a fraction of 0 as pandas writes them, without it."""
    labels = {label for labels in dataset["label"][:] for label in (labels if isinstance(labels, list) else [labels])}
    if not any("." in label for label in labels) or not all(map(_WHOLE.fullmatch, labels)):
        return dataset

    def whole(label: Any) -> Any:
        return [whole(item) for item in label] if isinstance(label, list) else label.partition(".")[0]

    with quiet():
        return dataset.map(lambda label: {"label": whole(label)}, input_columns=["label"])


def _count(number: int) -> str:
    return f"{number:,} document{'' if number == 1 else 's'}"

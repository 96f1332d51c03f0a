"""Where documents can come from: a file, a folder, the standard library of Python, the Hugging Face hub."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
from datasets import ClassLabel
from datasets.fingerprint import Hasher
from huggingface_hub import HfApi, constants

from torch_linformer.data.reading.corpus import stdlib_documents
from torch_linformer.data.reading.readers import ReadReport, folder_files, iter_rows, shard_suffix, unreadable
from torch_linformer.data.reading.text_files import TABLE_SUFFIXES, Row
from torch_linformer.errors import InputError, first_line

STDLIB = "stdlib"
_HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(:(?P<config>\w[\w.-]*))?")
_FILE_SUFFIXES = (*TABLE_SUFFIXES, ".txt", ".md")
_HUB_TIMEOUT = 10  # seconds


@dataclass(frozen=True)
class DocumentSource:
    """A source that can be read again and again.

    Attributes:
        name: a short name, for the folder of a run.
        rows: starts reading again; the report it is given is kept up to date.
        version: differs whenever the rows might.
        note: a description for the screen, if the user did not name its columns; None for a table.
    """

    name: str
    rows: Callable[[ReadReport], Iterator[Row]]
    version: object
    note: str | None = None


def find_source(source: str, split: str, *, whole: bool = True) -> DocumentSource:
    """Find what `source` names: "stdlib", an existing path, or else the part `split` of a hub data set.

    Unless they are to be `whole`, long files of text come in pieces (`iter_rows`).
    """
    if source == STDLIB:
        documents, description = stdlib_documents()
        return DocumentSource(STDLIB, lambda report: iter(documents), Hasher.hash(documents), description)
    path, hub_name = Path(source), _HUB_NAME.fullmatch(source)
    if hub_name and not os.path.exists(source) and path.suffix.lower() not in _FILE_SUFFIXES:
        return _hub(source, hub_name["name"], hub_name["config"], split)
    return _local(path, whole)


def _local(path: Path, whole: bool) -> DocumentSource:
    iter_rows(path)  # raises if there is nothing
    if not (path.is_file() or path.is_dir()):
        raise InputError(f"{path}: neither a file nor a folder, and read more than once; save it to a file")
    try:
        files = [file for _, file in folder_files(path)] if path.is_dir() else [path]
        states = [file.stat() for file in files]
    except OSError as error:
        raise unreadable(error.filename, error) from None
    version = [(str(file.resolve()), at.st_size, at.st_mtime_ns) for file, at in zip(files, states, strict=True)]
    note = None
    if path.is_dir() and shard_suffix(files) is None:
        note = f"{len(files):,} files of {path}" + (", labeled with the names of their folders" if whole else "")
    elif path.is_file() and path.suffix.lower() not in TABLE_SUFFIXES:
        note = f"{path} as one document" if whole else f"{path} as text"
    name = path.resolve().name if path.is_dir() else path.stem
    return DocumentSource(name, lambda report: iter_rows(path, report, whole=whole), version, note)


def ask_hub(kind: str, name: str) -> None:
    """Ask the Hugging Face hub once for a "dataset" or "model" of that name; raises what the hub raises.

    The loaders of its libraries would try again for half a minute where there is no network. In offline mode
    (HF_HUB_OFFLINE=1) nothing is asked, and the loaders look into their caches.
    """
    if not constants.HF_HUB_OFFLINE:
        HfApi().repo_info(name, repo_type=kind, timeout=_HUB_TIMEOUT)


def _hub(source: str, name: str, config: str | None, split: str) -> DocumentSource:
    try:
        ask_hub("dataset", name)
        dataset = datasets.load_dataset(name, config, split=split)
    except Exception as error:  # the hub, the network and the builders share no base class of errors
        nowhere = "no such file or folder, nor within reach as a Hugging Face data set"
        raise InputError(f"{source}: {nowhere} ({first_line(error)})") from None
    classes = {column: found for column, kind in dataset.features.items() if (found := _class_label(kind))}

    def rows(report: ReadReport) -> Iterator[Row]:
        for number, values in enumerate(dataset, start=1):
            labels = {column: _class_name(kind, values[column]) for column, kind in classes.items()}
            yield Row({**values, **labels}, f"{source}, row {number}")

    return DocumentSource(name.rpartition("/")[2], rows, dataset._fingerprint)


def _class_label(kind: Any) -> ClassLabel | None:
    """The classes of a column of class numbers, or of lists of them."""
    kind = getattr(kind, "feature", kind)
    return kind if isinstance(kind, ClassLabel) else None


def _class_name(classes: Any, number: Any) -> Any:
    if isinstance(number, list):
        return [_class_name(classes, each) for each in number]
    return None if number is None or number < 0 else classes.int2str(number)  # -1 marks a missing label

"""Where documents come from: a file, a folder, the standard library of Python, the Hugging Face hub."""

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import datasets
from datasets.fingerprint import Hasher
from huggingface_hub import HfApi, constants

from torch_linformer.data.reading.columns import listed
from torch_linformer.data.reading.corpus import stdlib_documents
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.formats import (
    COMPRESSED_SUFFIXES,
    TABLE_SUFFIXES,
    FolderFile,
    entries,
    file_stem,
    folder_files,
    parts_of,
    unreadable,
)
from torch_linformer.data.reading.parquet import ClassNames
from torch_linformer.data.reading.readers import iter_parts
from torch_linformer.data.reading.rows import ReadReport, Row
from torch_linformer.errors import InputError, first_line

STDLIB = "stdlib"
_HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(:(?P<config>\w[\w.-]*))?")
_URL = re.compile(r"\w+://.+")
_FILE_SUFFIXES = (*TABLE_SUFFIXES, *COMPRESSED_SUFFIXES, ".txt", ".md")
_HUB_TIMEOUT = 10  # seconds


@dataclass(frozen=True)
class DocumentSource:
    """A source that can be read again and again.

    Attributes:
        name: a short name, for the folder of a run.
        rows: starts reading again; the report it is given is kept up to date.
        version: differs whenever the rows might.
        note: a description for the screen, if the rows are of no table.
        parts: the parts of a data set that are there, "train" among them; empty where there is only one.
    """

    name: str
    rows: Callable[[ReadReport], Iterator[Row]]
    version: object
    note: str | None = None
    parts: tuple[str, ...] = ()


def find_source(
    source: str, part: str = "train", options: DataOptions = NO_OPTIONS, *, whole: bool = True, labeled: bool = False
) -> DocumentSource:
    """Find what `source` names: "stdlib", an existing path, or else a data set of the hub; of one in parts, `part`.

    Unless they are to be `whole`, long files of text come in pieces; `labeled` are those whose folders are their labels
    (`iter_rows`).
    """
    if source == STDLIB:
        documents, description = stdlib_documents()
        return DocumentSource(STDLIB, lambda report: iter(documents), Hasher.hash(documents), description)
    if _URL.fullmatch(source):
        raise InputError(f"{source}: addresses are not opened; download the file and name it")
    path, hub_name = Path(source), _HUB_NAME.fullmatch(source)
    if hub_name and not os.path.exists(source) and path.suffix.lower() not in _FILE_SUFFIXES:
        return _hub(source, hub_name["name"], hub_name["config"], part)
    return _local(path, part, options, whole, labeled)


def _local(path: Path, part: str, options: DataOptions, whole: bool, labeled: bool) -> DocumentSource:
    try:
        path.stat()
        if not (path.is_file() or path.is_dir()):
            raise InputError(f"{path}: neither a file nor a folder, and read more than once; save it to a file")
        parts = parts_of(path) if path.is_dir() else {}
        if parts and part not in parts:
            raise InputError(
                f"{path}: no part {part!r} among its parts {', '.join(parts)}; name the file or folder to read"
            )
        chosen = parts.get(part, [path])
        files = [item for at in chosen for item in ([FolderFile(at, None)] if at.is_file() else folder_files(at))]
        states = [file.path.stat() for file in files]
    except OSError as error:
        raise unreadable(error.filename or path, error) from None
    version = [(str(file.path.resolve()), at.st_size, at.st_mtime_ns) for file, at in zip(files, states, strict=True)]
    notes = []
    if parts:
        names = ", ".join(f"{name} ({', '.join(entry.name for entry in entries)})" for name, entries in parts.items())
        notes.append(f"{path} holds the parts {names}")
        belonging = {entry for part_entries in parts.values() for entry in part_entries}
        others = [entry.name for entry in entries(path) if entry not in belonging]
        if others:
            notes.append(f"left out what is no part of {path}: {listed(others)}")

    def rows(report: ReadReport) -> Iterator[Row]:
        for note in notes:
            report.note(note)
        return iter_parts(chosen, report, options=options, whole=whole, labeled=labeled)

    described = f"{len(files):,} file{'' if len(files) == 1 else 's'} of {path}"
    if labeled:
        described = f"files of {path}, labeled with the names of their folders"
    if path.is_file():
        described = f"{path} as one document" if whole else ""
    name = path.resolve().name if path.is_dir() else file_stem(path)
    return DocumentSource(name, rows, (version, Hasher.hash(options)), described, tuple(parts))


def ask_hub(kind: str, name: str) -> None:
    """Ask the Hugging Face hub once for a "dataset" or "model" of that name; raises what the hub raises.

    The loaders of its libraries would try again for half a minute where there is no network. In offline mode
    (HF_HUB_OFFLINE=1) nothing is asked, and the loaders look into their caches.
    """
    if not constants.HF_HUB_OFFLINE:
        HfApi().repo_info(name, repo_type=kind, timeout=_HUB_TIMEOUT)


def _hub(source: str, name: str, config: str | None, part: str) -> DocumentSource:
    try:
        ask_hub("dataset", name)
        dataset = datasets.load_dataset(name, config, split=part)
    except Exception as error:  # the hub, the network and the builders share no base class of errors
        nowhere = "no such file or folder, nor within reach as a Hugging Face data set"
        raise InputError(f"{source}: {nowhere} ({first_line(error)})") from None
    classes = ClassNames.of_features(dataset.features)

    def rows(report: ReadReport) -> Iterator[Row]:
        for number, values in enumerate(dataset, start=1):
            where = f"{source}, row {number}"
            try:
                yield classes.named(values, where)
            except InputError as problem:
                report.leave_out(where, problem)

    return DocumentSource(name.rpartition("/")[2], rows, dataset._fingerprint)

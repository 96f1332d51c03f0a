"""Where rows come from: a file, a folder, standard input, the standard library of Python, the Hugging Face hub.

| what                            | one row                   | values                                               |
|---------------------------------|---------------------------|------------------------------------------------------|
| .csv .tsv                       | one line of the table     | the cells, as text, under the header's names         |
| .jsonl .ndjson                  | one line                  | the JSON object on it                                |
| .json                           | one line, or one object   | as above; other layouts: `readers` (read whole)      |
| .json of SQuAD                  | one question              | id, question, context, answers (read whole)          |
| .parquet                        | one row                   | the columns, class numbers by their names            |
| .conll .conllu .iob .iob2 .bio  | one document, or sentence | tokens, tags, other columns                          |
| a folder of tables              | one row of one of them    | as above; and label for a file inside `label/`       |
| any other folder                | one file                  | text, and label for a file inside `label/`           |
| any other file                  | the file                  | text; or as .conll, .tsv, if it is so without suffix |

A file with .gz, .bz2 or .zst after its suffix is read as the one without. Nothing is read before it is needed.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

from torch_linformer.data.reading.corpus import stdlib_documents
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.formats import (
    COMPRESSED_SUFFIXES,
    SNIFFED_BYTES,
    TABLE_SUFFIXES,
    File,
    FolderFile,
    decoded,
    entries,
    file_stem,
    file_suffix,
    find_encodings,
    folder_files,
    not_text,
    unreadable,
)
from torch_linformer.data.reading.readers import (
    PART_SUFFIXES,
    READERS,
    class_names,
    is_object,
    json_lines,
    named_row,
    read_whole,
    reader_of,
    text_rows,
)
from torch_linformer.data.reading.rows import LABEL_COLUMNS, Row, check_decoded, counted, known, listed
from torch_linformer.errors import InputError, first_line

STDLIB = "stdlib"
PARTS = {  # what the parts of a data set are called, as `datasets` recognizes them, and CoNLL-2003
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development", "testa"),
    "test": ("test", "testing", "eval", "evaluation", "testb"),
}
_FOLDER_OF_PART = re.compile(r"[a-z]+([-_.]\d+(-of-\d+)?)?", re.IGNORECASE)  # train, train-00000-of-00002
_BETWEEN_WORDS = re.compile(r"[-_. \d]+")  # of a file's name: reviews_train.csv, de_gsd-ud-dev.conllu, wiki.test.tokens
_OF_DATASETS = "dataset_info.json"  # beside the Arrow files that `save_to_disk` writes
_ABOUT_DATA = re.compile(r"(readme|licen[sc]e|copying|notice|citation|changelog|authors)\b.*", re.IGNORECASE)
_HUB_NAME = re.compile(r"(?P<name>\w[\w.-]*(/\w[\w.-]*)?)(:(?P<config>\w[\w.-]*))?")
_HUB_TIMEOUT = 10  # seconds

Note = Callable[[str], object]


@dataclass(frozen=True)
class DocumentSource:
    """A source that can be read again and again.

    Attributes:
        rows: starts reading again; it is given where to tell how files are read.
        version: differs whenever the rows might.
        note: a description for the screen, if the rows are of no table.
        parts: the parts of a data set that are there, "train" among them; empty where there is only one.
    """

    rows: Callable[[Note], Iterator[Row]]
    version: object
    note: str | None = None
    parts: tuple[str, ...] = ()


def find_source(
    source: str, part: str = "train", options: DataOptions = NO_OPTIONS, *, whole: bool = True, labeled: bool = False
) -> DocumentSource:
    """Find what `source` names: "stdlib", an existing path, or else a data set of the hub; of one in parts, `part`.

    Unless they are to be `whole`, long files of text come in pieces; `labeled` are those whose folders are their labels
    (`read_rows`).
    """
    if source == STDLIB:
        documents, description = stdlib_documents()
        return DocumentSource(lambda note: iter(documents), documents, description)
    if re.match(r"\w+://.", source):
        raise InputError(f"{source}: addresses are not opened; download the file and name it")
    path, hub = Path(source), _HUB_NAME.fullmatch(source)
    try:
        if (
            hub
            and not path.exists()
            and path.suffix.lower() not in (*TABLE_SUFFIXES, *COMPRESSED_SUFFIXES, ".txt", ".md")
        ):
            return _hub(source, hub["name"], hub["config"], part)
        path.stat()
        if not (path.is_file() or path.is_dir()):
            raise InputError(f"{path}: neither a file nor a folder, and read more than once; save it to a file")
        parts = parts_of(path) if path.is_dir() else {}
        if parts and part not in parts:
            raise InputError(
                f"{path}: no part {part!r} among its parts {', '.join(parts)}; name the file or folder to read"
            )
        chosen = parts.get(part, [path])
        files = [file.path for entry in chosen for file in folder_files(entry)]
        states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    except OSError as error:
        raise unreadable(error.filename or path, error) from None

    def rows(note: Note) -> Iterator[Row]:
        if parts:
            named = (f"{name} ({', '.join(entry.name for entry in parts[name])})" for name in parts)
            note(f"{path} holds the parts {', '.join(named)}")
            others = [entry.name for entry in entries(path) if entry not in chain(*parts.values())]
            if others:
                note(f"left out what is no part of {path}: {listed(others)}")
        return read_rows(chosen, options, note, whole=whole, labeled=labeled)

    described = f"{counted(len(files), 'file')} of {path}"
    if labeled:
        described = f"files of {path}, labeled with the names of their folders"
    if path.is_file():
        described = f"{path} as one document" if whole else ""
    return DocumentSource(rows, (states, options), described, tuple(parts))


def source_name(source: str) -> str:
    """A short name of a source, for the folder of a run: "reviews" for data/reviews.csv."""
    path, hub = Path(source), _HUB_NAME.fullmatch(source)
    if hub and not path.exists():
        return hub["name"].rpartition("/")[2]
    return path.resolve().name if path.is_dir() else file_stem(path)


def parts_of(root: Path) -> dict[str, list[Path]]:
    """The entries of each part of a folder that holds a data set in parts; empty for any other folder.

    It does where there is one for training and one for validation or test: folders, tables, or all of its texts.
    """
    inside = [entry for entry in entries(root) if not _ABOUT_DATA.fullmatch(entry.name)]
    files = [entry for entry in inside if entry.is_file()]
    texts = [entry for entry in files if file_suffix(entry) in (".txt", ".tokens")]
    tables = [entry for entry in files if file_suffix(entry) in (*TABLE_SUFFIXES, *PART_SUFFIXES)]
    folders = [entry for entry in inside if entry.is_dir() and _FOLDER_OF_PART.fullmatch(entry.name)]
    for candidates in (tables + folders, texts):
        parts: dict[str, list[Path]] = {}
        for entry in sorted(candidates):
            words = {*_BETWEEN_WORDS.split(entry.name.lower())}
            called = [part for part, names in PARTS.items() if words & {*names}]
            parts.setdefault(called[0] if len(called) == 1 else "", []).append(entry)
        others = parts.pop("", [])
        if "train" in parts and len(parts) > 1 and not (candidates is texts and others):
            return {part: parts[part] for part in PARTS if part in parts}
    return {}


# Rows


def read_rows(
    paths: Sequence[Path], options: DataOptions, note: Note, *, whole: bool = True, labeled: bool = False
) -> Iterator[Row]:
    """The rows of files or folders that are one part of a data set, in order; a suffix chooses the format.

    Rows are counted from 1, without the header and blank lines. Unless they are to be `whole`, files of text come in
    lines or pieces: any size of file will do. Where labels are needed (`labeled`), files beside the folders of the
    labels, and those that are not text, are left out.
    """
    for path in paths:
        yield from _rows(path, options, note, whole, labeled, alone=len(paths) == 1)


def _rows(root: Path, options: DataOptions, note: Note, whole: bool, labeled: bool, *, alone: bool) -> Iterator[Row]:
    files = list(folder_files(root))

    def leave_out(which: str, is_stray: Callable[[FolderFile], object]) -> None:
        strays = [str(file.path) for file in files if is_stray(file)]
        if strays:
            shown = ", ".join(strays[:3]) + (", …" if strays[3:] else "")
            note(f"left out {counted(len(strays), 'file')} {which}: {shown}")
            files[:] = [file for file in files if not is_stray(file)]

    if root.is_dir():
        # Who opens a pipe waits until somebody writes into it.
        leave_out("that are pipes or devices", lambda file: file.path.exists() and not file.path.is_file())
        if {_OF_DATASETS, ".arrow"} <= {word for file in files for word in (file.path.name, file.path.suffix)}:
            raise InputError(
                f"{root}: a data set as save_to_disk of datasets writes it; write it with to_parquet instead"
            )
        if labeled and any(file.label for file in files):
            leave_out(f"beside the folders of {root}", lambda file: file.label is None)
        if any(file_suffix(file.path) in READERS for file in files):
            leave_out("about the data", lambda file: _ABOUT_DATA.fullmatch(file.path.name))
    try:
        encodings, problems = find_encodings([file.path for file in files], str(root), options, note)
    except InputError as problem:
        yield Row(str(root), problem)
        return
    if root.is_dir() and (labeled or not whole):
        binary = {path for path, encoding in encodings.items() if encoding is None and file_suffix(path) != ".parquet"}
        leave_out("of another kind than text", lambda file: file.path in binary)
    # Files of one kind in folders may be tables; of several kinds they are the documents.
    kinds = {file_suffix(file.path) for file in files if file.label}
    are_texts = not (len(kinds) == 1 and kinds <= {*TABLE_SUFFIXES})
    for path, label in files:
        try:
            if path in problems:
                raise problems[path]
            file = File(path, options, note, encodings[path])
            reader = None if label and are_texts else reader_of(file, whole)
            for row in reader(file) if reader else text_rows(file, whole=whole, alone=alone and len(files) == 1):
                if (
                    label
                    and isinstance(row.values, dict)
                    and not (row.kind != "text" and known(row.values, LABEL_COLUMNS))
                ):
                    row = row._replace(values={**row.values, "label": label})
                yield row
        except InputError as problem:
            yield Row(str(path), problem)
        except OSError as error:
            yield Row(str(path), unreadable(path, error))


def stream_rows(stream: BinaryIO, options: DataOptions, name: str = "standard input") -> Iterator[Row]:
    """The rows of what is read only once: JSON lines if the first line that is not blank holds a JSON object.

    Otherwise everything up to the end is one document, under `text`. An empty stream has no rows.
    """
    encoding = options.encoding
    try:
        with decoded(stream, name, encoding or "utf-8-sig") as lines:
            head: list[str] = []
            for line in lines:
                head.append(line)
                if line.strip():
                    break
            if head and is_object(head[-1]):
                yield from json_lines(chain(head, lines), name, encoding)
            elif head:
                text = read_whole(lines, name, "".join(head))
                if "\0" in text[:SNIFFED_BYTES]:
                    raise not_text(name)
                yield Row(name, {"text": check_decoded(text, encoding)}, "text")
    except InputError as problem:
        yield Row(name, problem)


# The hub


def ask_hub(kind: str, name: str) -> None:
    """Ask the Hugging Face hub once for a "dataset" or "model" of that name; raises what the hub raises.

    The loaders of its libraries would try again for half a minute where there is no network. In offline mode
    (HF_HUB_OFFLINE=1) nothing is asked, and the loaders look into their caches.
    """
    from huggingface_hub import HfApi, constants

    if not constants.HF_HUB_OFFLINE:
        HfApi().repo_info(name, repo_type=kind, timeout=_HUB_TIMEOUT)


def _hub(source: str, name: str, config: str | None, part: str) -> DocumentSource:
    import datasets

    try:
        ask_hub("dataset", name)
        dataset: Any = datasets.load_dataset(name, config, split=part)
    except Exception as error:  # the hub, the network and the builders share no base class of errors
        nowhere = "no such file or folder, nor within reach as a Hugging Face data set"
        raise InputError(f"{source}: {nowhere} ({first_line(error)})") from None
    classes = class_names(dataset.features)

    def rows(note: Note) -> Iterator[Row]:
        numbered = enumerate(dataset, start=1)
        return (named_row(values, classes, f"{source}, row {number}") for number, values in numbered)

    return DocumentSource(rows, dataset._fingerprint)

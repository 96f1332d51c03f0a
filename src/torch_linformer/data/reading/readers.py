"""Rows of the user's files, one at a time, whatever the format; nothing is read before it is needed.

| what                            | one row                   | values                                               |
|---------------------------------|---------------------------|------------------------------------------------------|
| .csv .tsv                       | one line of the table     | the cells, as text, under the header's names         |
| .jsonl .ndjson                  | one line                  | the JSON object on it                                |
| .json                           | one line, or one object   | as above; other layouts: `json_rows` (read whole)    |
| .json of SQuAD                  | one question              | id, question, context, answers (read whole)          |
| .parquet                        | one row                   | the columns, class numbers by their names            |
| .conll .conllu .iob .iob2 .bio  | one document, or sentence | tokens, tags, other columns; which of these: `conll` |
| a folder of tables              | one row of one of them    | as above; and label for a file inside `label/`       |
| any other folder                | one file                  | text, and label for a file inside `label/`           |
| any other file                  | the file                  | text; or as .conll, .tsv, if it is so without suffix |

A file with .gz, .bz2 or .zst after its suffix is read as the one without.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import BinaryIO, TextIO

from torch_linformer.data.reading.columns import LABEL_COLUMNS
from torch_linformer.data.reading.conll import conll_rows, is_conll
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.delimited import delimited_rows
from torch_linformer.data.reading.dialects import is_divided_by_tabs
from torch_linformer.data.reading.encodings import check_decoded, decoded, detect_together, is_readable, open_text
from torch_linformer.data.reading.formats import (
    ABOUT_DATA,
    CONLL_SUFFIXES,
    PART_SUFFIXES,
    SNIFFED_BYTES,
    FolderFile,
    file_suffix,
    folder_files,
    is_special,
    not_text,
    shard_suffix,
    unreadable,
)
from torch_linformer.data.reading.json_rows import is_object, json_lines, json_rows
from torch_linformer.data.reading.parquet import parquet_rows
from torch_linformer.data.reading.plain_texts import read_whole, text_pieces, whole_text
from torch_linformer.data.reading.rows import BadRow, ReadReport, Row, TextRow
from torch_linformer.errors import InputError

Reader = Callable[[Path, DataOptions, ReadReport], Iterator[Row | BadRow]]

_READERS: dict[str, Reader] = {
    ".csv": delimited_rows,
    ".tsv": delimited_rows,
    ".parquet": parquet_rows,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), json_rows),
    **dict.fromkeys(CONLL_SUFFIXES, conll_rows),
}
_BY_CONTENT = (".txt", ".tsv", "", *PART_SUFFIXES)
_OF_DATASETS = "dataset_info.json"  # beside the Arrow files that `save_to_disk` writes
_SHOWN_FILES = 3
# Bytes that are not of a file's encoding are decoded to lone surrogates; JSON escapes such as \ud800 make them too.
_SURROGATE = re.compile("[\ud800-\udfff]")


def iter_rows(
    path: str | Path,
    report: ReadReport | None = None,
    *,
    options: DataOptions = NO_OPTIONS,
    whole: bool = True,
    labeled: bool = False,
) -> Iterator[Row]:
    """The rows of a file or folder in order; the suffix chooses the format (the module's table).

    Rows are counted from 1, without the header and blank lines. `report` is brought up to date before each row is
    given. Unless they are to be `whole`, files of text come in lines or pieces: any size of file will do. Where labels
    are needed (`labeled`), files beside the folders of the labels, and those that are not text, are left out.
    """
    path = Path(path)
    try:
        path.stat()
    except OSError as error:
        raise unreadable(path, error) from None
    return iter_parts([path], report or ReadReport(), options=options, whole=whole, labeled=labeled)


def iter_parts(
    paths: Sequence[Path], report: ReadReport, *, options: DataOptions, whole: bool, labeled: bool
) -> Iterator[Row]:
    """The rows of several files or folders that are one part of a data set."""
    return _cleaned(_parts(paths, options, report, whole, labeled), str(paths[0]), report)


def _parts(
    paths: Sequence[Path], options: DataOptions, report: ReadReport, whole: bool, labeled: bool
) -> Iterator[Row | BadRow]:
    for path in paths:
        if path.is_dir():
            yield from _folder(path, options, report, whole, labeled)
        else:
            yield from _file(path, options, report, whole, alone=len(paths) == 1)


def iter_stream(stream: BinaryIO, report: ReadReport | None = None, options: DataOptions = NO_OPTIONS) -> Iterator[Row]:
    """The rows of standard input: JSON lines if the first line that is not blank holds a JSON object.

    Otherwise everything up to the end is one document, under `text`. An empty stream has no rows.
    """
    name = "standard input"
    return _cleaned(_stream(stream, name, options), name, report or ReadReport())


def _cleaned(rows: Iterator[Row | BadRow], name: str, report: ReadReport) -> Iterator[Row]:
    try:
        for row in rows:
            if isinstance(row, BadRow):
                report.leave_out(*row)
                continue
            clean = {str(_clean(column)): _clean(value) for column, value in row.values.items()}
            report.replaced += list(clean.values()) != list(row.values.values())
            yield row._replace(values=clean)
    except OSError as error:
        raise unreadable(error.filename or name, error) from None
    except RecursionError:
        raise InputError(f"{name}: holds a value nested too deeply to be read; flatten it") from None


def _clean(value: object) -> object:
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _file(
    path: Path, options: DataOptions, report: ReadReport, whole: bool, *, alone: bool, as_text: bool = False
) -> Iterator[Row | BadRow]:
    """Its rows, up to where it is damaged, if it is; ``alone`` it is all there is."""
    try:
        reader = None if as_text else _reader(path, options, report, whole)
        if reader is not None:
            yield from reader(path, options, report)
        elif whole:
            yield whole_text(path, options, report)
        else:
            yield from text_pieces(path, options, report, alone=alone)
    except InputError as problem:
        yield BadRow(str(path), problem)
    except OSError as error:
        yield BadRow(str(path), unreadable(path, error))


def _reader(path: Path, options: DataOptions, report: ReadReport, whole: bool) -> Reader | None:
    """What reads the rows of a file, by its content where the suffix does not tell; None for a text."""
    suffix = file_suffix(path)
    if suffix in _BY_CONTENT and path.is_file():
        with open_text(path, options, report) as stream:
            sample = stream.read(SNIFFED_BYTES)
        if is_conll(sample):
            return conll_rows
        if whole and suffix != ".tsv" and is_divided_by_tabs(sample):
            report.note(f"{path}: a table, as all lines have as many tabs")
            return delimited_rows
    return _READERS.get(suffix)


def _folder(root: Path, options: DataOptions, report: ReadReport, whole: bool, labeled: bool) -> Iterator[Row | BadRow]:
    files = list(folder_files(root))
    files = _without(files, [file for file in files if is_special(file.path)], "that are pipes or devices", report)
    if any(file.path.name == _OF_DATASETS for file in files) and any(file.path.suffix == ".arrow" for file in files):
        raise InputError(f"{root}: a data set as save_to_disk of datasets writes it; write it with to_parquet instead")
    in_folders = [file for file in files if file.label is not None]
    if labeled and in_folders:
        files = _without(files, [file for file in files if file.label is None], f"beside the folders of {root}", report)
    if any(file_suffix(file.path) in _READERS for file in files):
        about = [file for file in files if ABOUT_DATA.fullmatch(file.path.name)]
        files = _without(files, about, "about the data", report)
    # Files of one kind in folders may be tables; of several kinds they are the documents.
    are_texts = bool(in_folders) and shard_suffix([file.path for file in in_folders]) is None
    if labeled or not whole:
        strays = [file for file in files if not is_readable(file.path, options)]
        files = _without(files, strays, "of another kind than text", report)
    others, encoding = set[Path](), None
    if options.encoding is None:
        others, encoding = detect_together(root, [file.path for file in files])
    if encoding is not None:
        report.note(f"{len(others):,} files of {root}: {encoding.note}")
    for file in files:
        as_text = are_texts and file.label is not None
        read_as = replace(options, encoding=encoding.name) if encoding and file.path in others else options
        for row in _file(file.path, read_as, report, whole, alone=len(files) == 1, as_text=as_text):
            if isinstance(row, BadRow) or file.label is None or _has_label(row):
                yield row
            else:
                yield row._replace(values={**row.values, "label": file.label})


def _without(files: list[FolderFile], strays: list[FolderFile], which: str, report: ReadReport) -> list[FolderFile]:
    """The files that are no strays, which are named."""
    if strays:
        names = ", ".join(str(file.path) for file in strays[:_SHOWN_FILES]) + (", …" if strays[_SHOWN_FILES:] else "")
        report.note(f"left out {len(strays):,} file{'' if len(strays) == 1 else 's'} {which}: {names}")
    left_out = set(strays)
    return [file for file in files if file not in left_out]


def _has_label(row: Row) -> bool:
    return row.of_table and any(name.strip().lower() in LABEL_COLUMNS for name in row.values)


def _stream(stream: BinaryIO, name: str, options: DataOptions) -> Iterator[Row | BadRow]:
    with decoded(stream, name, options.encoding or "utf-8-sig") as lines:
        yield from _lines_or_text(lines, name, options)


def _lines_or_text(lines: TextIO, name: str, options: DataOptions) -> Iterator[Row | BadRow]:
    head: list[str] = []
    for line in lines:
        head.append(line)
        if line.strip():
            break
    if not head:
        return
    if is_object(head[-1]):
        yield from json_lines(chain(head, lines), name, options.encoding)
        return
    text = read_whole(lines, name, "".join(head))
    if "\0" in text[:SNIFFED_BYTES]:
        raise not_text(name)
    check_decoded(text, name, options.encoding)
    yield TextRow({"text": text}, name)

"""Plain texts: files that are each a document, or hold many, and texts in files that a table names."""

import json
import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.encodings import check_decoded, open_text
from torch_linformer.data.reading.formats import COMPRESSED_SUFFIXES, file_stem
from torch_linformer.data.reading.rows import BadRow, ReadReport, Row, TextRow
from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import memory_bytes
from torch_linformer.reporting.tables import format_bytes

# Parts of the memory. A character takes 33 bytes where each is a token (docs/scale.md), and ten as an object of JSON.
OF_DOCUMENT, OF_JSON = 64, 16
_PIECE = 2**20  # characters of a text of which only parts are needed at once
_SHORTEST_PIECE = 1000
_PIECES = 50  # of a file alone, at least: some are held out
_LEAST_LINES = 20  # of a file whose lines are documents
_OVERLONG = 4  # times a piece, after which it ends at a line that ends no paragraph
_LONGEST_PATH = 255


def read_whole(stream: TextIO, name: str | Path, head: str = "", *, part: int = OF_DOCUMENT) -> str:
    """What is left of a stream, after the ``head`` that was read before.

    Raises:
        InputError: it is larger than that part of the machine's memory.
    """
    most = memory_bytes() // part
    text = head + stream.read(most + 1 - len(head))
    if len(text) > most:
        raise InputError(
            f"{name}: holds more than {format_bytes(most)}, 1/{part} of this machine's memory, as one text; split it, "
            "or write JSON lines with a document on each"
        )
    return text


def whole_text(path: Path, options: DataOptions, report: ReadReport) -> Row:
    """A file as one row, "text"."""
    with open_text(path, options, report) as stream:
        text = read_whole(stream, path)
    check_decoded(text, str(path), options.encoding)
    return TextRow({"text": text}, str(path))


def text_pieces(path: Path, options: DataOptions, report: ReadReport, *, alone: bool) -> Iterator[Row | BadRow]:
    """A file as many rows: its lines if it is ``alone`` and has no paragraphs, or else pieces of whole paragraphs.

    Pieces have a million characters; a fiftieth of a file alone, if that is less. No size of file is too large.
    """
    by_lines = alone and _is_lines(path, options, report)
    most = max(_SHORTEST_PIECE, min(_PIECE, path.stat().st_size // _PIECES)) if alone else _PIECE
    if alone:
        what = "each line" if by_lines else f"each piece of about {most:,} characters, cut between paragraphs or lines,"
        report.note(f"{path}: {what} is a document; for others give a folder of files, or JSON lines")
    with open_text(path, options, report) as stream:
        piece: list[str] = []
        length = 0
        for line in iter(partial(stream.readline, _PIECE), ""):
            piece.append(line)
            length += len(line)
            is_end = length >= most and (not line.strip() or length >= _OVERLONG * most or most == _PIECE)
            if by_lines or is_end:
                yield _piece(piece, path, options)
                piece, length = [], 0
        if piece:
            yield _piece(piece, path, options)


def _piece(lines: list[str], path: Path, options: DataOptions) -> Row | BadRow:
    text = "".join(lines)
    try:
        check_decoded(text, str(path), options.encoding)
    except InputError as problem:
        return BadRow(str(path), problem)
    return TextRow({"text": text}, str(path))


def _is_lines(path: Path, options: DataOptions, report: ReadReport) -> bool:
    """Whether a file has many lines, and none of them is blank, as far as is looked at.

    Raises:
        InputError: they are objects of JSON.
    """
    with open_text(path, options, report) as stream:
        lines = stream.read(_PIECE).splitlines()
    if len(lines) > 1 and all(map(_is_object, lines[:_LEAST_LINES])):
        compression = path.suffix if path.suffix.lower() in COMPRESSED_SUFFIXES else ""
        name = f"{file_stem(path)}.jsonl{compression}"
        raise InputError(f"{path}: its lines are JSON objects: call it {name} to have them read")
    return len(lines) >= _LEAST_LINES and all(line.strip() for line in lines)


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except ValueError:
        return False


class TextFolder(NamedTuple):
    """A folder with the texts of which a table names the files."""

    path: Path
    options: DataOptions

    def read(self, name: str, where: str) -> str:
        """The text of a file in it.

        Raises:
            InputError: there is no such file, or it lies elsewhere.
        """
        file = self.path / name
        if not self.holds(name):
            raise InputError(f"{where}: no file {name!r} in {self.path}; --text-folder names another folder")
        return str(whole_text(file, self.options, ReadReport()).values["text"])

    def holds(self, name: object) -> bool:
        """Whether a cell names a file in it; a table may not reach what lies outside."""
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_PATH or "\0" in name:
            return False
        file = self.path / name
        # Not `Path.is_file`, to which a name that is too long is an error.
        return os.path.isfile(file) and file.resolve().is_relative_to(self.path.resolve())

    def state(self, name: object) -> tuple[int, int] | None:
        """Size and time of the file that a cell names, if it names one; another file has another state."""
        if not isinstance(name, str) or not self.holds(name):
            return None
        state = (self.path / name).stat()
        return state.st_size, state.st_mtime_ns

"""Files of plain text: each a document, or the source of many where none of them has to be whole."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.encodings import check_decoded, open_text
from torch_linformer.data.reading.rows import BadRow, ReadReport, Row, TextRow
from torch_linformer.data.reading.whole_files import read_whole
from torch_linformer.errors import InputError

_PIECE = 2**20  # characters of a text of which only parts are needed at once
_SHORTEST_PIECE = 1000
_PIECES = 50  # of a file alone, at least: some are held out
_LEAST_LINES = 20  # of a file whose lines are documents
_OVERLONG = 4  # times a piece, after which it ends at a line that ends no paragraph


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
    """Whether a file has many lines, and none of them is blank, as far as is looked at."""
    with open_text(path, options, report) as stream:
        lines = stream.read(_PIECE).splitlines()
    return len(lines) >= _LEAST_LINES and all(line.strip() for line in lines)

"""Files opened as text, in the encoding that they are in."""

import codecs
import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from charset_normalizer import CharsetMatch, from_bytes

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.formats import (
    BINARY_SUFFIXES,
    SHEETS,
    SNIFFED_BYTES,
    NotText,
    file_suffix,
    not_text,
    open_bytes,
)
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError

_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
# What text is still found in. DOS and Mac code pages, which fit any bytes, have to be named.
_ENCODINGS = [
    *("cp1252", "cp1250", "cp1251", "cp1253", "cp1254", "cp1255", "cp1256", "cp1257", "iso8859_2", "iso8859_5"),
    *("koi8_r", "gb18030", "big5", "shift_jis", "euc_jp", "euc_kr"),
]
_EQUAL = 0.05, 0.06  # differences in chaos and coherence between two encodings that decide nothing
_EQUAL_TO_USUAL = 0.15, 0.12  # likewise against the most usual one: a lone "à" of French counts as chaos
_MOST_CHAOS = 0.15  # of an encoding in which no language is told: Mac Roman read as cp1252 is "ŽtŽ" for "été"
_DETECTED_BYTES = 2**16  # of lines that are not UTF-8
_SHOWN_LINES = 20  # of each file of a folder
_SHOWN = 4  # encodings that fit equally
_LINE_BYTES = 2**20  # read at once where there is no line


class Encoding(NamedTuple):
    """What a file of text is in; ``note`` says why, where that is not plain."""

    name: str
    note: str = ""


@contextmanager
def open_text(path: Path, options: DataOptions, report: ReadReport) -> Iterator[TextIO]:
    """A file as text with its line ends; what is no text is an `InputError`.

    Bytes that are not of the encoding become lone surrogates: see `check_decoded`.
    """
    encoding = find_encoding(path, options)
    if encoding.note:
        report.note(f"{path}: {encoding.note}")
    with open_bytes(path) as stream, decoded(stream, path, encoding.name) as text:
        yield text


@contextmanager
def decoded(stream: BinaryIO, name: str | Path, encoding: str) -> Iterator[TextIO]:
    """Bytes as text with its line ends; see :func:`open_text`."""
    errors = "strict" if _is_wide(encoding) else "surrogateescape"
    try:
        yield io.TextIOWrapper(stream, encoding, errors, newline="")
    except UnicodeError as error:
        reason = getattr(error, "reason", error)  # UTF-16 without its mark has none
        raise InputError(f"{name}: not {encoding} ({reason}); name another with --encoding") from None


def check_decoded(text: str, where: str, encoding: str | None = None) -> None:
    """Raise an `InputError` if text holds a byte that is not of its encoding."""
    if text.isascii():
        return
    place = next((at for at, character in enumerate(text) if "\udc80" <= character <= "\udcff"), None)
    if place is None:
        return
    around = text[max(0, place - 10) : place + 10].encode("utf-8", "surrogateescape")
    raise InputError(
        f"{where}: holds bytes that are not {encoding or 'UTF-8'} ({str(around)[1:]}); "
        "save the file as UTF-8, or name its encoding with --encoding"
    )


def find_encoding(path: Path, options: DataOptions) -> Encoding:
    """The encoding of a file that is text: the one that is named, its byte order mark's, UTF-8, or one detected.

    Raises:
        InputError: it is not text, or two encodings fit equally, or none does.
    """
    if file_suffix(path) in SHEETS:
        raise NotText(f"{path}: sheets are not read; save the one you want as CSV in UTF-8")
    if file_suffix(path) in BINARY_SUFFIXES:
        raise not_text(path)
    state = path.stat()
    return _find_encoding(path, options.encoding, state.st_size, state.st_mtime_ns)


@lru_cache(maxsize=4096)
def _find_encoding(path: Path, named: str | None, size: int, modified: int) -> Encoding:
    with open_bytes(path) as stream:
        head = stream.peek(SNIFFED_BYTES)[:SNIFFED_BYTES]
        mark = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
        if mark is not None and (named is None or mark.startswith(codecs.lookup(named).name[:6])):
            is_told = named is None and mark != "utf-8-sig"
            return Encoding(mark, f"read as {mark.upper()}, by its byte order mark" if is_told else "")
        if b"\0" in head and not _is_wide(named):
            raise not_text(path)
        if named is not None:
            return Encoding(named)
        utf8, damaged = _not_utf8(stream)
    if utf8 >= len(damaged):  # where there are damaged lines too, their rows are found when they are read
        return Encoding("utf-8")
    return _detected(str(path), b"".join(damaged))


def is_readable(path: Path, options: DataOptions) -> bool:
    """Whether a file is a table or a text, and none of the formats that are not read."""
    if file_suffix(path) in BINARY_SUFFIXES:
        return False
    try:
        with open_bytes(path) as stream:
            head = stream.peek(SNIFFED_BYTES)[:SNIFFED_BYTES]
    except (OSError, InputError):  # which is told when the file is read
        return True
    is_text = b"\0" not in head or head.startswith(tuple(_MARKS)) or _is_wide(options.encoding)
    return is_text or file_suffix(path) == ".parquet"


def _is_wide(encoding: str | None) -> bool:
    """Whether an encoding has several bytes for every character, so that NUL is in most texts."""
    return (encoding or "").lower().replace("_", "-").startswith(("utf-16", "utf-32"))


def detect_together(folder: Path, files: Iterable[Path]) -> tuple[set[Path], Encoding | None]:
    """Those of the files of a folder that are text and not UTF-8, and the encoding of them all.

    One alone may be too short to tell it by.

    Raises:
        InputError: two encodings fit them equally, or none does.
    """
    damaged: dict[Path, list[bytes]] = {}
    for path in files:
        if file_suffix(path) == ".parquet" or not is_readable(path, NO_OPTIONS):
            continue
        with suppress(OSError), open_bytes(path) as stream:  # which is told when the file is read
            if not stream.peek(4).startswith(tuple(_MARKS)):
                utf8, lines = _not_utf8(stream)
                if len(lines) > utf8:
                    damaged[path] = lines[:_SHOWN_LINES]
    sample = b"".join(line for lines in damaged.values() for line in lines)
    return set(damaged), _detected(f"{len(damaged):,} files of {folder}", sample) if damaged else None


def _not_utf8(stream: "io.BufferedReader[Any]") -> tuple[int, list[bytes]]:
    """How many lines hold characters of UTF-8 beyond ASCII, and the first of those that are not UTF-8."""
    utf8, damaged, held, goes_on = 0, list[bytes](), 0, False
    for line in iter(partial(stream.readline, _LINE_BYTES), b""):
        is_rest, goes_on = goes_on, len(line) == _LINE_BYTES and not line.endswith(b"\n")
        if line.isascii():
            continue
        try:
            line.decode()
            utf8 += 1
        except UnicodeDecodeError as error:
            # A piece of a longer line may end, and the next one begin, within a character.
            if (goes_on and error.start >= len(line) - 3) or (is_rest and line[0] & 0xC0 == 0x80 and not error.start):
                continue
            if held < _DETECTED_BYTES:
                damaged.append(line)
                held += len(line)
    return utf8, damaged


def _detected(path: str, sample: bytes) -> Encoding:
    """The encoding in which lines of files are text, if that can be told."""
    matches = list(from_bytes(sample[:_DETECTED_BYTES], cp_isolation=_ENCODINGS))
    if matches and matches[0].chaos > _MOST_CHAOS and not matches[0].coherence:
        matches = []
    readings: dict[str, CharsetMatch] = {}
    for match in matches:
        chaos, coherence = _EQUAL_TO_USUAL if _name(match) == _ENCODINGS[0] else _EQUAL
        if match.chaos - matches[0].chaos <= chaos and matches[0].coherence - match.coherence <= coherence:
            readings.setdefault(str(match), match)
    if not readings:
        raise InputError(f"{path}: neither UTF-8 nor an encoding that can be detected; name it with --encoding")
    names = {_name(match): text for text, match in readings.items()}
    if len(names) > 1:
        shown = [name for name in _ENCODINGS if name in names][:_SHOWN]
        words = [[word for word in names[name].split() if not word.isascii()] for name in shown]
        # The word that tells the first two, or else most of them, apart.
        example = max(
            zip(*words, strict=False),
            key=lambda word: (word[0] != word[1], len({*word})),
            default=[names[name] for name in shown],
        )
        several = " as ".join(f"{name} ({word[:40]!r})" for name, word in zip(shown, example, strict=True))
        raise InputError(f"{path}: not UTF-8, and reads as well as {several}; name the right one with --encoding")
    name, text = names.popitem()
    return Encoding(name, f"read as {name}, as detected ({_word(text)!r}); --encoding names another")


def _name(match: CharsetMatch) -> str:
    """The most usual of the encodings that read the same."""
    return next((name for name in _ENCODINGS if name in match.could_be_from_charset), match.encoding)


def _word(text: str) -> str:
    """The first word that is not ASCII."""
    return next((word[:40] for word in text.split() if not word.isascii()), "")

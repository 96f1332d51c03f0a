"""Files opened as bytes or as text: compressed or not, in the encoding that they are in."""

import codecs
import io
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from charset_normalizer import CharsetMatch, from_bytes

from torch_linformer.data.reading.options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError, first_line

CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", *CONLL_SUFFIXES)
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst")
_SHEETS = (".xls", ".xlsx", ".xlsm", ".ods")
_BINARY_SUFFIXES = frozenset(
    {".7z", ".arrow", ".bin", ".doc", ".docx", ".epub", ".feather", ".gif", ".h5", ".jpeg", ".jpg", ".npy", ".npz"}
    | {".odt", ".orc", ".pdf", ".pickle", ".pkl", ".png", ".ppt", ".pptx", ".pt", ".safetensors", ".sqlite", ".tar"}
    | {".tgz", ".xz", ".zip", *_SHEETS}
)
_FORMATS = f"{', '.join(TABLE_SUFFIXES)}, plain text, or a folder with one folder per label"
SNIFFED_BYTES = 8192  # git looks this far for the NUL byte that no text holds
MOST_UNFOLDED = 200  # times the size of a file; text is compressed to a third or a tenth, much repeated to less

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
_EQUAL_CHAOS, _EQUAL_COHERENCE = 0.02, 0.06  # differences between two encodings that decide nothing
_DETECTED_BYTES = 2**16  # of lines that are not UTF-8
_SHOWN_LINES = 20  # of each file of a folder
_SHOWN = 4  # encodings that fit equally
_LINE_BYTES = 2**20  # read at once where there is no line


class Encoding(NamedTuple):
    """What a file of text is in; ``note`` says why, where that is not plain."""

    name: str
    note: str = ""


def file_suffix(path: Path) -> str:
    """The suffix in lower case, without that of a compressed file: ".csv" for posts.CSV.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def file_stem(path: Path) -> str:
    """The name without its suffixes of format and compression."""
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED_SUFFIXES else path).stem


@contextmanager
def open_bytes(path: Path) -> Iterator["io.BufferedReader[Any]"]:
    """A file as bytes, uncompressed.

    One that unfolds to more than the memory and `MOST_UNFOLDED` times its size is an `InputError`.
    """
    if path.suffix.lower() not in COMPRESSED_SUFFIXES:
        with path.open("rb") as file:
            yield file
        return
    try:
        with io.BufferedReader(_Unfolded(path)) as stream:
            yield stream
    except OSError as error:
        raise InputError(f"{path}: not a readable {path.suffix} file ({first_line(error)}); write it again") from None


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
        "name the encoding with --encoding, or leave such rows out with --max-errors"
    )


def find_encoding(path: Path, options: DataOptions) -> Encoding:
    """The encoding of a file that is text: the one that is named, its byte order mark's, UTF-8, or one detected.

    Raises:
        InputError: it is not text, or two encodings fit equally, or none does.
    """
    if file_suffix(path) in _SHEETS:
        raise NotText(f"{path}: sheets are not read; save the one you want as CSV in UTF-8")
    if file_suffix(path) in _BINARY_SUFFIXES:
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
    if file_suffix(path) in _BINARY_SUFFIXES:
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
    utf8, damaged, held = 0, list[bytes](), 0
    for line in iter(partial(stream.readline, _LINE_BYTES), b""):
        if line.isascii():
            continue
        try:
            line.decode()
            utf8 += 1
        except UnicodeDecodeError as error:
            # A piece of a longer line may end, and the next one begin, within a character.
            if (len(line) == _LINE_BYTES and error.start >= len(line) - 3) or (
                line[0] & 0xC0 == 0x80 and not error.start
            ):
                continue
            if held < _DETECTED_BYTES:
                damaged.append(line)
                held += len(line)
    return utf8, damaged


def _detected(path: str, sample: bytes) -> Encoding:
    """The encoding in which lines of files are text, if that can be told."""
    matches = list(from_bytes(sample[:_DETECTED_BYTES], cp_isolation=_ENCODINGS))
    readings: dict[str, CharsetMatch] = {}
    for match in matches:
        best = matches[0]
        if match.chaos - best.chaos <= _EQUAL_CHAOS and best.coherence - match.coherence <= _EQUAL_COHERENCE:
            readings.setdefault(str(match), match)
    if not readings:
        raise InputError(f"{path}: neither UTF-8 nor an encoding that can be detected; name it with --encoding")
    names = [_name(match) for match in readings.values()][:_SHOWN]
    words = _telling_words(list(readings)[:_SHOWN])
    if len(names) > 1:
        several = " as ".join(f"{name} ({word!r})" for name, word in zip(names, words, strict=True))
        raise InputError(f"{path}: not UTF-8, and reads as well as {several}; name the right one with --encoding")
    return Encoding(names[0], f"read as {names[0]}, as detected ({words[0]!r}); --encoding names another")


def _name(match: CharsetMatch) -> str:
    """The most usual of the encodings that read the same."""
    return next((name for name in _ENCODINGS if name in match.could_be_from_charset), match.encoding)


def _telling_words(readings: Sequence[str]) -> list[str]:
    """The first word of each reading of a text that is not the same in all; of a single one, that is not ASCII."""
    columns = list(zip(*(reading.split() for reading in readings), strict=False))
    if len(readings) > 1:
        telling = (words for words in columns if len(set(words)) > 1)
    else:
        telling = (words for words in columns if not words[0].isascii())
    return [word[:40] for word in next(telling, readings)]


class NotText(InputError):
    """A file is not text."""


def not_text(name: str | Path) -> NotText:
    """The error for a file that cannot be read as text."""
    return NotText(f"{name}: not text, nor another known format; known are {_FORMATS}, and these as .gz, .bz2, .zst")


def unreadable(name: str | Path, error: OSError) -> InputError:
    """The error for a file that is missing or cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{name}: no such file or folder")
    return InputError(f"{name}: cannot be read ({error.strerror or first_line(error)})")


def most_unfolded(path: Path) -> int:
    """The bytes to which a file may unfold: those of the memory, or `MOST_UNFOLDED` times its own."""
    from torch_linformer.measuring.machine import memory_bytes

    return max(MOST_UNFOLDED * path.stat().st_size, memory_bytes())


class _Unfolded(io.RawIOBase):
    """A compressed file as the bytes that were compressed, up to as many as may be."""

    def __init__(self, path: Path) -> None:
        import pyarrow

        self.path, self.left = path, most_unfolded(path)
        self.stream = pyarrow.input_stream(str(path), compression="detect")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.stream.read(len(buffer))
        buffer[: len(data)] = data
        self.left -= len(data)
        if self.left < 0:
            raise InputError(f"{self.path}: unfolds to more than {MOST_UNFOLDED} times its size; unfold it yourself")
        return len(data)

    def close(self) -> None:
        self.stream.close()
        super().close()

"""Files: their suffixes, those of a folder, and how they are opened: as bytes, unpacked, or as text, decoded."""

import codecs
import io
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TextIO

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.errors import InputError, first_line

CONLL_SUFFIXES = (".conll", ".conllu", ".iob", ".iob2", ".bio")
TABLE_SUFFIXES = (".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".parquet", *CONLL_SUFFIXES)
COMPRESSED_SUFFIXES = (".gz", ".bz2", ".zst")
SHEETS = (".xls", ".xlsx", ".xlsm", ".ods")
BINARY_SUFFIXES = frozenset(
    {".7z", ".arrow", ".bin", ".doc", ".docx", ".epub", ".feather", ".gif", ".h5", ".jpeg", ".jpg", ".npy", ".npz"}
    | {".odt", ".orc", ".pdf", ".pickle", ".pkl", ".png", ".ppt", ".pptx", ".pt", ".safetensors", ".sqlite", ".tar"}
    | {".tgz", ".xz", ".zip", *SHEETS}
)
VECTORS = "linformer_search.json"  # in a folder of vectors that a search has written: it holds no documents
_OF_SYSTEMS = ("thumbs.db", "desktop.ini", "__macosx")  # what Windows and macOS leave in folders
SNIFFED_BYTES = 8192  # git looks this far for the NUL byte that no text holds
MOST_UNFOLDED = 200  # times the size of a file; text is compressed to a third or a tenth, much repeated to less
_MARKS = {  # UTF-16's after UTF-32's, which begins like it
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
_PIECE = 2**20  # bytes read at once


def file_suffix(path: Path) -> str:
    """The suffix in lower case, without that of a compressed file: ".csv" for posts.CSV.gz."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    if suffixes and suffixes[-1] in COMPRESSED_SUFFIXES:
        suffixes.pop()
    return suffixes[-1] if suffixes else ""


def file_stem(path: Path) -> str:
    """The name without its suffixes of format and compression."""
    return (Path(path.stem) if path.suffix.lower() in COMPRESSED_SUFFIXES else path).stem


def not_text(name: str | Path) -> InputError:
    """The error for a file that cannot be read as text."""
    if file_suffix(Path(name)) in SHEETS:
        return InputError(f"{name}: sheets are not read; save the one you want as CSV in UTF-8")
    known = f"{', '.join(TABLE_SUFFIXES)}, plain text, or a folder with one folder per label"
    return InputError(f"{name}: not text, nor another known format; known are {known}, and these as .gz, .bz2, .zst")


def unreadable(name: str | Path, error: OSError) -> InputError:
    """The error for a file that is missing or cannot be read."""
    if isinstance(error, FileNotFoundError):
        return InputError(f"{name}: no such file or folder")
    return InputError(f"{name}: cannot be read ({error.strerror or first_line(error)})")


# Bytes


def most_unfolded(path: Path) -> int:
    """The bytes to which a file may unfold: those of the memory, or `MOST_UNFOLDED` times its own."""
    from torch_linformer.measuring.machine import memory_bytes

    return max(MOST_UNFOLDED * path.stat().st_size, memory_bytes())


@contextmanager
def open_bytes(path: Path) -> Iterator["io.BufferedReader[Any]"]:
    """A file as bytes, uncompressed.

    Raises:
        InputError: it is damaged, or unfolds to more than `most_unfolded` bytes.
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


# Folders


class FolderFile(NamedTuple):
    """A file, and the name of the folder that it lies in, directly below the one that is read, if any."""

    path: Path
    label: str | None


def folder_files(root: Path) -> Iterator[FolderFile]:
    """A file by itself, or every one below a folder, sorted; hidden files and folders are passed over."""
    if not root.is_dir():
        yield FolderFile(root, None)
        return
    for entry in entries(root):
        if entry.is_dir():
            yield from (FolderFile(file, entry.name) for file in _files_below(entry))
        else:
            yield FolderFile(entry, None)


def _files_below(folder: Path) -> Iterator[Path]:
    """Its own files first, then those of its folders, but not of links to folders, which may lead in circles."""
    for entry in sorted(entries(folder), key=Path.is_dir):
        if not entry.is_dir():
            yield entry
        elif not entry.is_symlink():
            yield from _files_below(entry)


def entries(folder: Path) -> list[Path]:
    """The files and folders in a folder that are not hidden, nor a system's own or a search's, sorted."""
    inside = (entry for entry in folder.iterdir() if entry.name.lower() not in _OF_SYSTEMS)
    return sorted(entry for entry in inside if not (entry.name.startswith(".") or (entry / VECTORS).is_file()))


# Text


@dataclass(frozen=True)
class File:
    """A file to be read, what the user says of it, and where to tell how; ``encoding`` is None where it is no text."""

    path: Path
    options: DataOptions
    note: Callable[[str], object]
    encoding: str | None

    @contextmanager
    def open(self) -> Iterator[TextIO]:
        """The file as text with its line ends; bytes of another encoding become lone surrogates: `check_decoded`."""
        if self.encoding is None:
            raise not_text(self.path)
        with open_bytes(self.path) as stream, decoded(stream, self.path, self.encoding) as text:
            yield text


@contextmanager
def decoded(stream: BinaryIO, name: str | Path, encoding: str) -> Iterator[TextIO]:
    """Bytes as text with its line ends; see `File.open`."""
    text = io.TextIOWrapper(stream, encoding, "strict" if _is_wide(encoding) else "surrogateescape", newline="")
    try:
        yield text
    except UnicodeError as error:
        reason = getattr(error, "reason", error)  # UTF-16 without its mark has none
        raise InputError(f"{name}: not {encoding} ({reason}); name another with --encoding") from None
    finally:
        if not stream.closed:
            text.detach()  # who opened it closes it


def open_file(path: Path, options: DataOptions, note: Callable[[str], object]) -> File:
    """A file by itself.

    Raises:
        InputError: it cannot be read, or its encoding cannot be told.
    """
    encodings, problems = find_encodings([path], str(path), options, note)
    if path in problems:
        raise problems[path]
    return File(path, options, note, encodings[path])


def find_encodings(
    paths: Iterable[Path], source: str, options: DataOptions, note: Callable[[str], object]
) -> tuple[dict[Path, str | None], dict[Path, InputError]]:
    """The encoding of each file: the one that is named, its byte order mark's, UTF-8, or one detected.

    Those that are not UTF-8 are detected together, as one alone may be too short to tell it by; None for what is no
    text. Second, why some files cannot be read.

    Raises:
        InputError: two encodings fit these files equally, or none does.
    """
    encodings, problems, damaged = dict[Path, str | None](), dict[Path, InputError](), dict[Path, tuple[bytes, ...]]()
    for path in paths:
        try:
            state = path.stat()
            found = _scan(path, options.encoding, state.st_size, state.st_mtime_ns)
        except OSError as error:
            problems[path] = unreadable(path, error)
        except InputError as error:
            problems[path] = error
        else:
            encodings[path] = found.encoding
            if found.is_told:
                note(f"{path}: read as {str(found.encoding).upper()}, by its byte order mark")
            if found.damaged:
                damaged[path] = found.damaged
    if damaged:
        together = source if [*encodings, *problems] == [*damaged] else f"{len(damaged):,} files of {source}"
        shown = None if together == source else _SHOWN_LINES
        sample = b"".join(line for lines in damaged.values() for line in lines[:shown])
        name, word = _detected(together, sample[:_DETECTED_BYTES])
        encodings |= dict.fromkeys(damaged, name)
        note(f"{together}: read as {name}, as detected ({word!r}); --encoding names another")
    return encodings, problems


class _Found(NamedTuple):
    """The encoding of a file, if it is text; whether to tell it; its lines that are not of UTF-8, if most are not."""

    encoding: str | None
    is_told: bool = False
    damaged: tuple[bytes, ...] = ()


@lru_cache(maxsize=4096)
def _scan(path: Path, named: str | None, size: int, modified: int) -> _Found:
    if file_suffix(path) in (*BINARY_SUFFIXES, ".parquet"):
        return _Found(None)
    with open_bytes(path) as stream:
        head = stream.peek(SNIFFED_BYTES)[:SNIFFED_BYTES]
        mark = next((name for mark, name in _MARKS.items() if head.startswith(mark)), None)
        if mark is not None and (named is None or mark.startswith(codecs.lookup(named).name[:6])):
            return _Found(mark, is_told=named is None and mark != "utf-8-sig")
        if b"\0" in head and not _is_wide(named):
            return _Found(None)
        if named is not None:
            return _Found(named)
        decoder = codecs.getincrementaldecoder("utf-8")()
        try:
            for chunk in chain(iter(partial(stream.read, _PIECE), b""), [b""]):
                decoder.decode(chunk, final=not chunk)
            return _Found("utf-8")
        except UnicodeDecodeError:
            pass
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    good = bad = held = 0
    last, damaged = b"", list[bytes]()
    with open_bytes(path) as stream:
        for line in chain(iter(partial(stream.readline, _PIECE), b""), [b""]):
            try:
                good += not decoder.decode(line, final=not line).encode().isascii()
            except UnicodeEncodeError:
                bad += 1
                if held < _DETECTED_BYTES:
                    damaged.append(line or last)
                    held += len(line)
            last = line
    # Where most lines are UTF-8, the rows of the others are found when they are read.
    return _Found("utf-8", damaged=() if good >= bad else tuple(damaged))


def _is_wide(encoding: str | None) -> bool:
    """Whether an encoding has several bytes for every character, so that NUL is in most texts."""
    return (encoding or "").lower().replace("_", "-").startswith(("utf-16", "utf-32"))


def _detected(source: str, sample: bytes) -> tuple[str, str]:
    """The encoding in which lines of files are text, if that can be told, and a word that shows it."""
    from charset_normalizer import from_bytes

    matches, readings = list(from_bytes(sample, cp_isolation=_ENCODINGS)), dict[str, str]()
    for match in matches if matches and (matches[0].coherence or matches[0].chaos <= _MOST_CHAOS) else []:
        # The most usual of the encodings that read the same.
        name = next(name for name in _ENCODINGS if name in match.could_be_from_charset)
        chaos, coherence = _EQUAL_TO_USUAL if name == _ENCODINGS[0] else _EQUAL
        if match.chaos - matches[0].chaos <= chaos and matches[0].coherence - match.coherence <= coherence:
            readings.setdefault(str(match), name)
    if not readings:
        raise InputError(f"{source}: neither UTF-8 nor an encoding that can be detected; name it with --encoding")
    texts = {name: text for text, name in readings.items()}
    names = [name for name in _ENCODINGS if name in texts][:4]
    words = list(zip(*([word for word in texts[name].split() if not word.isascii()] for name in names), strict=False))
    if len(names) > 1:  # shown by the word that tells the first two, or else most of them, apart
        word = max(words, key=lambda word: (word[0] != word[1], len({*word})), default=[*texts.values()])
        several = " as ".join(f"{name} ({word[:40]!r})" for name, word in zip(names, word, strict=False))
        raise InputError(f"{source}: not UTF-8, and reads as well as {several}; name the right one with --encoding")
    return names[0], words[0][0][:40] if words else ""

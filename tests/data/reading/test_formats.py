"""Files: their suffixes, compressed ones, what encodings they are in, and what is no text."""

import bz2
import codecs
import gzip
import os
from pathlib import Path

import pyarrow
import pytest

from torch_linformer.data.reading import formats
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.formats import file_stem, file_suffix, find_encodings, open_bytes
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.reading.rows import check_decoded
from torch_linformer.errors import InputError

GERMAN = "Der Ärger über größere Übel führt zu schönen Grüßen\n" * 3
KNOWN = (
    "known are .csv, .tsv, .jsonl, .ndjson, .json, .parquet, .conll, .conllu, .iob, .iob2, .bio, plain text, or a "
    "folder with one folder per label, and these as .gz, .bz2, .zst"
)
PACK = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".zst": lambda content: pyarrow.compress(content, codec="zstd", asbytes=True),
}


@pytest.mark.parametrize(
    ("name", "suffix", "stem"),
    [
        ("a.b.CSV", ".csv", "a.b"),
        ("posts.csv.gz", ".csv", "posts"),
        ("posts.JSONL.ZST", ".jsonl", "posts"),
        ("notes.gz", "", "notes"),
        ("README", "", "README"),
    ],
)
def test_suffix_and_stem(name, suffix, stem):
    assert (file_suffix(Path(name)), file_stem(Path(name))) == (suffix, stem)


# Compressed files


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("t.csv", "text;label\nnaïve;a\n", [{"text": "naïve", "label": "a"}]),
        ("t.jsonl", '{"text": "a"}\n{"text": "b"}\n', [{"text": "a"}, {"text": "b"}]),
        ("t.conll", "Ann B\nmet O\n", [{"tokens": ["Ann", "met"], "tags": ["B", "O"]}]),
        ("t.txt", "a text\n", [{"text": "a text\n"}]),
    ],
)
def test_a_compressed_file_is_read_as_the_one_within(write, read, suffix, name, content, rows):
    outcome = read(write(name + suffix, PACK[suffix](content.encode())))
    assert outcome.rows == rows and outcome.problems == []


@pytest.mark.parametrize("suffix", PACK)
def test_a_damaged_compressed_file(write, read, suffix):
    whole = PACK[suffix](os.urandom(3000).hex().encode())
    for content in (b"plain", whole[: len(whole) // 2]):
        path = write(f"t.txt{suffix}", content)
        (problem,) = read(path).problems
        assert problem.startswith(f"{path}: not a readable {suffix} file (") and problem.endswith("; write it again")


def test_a_small_file_that_unfolds_too_far(write, read, monkeypatch):
    monkeypatch.setattr("torch_linformer.measuring.machine.memory_bytes", lambda: 100_000)
    monkeypatch.setattr(formats, "MOST_UNFOLDED", 10)
    path = write("t.txt.gz", gzip.compress(b"a" * 1_000_000))
    assert read(path).problems == [f"{path}: unfolds to more than 10 times its size; unfold it yourself"]
    with open_bytes(write("u.txt.gz", gzip.compress(b"a" * 100_000))) as stream:
        assert len(stream.read()) == 100_000  # as much as the memory may be


# Encodings


@pytest.mark.parametrize(
    ("mark", "encoding"),
    [
        (codecs.BOM_UTF8, "utf-8"),
        (codecs.BOM_UTF16_LE, "utf-16-le"),
        (codecs.BOM_UTF16_BE, "utf-16-be"),
        (codecs.BOM_UTF32_LE, "utf-32-le"),
        (codecs.BOM_UTF32_BE, "utf-32-be"),
    ],
)
def test_byte_order_marks(write, read, mark, encoding):
    path = write("t.csv", mark + "text,label\nnaïve 😀,a\n".encode(encoding))
    outcome = read(path)
    assert outcome.rows == [{"text": "naïve 😀", "label": "a"}] and outcome.problems == []
    told = [] if encoding == "utf-8" else [f"{path}: read as {encoding[:6].upper()}, by its byte order mark"]
    assert outcome.notes == told
    assert read(path, encoding=encoding) == outcome._replace(notes=[])  # named: its mark is no letter


def test_a_mark_is_heeded_whatever_the_encoding_is_called(write, read):
    path = write("t.csv", "\ufefftext\nnaïve\n")
    for name in ("utf-8", "utf8", "UTF_8", "u8", "utf-8-sig"):
        assert read(path, encoding=name).rows == [{"text": "naïve"}]


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "cp1252"),
        ("Привет, мир, как дела сегодня\n" * 3, "cp1251"),
        # Lines that begin with a byte that goes on in UTF-8.
        ("この映画はとても面白かったです\n" * 20, "shift_jis"),
        ("žluťoučký kůň úpěl ďábelské ódy\n" * 20, "cp1250"),
    ],
)
def test_an_encoding_is_detected_and_told_or_named(write, read, text, encoding):
    path = write("t.txt", text.encode(encoding))
    outcome = read(path)
    word = next(word for word in text.split() if not word.isascii())
    assert outcome.rows == [{"text": text}]
    assert outcome.notes == [f"{path}: read as {encoding}, as detected ({word!r}); --encoding names another"]
    named = read(path, encoding="latin1")
    assert named.rows == [{"text": text.encode(encoding).decode("latin1")}] and named.notes == []


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("café", "cp1252 ('café') as cp1251 ('cafй') as "),
        ("L'été était très long\n", "cp1252 ('très') as cp1250 ('trčs')"),  # where the readings differ
        # charset-normalizer likes the Baltic reading of this French a little better than the most usual one.
        ("garçon, le film “était” très bien… à Noël, où déjà vu\n", "cp1252 ('garçon,') as "),
    ],
)
def test_two_encodings_that_fit_are_a_question(write, read, text, shown):
    path = write("t.txt", text.encode("cp1252"))
    (problem,) = read(path).problems
    assert problem.startswith(f"{path}: not UTF-8, and reads as well as {shown}")
    assert problem.endswith("; name the right one with --encoding")
    assert read(path, encoding="cp1252").rows == [{"text": text}]


def test_an_encoding_that_makes_no_words_is_not_detected(write, read):
    lines = "".join(f"été déjà vu à Noël {number},{number % 2}\n" for number in range(40))
    (problem,) = read(write("t.txt", lines.encode("mac-roman"))).problems
    assert problem.endswith("neither UTF-8 nor an encoding that can be detected; name it with --encoding")


def encodings_of(*paths):
    return [*find_encodings(paths, "here", NO_OPTIONS, lambda note: None)[0].values()]


def test_damaged_lines_among_others_in_utf8_are_not_another_encoding(write, read, monkeypatch):
    lines = [b"na\xc3\xafve\n", b"caf\xe9\n", b"\xc3\xa9t\xc3\xa9\n"]
    paths = [write("t.txt", b"".join(lines)), write("u.txt", b"plain\n" * 9)]
    monkeypatch.setattr(formats, "_PIECE", 5)  # a line in pieces is not damaged where it is cut
    paths += [write("v.txt", "aéééééé漢漢漢漢漢😀😀😀😀"), write("w.txt", "éé漢漢😀😀".encode() + b"\xe9")]
    assert encodings_of(*paths) == ["utf-8"] * 4
    write("texts/1.csv", b"text\nna\xc3\xafve\ncaf\xe9\n\xc3\xa9t\xc3\xa9\n")
    assert len(read(paths[0].parent / "texts").rows) == 3


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        ("plain", "utf-16"),  # which begins with a mark
        (b"abc", "utf-16-le"),  # half a character
        ("a😀".encode("utf-16-le")[:-2], "utf-16-le"),
    ],
)
def test_what_is_not_of_a_wide_encoding(write, read, content, encoding):
    path = write("t.txt", content)
    (problem,) = read(path, encoding=encoding).problems
    assert problem.startswith(f"{path}: not {encoding} (") and problem.endswith("); name another with --encoding")


def test_the_place_of_a_byte_is_shown_with_what_is_around_it():
    check_decoded("naïve \ufffd 😀")  # all are characters
    text = (b"a" * 50 + b"\xff" + b"b" * 50).decode("utf-8", "surrogateescape")
    with pytest.raises(InputError) as raised:
        check_decoded(text, "ascii")
    around = "a" * 10 + "\\xff" + "b" * 9
    assert str(raised.value).startswith(f"holds bytes that are not ascii ('{around}'); save the file as UTF-8, or name")


def test_the_files_of_a_folder_are_detected_together(write, read, tmp_path):
    """Each by itself reads as well in several encodings."""
    words = ["Ärger über", "größere Übel", "führt zu schönen Grüßen"]
    for number, text in enumerate(words):
        write(f"texts/{number}.txt", text.encode("cp1252"))
    write("texts/3.txt", "naïve")
    write("texts/4.txt", "plain")
    outcome = read(tmp_path / "texts")
    assert [row["text"] for row in outcome.rows] == [*words, "naïve", "plain"]
    note = f"3 files of {tmp_path / 'texts'}: read as cp1252, as detected ('Ärger'); --encoding names another"
    assert outcome.notes == [note]
    write("texts/0.txt", "plain")
    write("texts/1.txt", "café".encode("cp1252"))
    write("texts/2.txt", "plain")
    with pytest.raises(InputError, match=r"^1 files of .*texts: not UTF-8, and reads as well as cp1252 \('café'\) as"):
        load_documents(str(tmp_path / "texts"), TEXT)
    named = load_documents(str(tmp_path / "texts"), TEXT, options=DataOptions(encoding="latin1"))
    assert named.dataset["text"][1] == "café"


# What is no text


@pytest.mark.parametrize(
    ("name", "content"),
    [
        *((name, "whatever") for name in ("report.pdf", "all.ZIP", "paper.docx", "t.csv.xz", "a.npy", "paper.pdf.gz")),
        *((name, b"\x89PNG\0\0") for name in ("image", "t.csv", "t.jsonl", "t.json", "t.conll")),
    ],
)
def test_binary_files_are_no_text(write, read, name, content):
    path = write(name, content)
    assert read(path).problems == [f"{path}: not text, nor another known format; {KNOWN}"]
    assert encodings_of(path) == [None]


@pytest.mark.parametrize("name", ["t.xlsx", "t.xls", "t.ods"])
def test_sheets_are_to_be_saved_as_tables(write, read, name):
    path = write(name, "PK")
    assert read(path).problems == [f"{path}: sheets are not read; save the one you want as CSV in UTF-8"]

import bz2
import codecs
import gzip
import os
from pathlib import Path

import pyarrow
import pytest

from torch_linformer.data.reading import encodings, formats
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.encodings import Encoding, check_decoded, detect_together, find_encoding, is_readable
from torch_linformer.data.reading.formats import file_stem, file_suffix, open_bytes
from torch_linformer.data.reading.records import TEXT
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
    ("mark", "encoding", "note"),
    [
        (codecs.BOM_UTF8, "utf-8", None),
        (codecs.BOM_UTF16_LE, "utf-16-le", "read as UTF-16, by its byte order mark"),
        (codecs.BOM_UTF16_BE, "utf-16-be", "read as UTF-16, by its byte order mark"),
        (codecs.BOM_UTF32_LE, "utf-32-le", "read as UTF-32, by its byte order mark"),
        (codecs.BOM_UTF32_BE, "utf-32-be", "read as UTF-32, by its byte order mark"),
    ],
)
def test_byte_order_marks(write, read, mark, encoding, note):
    path = write("t.csv", mark + "text,label\nnaïve 😀,a\n".encode(encoding))
    outcome = read(path)
    assert outcome.rows == [{"text": "naïve 😀", "label": "a"}] and outcome.problems == []
    assert outcome.notes == ([] if note is None else [f"{path}: {note}"])
    assert read(path, encoding=encoding) == outcome._replace(notes=[])  # named: its mark is no letter


def test_a_mark_is_heeded_whatever_the_encoding_is_called(write, read):
    path = write("t.csv", "\ufefftext\nnaïve\n")
    for name in ("utf-8", "utf8", "UTF_8", "u8", "utf-8-sig"):
        assert read(path, encoding=name).rows == [{"text": "naïve"}]


@pytest.mark.parametrize(("text", "encoding"), [(GERMAN, "cp1252"), ("Привет, мир, как дела сегодня\n" * 3, "cp1251")])
def test_an_encoding_is_detected_and_told(write, read, text, encoding):
    path = write("t.txt", text.encode(encoding))
    outcome = read(path)
    word = next(word for word in text.split() if not word.isascii())
    assert outcome.rows == [{"text": text}]
    assert outcome.notes == [f"{path}: read as {encoding}, as detected ({word!r}); --encoding names another"]


def test_an_encoding_that_is_named_is_not_detected(write, read):
    path = write("t.txt", GERMAN.encode("cp1252"))
    outcome = read(path, encoding="cp437")
    assert outcome.rows == [{"text": GERMAN.encode("cp1252").decode("cp437")}] and outcome.notes == []


def test_two_encodings_that_fit_are_a_question(write, read):
    path = write("t.txt", "café".encode("cp1252"))
    (problem,) = read(path).problems
    assert problem.startswith(f"{path}: not UTF-8, and reads as well as cp1252 ('café') as cp1251 ('cafй') as ")
    assert problem.endswith("; name the right one with --encoding")
    assert read(path, encoding="cp1252").rows == [{"text": "café"}]


def test_a_question_shows_where_the_readings_differ(write, read):
    path = write("t.txt", "L'été était très long\n".encode("cp1252"))
    (problem,) = read(path).problems
    assert "cp1250 ('trčs')" in problem and "cp1252 ('très')" in problem and "été" not in problem


def test_the_most_usual_encoding_is_among_those_that_fit(write, read):
    """charset-normalizer likes the Baltic reading of this French a little better."""
    path = write("t.txt", "garçon, le film “était” très bien… à Noël, où déjà vu\n".encode("cp1252"))
    (problem,) = read(path).problems
    assert problem.startswith(f"{path}: not UTF-8, and reads as well as cp1252 ('garçon,') as ")


@pytest.mark.parametrize(
    ("line", "encoding"),
    [("この映画はとても面白かったです", "shift_jis"), ("žluťoučký kůň úpěl ďábelské ódy", "cp1250")],
)
def test_a_line_that_begins_with_a_byte_that_goes_on_in_utf8(write, read, line, encoding):
    path = write("t.txt", f"{line}\n".encode(encoding) * 20)
    assert read(path).rows == [{"text": f"{line}\n" * 20}]


def test_an_encoding_that_makes_no_words_is_not_detected(write, read):
    lines = "".join(f"été déjà vu à Noël {number},{number % 2}\n" for number in range(40))
    (problem,) = read(write("t.txt", lines.encode("mac-roman"))).problems
    assert problem.endswith("neither UTF-8 nor an encoding that can be detected; name it with --encoding")


def test_damaged_lines_among_others_in_utf8_are_not_another_encoding(write):
    lines = [b"na\xc3\xafve\n", b"caf\xe9\n", b"\xc3\xa9t\xc3\xa9\n"]
    assert find_encoding(write("t.txt", b"".join(lines)), NO_OPTIONS) == Encoding("utf-8")
    assert find_encoding(write("u.txt", b"plain\n" * 9), NO_OPTIONS) == Encoding("utf-8")


def test_a_line_in_pieces_is_not_damaged_where_it_is_cut(write, monkeypatch):
    monkeypatch.setattr(encodings, "_LINE_BYTES", 5)
    assert find_encoding(write("t.txt", "aéééééé漢漢漢漢漢😀😀😀😀"), NO_OPTIONS) == Encoding("utf-8")


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


def test_bytes_that_are_not_of_the_named_encoding(write, read):
    path = write("t.csv", "text\nplain\nnaïve\n")
    outcome = read(path, encoding="ascii")
    assert outcome.rows == [{"text": "plain"}]
    assert "row 2: holds bytes that are not ascii ('na\\xc3\\xafve'); save the file as" in outcome.problems[0]


def test_the_place_of_a_byte_is_shown_with_what_is_around_it():
    check_decoded("naïve \ufffd 😀", "t.txt")  # all are characters
    text = (b"a" * 50 + b"\xff" + b"b" * 50).decode("utf-8", "surrogateescape")
    with pytest.raises(InputError) as raised:
        check_decoded(text, "t.txt")
    around = "a" * 10 + "\\xff" + "b" * 9
    assert str(raised.value).startswith(f"t.txt: holds bytes that are not UTF-8 ('{around}'); save the file as")


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


def test_files_of_a_folder_that_fit_two_encodings_are_a_question(write, tmp_path):
    write("texts/1.txt", "café".encode("cp1252"))
    with pytest.raises(InputError, match=r"^1 files of .*texts: not UTF-8, and reads as well as cp1252 \('café'\) as"):
        load_documents(str(tmp_path / "texts"), TEXT)
    named = load_documents(str(tmp_path / "texts"), TEXT, options=DataOptions(encoding="cp1252"))
    assert named.dataset["text"][:] == ["café"]


def test_damaged_lines_of_a_file_of_a_folder_are_not_another_encoding(write, read, tmp_path):
    write("texts/1.csv", b"text\nna\xc3\xafve\ncaf\xe9\n\xc3\xa9t\xc3\xa9\n")
    outcome = read(tmp_path / "texts")
    assert [row["text"] for row in outcome.rows] == ["naïve", "été"] and "row 2: holds bytes" in outcome.problems[0]


def test_files_that_need_no_detecting(write, tmp_path):
    paths = [write("plain.txt", "naïve"), write("a.txt", codecs.BOM_UTF16_LE + b"\xe9\0"), write("b.pdf", b"\xe9")]
    assert detect_together(tmp_path, [*paths, write("t.parquet", b"\xe9"), tmp_path / "gone.txt"]) == (set(), None)


# What is no text


@pytest.mark.parametrize("name", ["report.pdf", "all.ZIP", "paper.docx", "t.csv.xz", "a.npy", "paper.pdf.gz"])
def test_other_formats_are_known_by_their_suffix(write, read, name):
    path = write(name, "whatever")
    assert read(path).problems == [f"{path}: not text, nor another known format; {KNOWN}"]
    assert not is_readable(path, NO_OPTIONS)


@pytest.mark.parametrize("name", ["t.xlsx", "t.xls", "t.ods"])
def test_sheets_are_to_be_saved_as_tables(write, read, name):
    path = write(name, "PK")
    assert read(path).problems == [f"{path}: sheets are not read; save the one you want as CSV in UTF-8"]


@pytest.mark.parametrize("name", ["image", "t.csv", "t.jsonl", "t.json", "t.conll"])
def test_binary_files_are_no_text(write, read, name):
    path = write(name, b"\x89PNG\0\0")
    assert read(path).problems == [f"{path}: not text, nor another known format; {KNOWN}"]
    assert not is_readable(path, NO_OPTIONS)


def test_what_is_readable(write):
    for name, content in (
        ("t.txt", "a"),
        ("t.csv", codecs.BOM_UTF16_LE + "a".encode("utf-16-le")),
        ("t.parquet", b"\0"),
    ):
        assert is_readable(write(name, content), NO_OPTIONS)
    assert is_readable(write("u.txt", "a".encode("utf-16-le")), DataOptions(encoding="utf-16-le"))
    assert is_readable(write("t.txt.gz", b"damaged"), NO_OPTIONS)  # which is told when it is read

"""Plain texts: files that are each a document, or hold many; what has to fit into memory; texts that a table names."""

import gzip
import io
import json

import pytest

from torch_linformer.data.reading import readers
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import TEXT, ChosenColumns, names_file
from torch_linformer.data.reading.rows import ReadReport, Row
from torch_linformer.data.reading.sources import stream_rows
from torch_linformer.data.reading.streamed import documents_of
from torch_linformer.errors import InputError

LINES = [f"line {number}\n" for number in range(20)]


def texts_of(outcome):
    assert all(row.keys() == {"text"} for row in outcome.rows)
    return [row["text"] for row in outcome.rows]


@pytest.mark.parametrize("name", ["notes.txt", "notes.md", "main.py", "README"])
def test_a_file_is_one_document(write, read, name):
    path = write(name, "\ufefffirst\r\n\nsecond\n")
    outcome = read(path)
    assert texts_of(outcome) == ["first\r\n\nsecond\n"] and outcome.places == [str(path)]
    assert outcome.notes == outcome.problems == []


def test_an_empty_file_is_an_empty_document(write, read):
    assert texts_of(read(write("e.txt", ""))) == [""]


def test_bytes_of_another_encoding_make_a_bad_row(write):
    path = write("t.txt", b"na\xc3\xafve\ncaf\xe9\n\xc3\xa9\n")
    with pytest.raises(InputError) as raised:
        list(documents_of([str(path)], TEXT, NO_OPTIONS, ReadReport()))
    assert str(raised.value) == (
        f"{path}: holds bytes that are not UTF-8 ('na\\xc3\\xafve\\ncaf\\xe9\\n\\xc3\\xa9\\n'); "
        "save the file as UTF-8, or name its encoding with --encoding"
    )


def test_a_genuine_replacement_character_stays(write, read):
    outcome = read(write("t.txt", "a \ufffd stands here"))
    assert texts_of(outcome) == ["a \ufffd stands here"] and outcome.problems == [] and outcome.replaced == 0


# Lines


def test_lines_without_paragraphs_are_documents(write, read):
    path = write("t.txt", "".join(LINES))
    outcome = read(path, whole=False)
    assert texts_of(outcome) == LINES
    assert outcome.notes == [f"{path}: each line is a document; for others give a folder of files, or JSON lines"]
    assert texts_of(read(path)) == ["".join(LINES)]  # whole


@pytest.mark.parametrize("lines", [LINES[:19], [*LINES, "\n", "after a blank line\n"]], ids=["few", "paragraphs"])
def test_other_files_are_not_of_lines(write, read, lines):
    outcome = read(write("t.txt", "".join(lines)), whole=False)
    assert texts_of(outcome) == ["".join(lines)]
    assert "each piece of about 1,000 characters, cut between paragraphs or lines, is a document" in outcome.notes[0]


@pytest.mark.parametrize("name", ["notes.txt", "service.log"])
def test_lines_of_json_are_no_texts(write, read, name):
    (problem,) = read(write(name, '{"text": "so far", "label": "a"}\n' * 30), whole=False).problems
    jsonl = name.partition(".")[0] + ".jsonl"
    assert problem.endswith(f"{name}: its lines are JSON objects: call it {jsonl} to have them read")
    (packed,) = read(write(f"{name}.gz", gzip.compress(b'{"a": 1}\n' * 30)), whole=False).problems
    assert packed.endswith(f": call it {jsonl}.gz to have them read")
    assert texts_of(read(write(name, "[so far]\n" * 30), whole=False)) == ["[so far]\n"] * 30


def test_a_damaged_line_leaves_the_others(write):
    lines = b"".join([*map(str.encode, LINES), b"caf\xe9\n", *["naïve\n".encode()] * 2])
    found = load_documents(str(write("t.txt", lines)), TEXT, max_errors=1)
    assert found.dataset["text"][:] == [*LINES, "naïve\n", "naïve\n"] and "('caf\\xe9\\n')" in found.notes[-1]


# Pieces


@pytest.fixture
def short_pieces(monkeypatch):
    """Pieces of ten characters, twenty where no paragraph ends before."""
    monkeypatch.setattr(readers, "_SHORTEST_PIECE", 10)
    monkeypatch.setattr(readers, "_OVERLONG", 2)


def test_pieces_end_with_a_paragraph(write, read, short_pieces):
    paragraphs = ["one\n\n", "a longer one\n\n", "two lines\nof these\n\n", "end"]
    outcome = read(write("t.txt", "".join(paragraphs)), whole=False)
    assert texts_of(outcome) == ["one\n\na longer one\n\n", "two lines\nof these\n\n", "end"]


def test_an_overlong_paragraph_ends_at_a_line(write, read, short_pieces):
    lines = ["\n", "eleven more\n", "and more lines\n", "here\n", "fin"]
    assert texts_of(read(write("t.txt", "".join(lines)), whole=False)) == ["".join(lines[:3]), "here\nfin"]


def test_a_file_alone_has_fifty_pieces_at_least(write, read, monkeypatch):
    monkeypatch.setattr(readers, "_SHORTEST_PIECE", 1)
    content = "a paragraph of 25 letters\n\n" * 100
    outcome = read(write("t.txt", content), whole=False)
    assert len(outcome.rows) == 50 and "".join(texts_of(outcome)) == content


def test_pieces_of_the_files_of_a_folder(write, read, monkeypatch, tmp_path):
    """They end at any line, and no character is cut in two."""
    monkeypatch.setattr(readers, "_PIECE", 10)
    text = "short\nlonger line\nx" + "é" * 30 + "\n\nend"
    write("data/1.txt", text)
    write("data/2.txt", "".join(LINES[:2]))
    outcome = read(tmp_path / "data", whole=False)
    assert "".join(texts_of(outcome)) == text + "".join(LINES[:2])
    assert texts_of(outcome)[:2] == ["short\nlonger lin", "e\nx" + "é" * 9]
    assert outcome.notes == []
    assert texts_of(read(tmp_path / "data")) == [text, "".join(LINES[:2])]


def test_how_a_file_is_read_is_told(write, tmp_path):
    path = str(write("t.txt", "".join(LINES)))
    documents = load_documents(path, TEXT)
    assert documents.dataset["text"][:] == LINES and documents.notes[0].startswith(f"{path}: each line is a document;")
    named = load_documents(path, TEXT, options=DataOptions(encoding="cp1252"))
    assert named.dataset["text"][:] == LINES
    assert load_documents(str(tmp_path), TEXT).dataset["text"][:] == LINES  # a folder with this file alone


# Memory


REFUSED = "holds more than 1 kB, 1/64 of this machine's memory, as one text; split it, or write JSON lines with"


@pytest.fixture
def little_memory(monkeypatch):
    """64 kB: a text of 1,000 characters is taken, and JSON of 4,000."""
    monkeypatch.setattr(readers, "memory_bytes", lambda: 64_000)


@pytest.mark.parametrize(("size", "taken"), [(1000, True), (1001, False)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_text(write, read, little_memory, suffix, size, taken):
    text = ("x" * (size - 1)) + "\n"
    path = write(f"t.txt{suffix}", gzip.compress(text.encode()) if suffix else text)
    outcome = read(path)
    assert [row["text"] for row in outcome.rows] == ([text] if taken else [])
    assert taken or outcome.problems[0].startswith(f"{path}: {REFUSED}")
    assert len(read(path, whole=False).rows) >= 1  # in pieces it may have any size


def test_a_value_of_json(write, read, little_memory):
    for number, taken in ((150, True), (200, False)):
        path = write("t.json", json.dumps({"a": [{"text": f"{row:05d}"} for row in range(number)]}, indent=0))
        outcome = read(path)
        assert len(outcome.rows) == (number if taken else 0)
        assert taken or "holds more than 4 kB, 1/16 of this machine's memory" in outcome.problems[0]
    assert len(read(write("t.jsonl", '{"text": "wet"}\n' * 1000)).rows) == 1000


def test_standard_input(little_memory):
    assert [row.values["text"] for row in stream_rows(io.BytesIO(b"x" * 1000), NO_OPTIONS)] == ["x" * 1000]
    (row,) = stream_rows(io.BytesIO(b"x\n" * 501), NO_OPTIONS)
    assert str(row.values).startswith(f"standard input: {REFUSED}")


def test_a_file_that_a_table_names(tmp_path, little_memory):
    (tmp_path / "t.txt").write_text("x" * 1001)
    with pytest.raises(InputError, match=REFUSED):
        ChosenColumns("text", folder=tmp_path).read_text(Row("row 1", {"text": "t.txt"}))


# Texts that a table names


TABLE = "file,label\na.txt,x\ndeep/b.txt,y\n"


@pytest.fixture
def table(write):
    """A table that names two files beside it, and one more file outside of its folder."""
    write("outside.txt", "secret")
    write("data/a.txt", "first")
    write("data/deep/b.txt", "second")
    return write("data/t.csv", TABLE)


def test_files_that_a_column_names_are_read(table):
    documents = load_documents(str(table))
    assert documents.dataset[:] == {"text": ["first", "second"], "label": ["x", "y"]}
    assert documents.notes[0].endswith(f"; the texts are the files of that name in {table.parent}")
    assert documents.columns == {"text": "file", "label": "label"}


def test_a_folder_may_be_named(table, write):
    elsewhere = write("t.csv", TABLE)
    named = load_documents(str(elsewhere), options=DataOptions(text_folder=str(table.parent)))
    assert named.dataset["text"][:] == ["first", "second"]
    with pytest.raises(InputError, match=r"column 'file' holds names of files, such as 'a\.txt', and .* --text-folder"):
        load_documents(str(elsewhere))  # no file is there
    with pytest.raises(InputError, match=r"^--text-folder nowhere: no such folder$"):
        load_documents(str(elsewhere), options=DataOptions(text_folder="nowhere"))


@pytest.mark.parametrize("is_named", [True, False])
def test_a_file_that_is_missing_is_a_bad_row(table, is_named):
    table.write_text(TABLE + "c.txt,y\n")
    named = DataOptions(text_folder=str(table.parent) if is_named else None)
    message = rf"row 3: no file 'c\.txt' in {table.parent}; --text-folder names another folder$"
    with pytest.raises(InputError, match=message):
        load_documents(str(table), options=named)
    documents = load_documents(str(table), options=named, max_errors=1)
    assert documents.dataset["text"][:] == ["first", "second"] and "left out 1 row that" in documents.notes[-1]


@pytest.mark.parametrize("outside", ["../outside.txt", "/etc/hosts", "link.txt", "deep/../../outside.txt"])
def test_what_lies_outside_the_folder_is_not_read(table, outside):
    (table.parent / "link.txt").symlink_to(table.parent.parent / "outside.txt")
    assert not names_file(table.parent, outside)
    with pytest.raises(InputError, match=r"^no file .*; --text-folder names another folder$"):
        ChosenColumns("file", folder=table.parent).read_text(Row("row 1", {"file": outside}))
    table.write_text(f"file,label\n{outside},x\n")
    if outside.endswith(".txt"):
        with pytest.raises(InputError, match=r"holds no such files; --text-folder names the folder that does$"):
            load_documents(str(table))
    else:
        assert load_documents(str(table)).dataset["text"][:] == [outside]


@pytest.mark.parametrize("value", [None, 3, "", "nowhere.txt", "deep", "a\0b", "x" * 300, "漢" * 200])
def test_values_that_name_no_file(table, value):
    assert not names_file(table.parent, value)


def test_short_texts_of_long_characters_are_texts(write):
    """A name of a file has 255 bytes at most, which are fewer characters."""
    path = write("t.csv", f"text\n{'漢字' * 60}\n")
    assert load_documents(str(path), TEXT).dataset["text"][:] == ["漢字" * 60]


def test_a_file_that_has_changed_is_read_again(table):
    first = load_documents(str(table)).dataset
    assert first["text"][0] == "first" and first._fingerprint == load_documents(str(table)).dataset._fingerprint
    (table.parent / "a.txt").write_text("now another")
    again = load_documents(str(table)).dataset
    assert again["text"][0] == "now another" and first["text"][0] == "first"
    assert again._fingerprint != first._fingerprint  # so that what is made of the documents is made again


def test_files_are_read_in_the_encoding_that_is_named(table):
    (table.parent / "a.txt").write_bytes("Ĉiuĵaŭde".encode("iso8859-3"))
    named = DataOptions(encoding="iso8859-3")
    assert load_documents(str(table), options=named).dataset["text"][0] == "Ĉiuĵaŭde"

import gzip

import pytest

from torch_linformer.data.reading import plain_texts
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import TEXT

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


def test_bytes_of_another_encoding_make_a_bad_row(write, read):
    path = write("t.txt", b"na\xc3\xafve\ncaf\xe9\n\xc3\xa9\n")
    outcome = read(path)
    assert outcome.rows == [] and outcome.problems == [
        f"{path}: holds bytes that are not UTF-8 ('na\\xc3\\xafve\\ncaf\\xe9\\n\\xc3\\xa9\\n'); "
        "save the file as UTF-8, or name its encoding with --encoding"
    ]


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


def test_a_damaged_line_leaves_the_others(write, read):
    lines = [line.encode() for line in LINES]
    outcome = read(write("t.txt", b"".join([*lines, b"caf\xe9\n", *["naïve\n".encode()] * 2])), whole=False)
    assert texts_of(outcome) == [*LINES, "naïve\n", "naïve\n"]
    assert len(outcome.problems) == 1 and "('caf\\xe9\\n')" in outcome.problems[0]


# Pieces


@pytest.fixture
def short_pieces(monkeypatch):
    """Pieces of ten characters, twenty where no paragraph ends before."""
    monkeypatch.setattr(plain_texts, "_SHORTEST_PIECE", 10)
    monkeypatch.setattr(plain_texts, "_OVERLONG", 2)


def test_pieces_end_with_a_paragraph(write, read, short_pieces):
    paragraphs = ["one\n\n", "a longer one\n\n", "two lines\nof these\n\n", "end"]
    outcome = read(write("t.txt", "".join(paragraphs)), whole=False)
    assert texts_of(outcome) == ["one\n\na longer one\n\n", "two lines\nof these\n\n", "end"]


def test_an_overlong_paragraph_ends_at_a_line(write, read, short_pieces):
    lines = ["\n", "eleven more\n", "and more lines\n", "here\n", "fin"]
    assert texts_of(read(write("t.txt", "".join(lines)), whole=False)) == ["".join(lines[:3]), "here\nfin"]


def test_a_file_alone_has_fifty_pieces_at_least(write, read, monkeypatch):
    monkeypatch.setattr(plain_texts, "_SHORTEST_PIECE", 1)
    content = "a paragraph of 25 letters\n\n" * 100
    outcome = read(write("t.txt", content), whole=False)
    assert len(outcome.rows) == 50 and "".join(texts_of(outcome)) == content


def test_pieces_of_the_files_of_a_folder(write, read, monkeypatch, tmp_path):
    """They end at any line, and no character is cut in two."""
    monkeypatch.setattr(plain_texts, "_PIECE", 10)
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

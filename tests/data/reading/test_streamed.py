import io
import json
import os
import sys
import threading

import pytest

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.records import ASKED, TAGGED, TEXT
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document, documents_of, given_files
from torch_linformer.errors import InputError


@pytest.fixture
def found(write):
    """A function: the documents of a file of these objects, or of this content; their places without the file's."""

    def read(content, record=TEXT, report=None, *args, name="x.jsonl", options=NO_OPTIONS, **others):
        content = content if isinstance(content, str) else "\n".join(map(json.dumps, content))
        path = str(write(name, content))
        documents = documents_of([path], record, options, report or ReadReport(), *args, **others)
        return [document._replace(where=document.where.removeprefix(f"{path}, ")) for document in documents]

    return read


def rows(*values, column="text"):
    return [{"id": str(i), column: value} for i, value in enumerate(values, start=1)]


def test_documents_without_text_are_counted_and_may_keep_their_places(found):
    for keep in (False, True):
        report = ReadReport()
        documents = found(rows("a", "", None, " \n", "b"), TEXT, report, keep_empty=keep)
        assert [document.id for document in documents if document.text] == ["1", "5"] and report.empty == 3
        assert len(documents) == (5 if keep else 2)
    assert documents[0] == Document("line 1", "a", id="1")
    assert found("") == []
    unread = found(rows("a", "unread"), TEXT, report, reads=lambda texts: [text == "a" for text in texts])
    assert len(unread) == 1 and report.empty == 4


def test_a_pipe_is_read_once(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for content, texts in (("wet\nmud\n", ["wet\nmud\n"]), ('{"text": "wet"}\n{"text": "mud"}\n', ["wet", "mud"])):
        threading.Thread(target=(tmp_path / "pipe").write_text, args=(content,)).start()
        documents = list(documents_of([str(tmp_path / "pipe")], TEXT, NO_OPTIONS, ReadReport()))
        assert [document.text for document in documents] == texts
    assert documents[1].where == f"{tmp_path / 'pipe'}, line 2"


def test_the_text_column_is_recognised_or_named(found):
    assert found(rows("a", column="review")) == [Document("line 1", "a", id="1")]
    assert found(rows("a"), options=DataOptions(text_column="id")) == [Document("line 1", "1")]
    with pytest.raises(InputError, match=r"x\.jsonl: no column 'body', which --text-column names; columns: 'id', 'tex"):
        found(rows("a"), options=DataOptions(text_column="body"))
    trained = DataOptions(trained=(("text", "body"), ("label", "kind")))
    table = [{"id": 7, "text": "a", "body": "b"}]
    assert found(table, options=trained) == [Document("line 1", "b", id="7")]
    assert found(table, options=DataOptions(text_column="text", trained=trained.trained))[0].text == "a"


def test_questions_come_from_their_column_or_are_the_same_for_all(found):
    asked = [{"context": "a", "question": "who?"}, {"context": "b", "question": "why?"}]
    assert found(asked, ASKED) == [Document("line 1", "a", "who?"), Document("line 2", "b", "why?")]
    same = found(rows("a", "b"), ASKED, None, "who?")
    assert same == [Document("line 1", "a", "who?", id="1"), Document("line 2", "b", "who?", id="2")]
    with pytest.raises(InputError, match=r"line 1: no question in column 'question'; fill it in or remove the row$"):
        found([{"context": "a", "question": ""}], ASKED)
    with pytest.raises(InputError, match="a text without a question; ask one of every document with --question"):
        found("a text", ASKED, name="x.txt")


def test_rows_that_cannot_be_read_are_left_to_the_report(found):
    problems = []
    report = ReadReport(on_bad=lambda where, problem: problems.append((where, str(problem))))
    texts = [document.text for document in found(rows("a", 3, "b\ud83d"), TEXT, report)]
    assert texts == ["a", "b\ufffd"] and report.replaced == 1
    ((where, problem),) = problems
    assert where.endswith("x.jsonl, line 2")
    assert problem == f"{where}: column 'text' holds 3, not text; name the texts with --text-column"
    assert found(rows("a"), TEXT, report, options=DataOptions(text_column="body")) == []
    assert problems[1][0].endswith("x.jsonl") and report.bad == 2
    assert found("broken\nbroken", TEXT, report) == [] and report.bad == 4
    with pytest.raises(InputError, match=r"line 2: column 'text' holds 3"):  # as nobody takes bad rows
        found(rows("a", 3))


def test_where_the_texts_of_a_table_come_from_is_told_once(found):
    report, told = ReadReport(on_note=lambda note: told.append(note)), []
    for name in ("a.jsonl", "b.jsonl"):
        found(rows("a"), TEXT, report, name=name)
    found("a text", TEXT, report, name="x.txt")
    assert told == report.notes == ["texts from column 'text' (by its name)"]


def test_words_are_kept_as_they_are(found):
    documents = found([{"tokens": ["New York", "is"]}, {"tokens": "not a list"}], TAGGED)
    assert [(document.text, document.words) for document in documents] == [
        ("New York is", ("New York", "is")),
        ("not a list", ("not", "a", "list")),
    ]
    with pytest.raises(InputError, match=r"line 1: column 'tokens' holds \[''\], no list of words"):
        found([{"tokens": [""]}], TAGGED)


def test_other_columns_of_one_word_a_row_are_those_of_the_first_word(found):
    table = "id,sent,word,tag,letter\nx,1,Ann,B,l1\ny,1,met,O,l1\nz,2,Bo,B,l2\n"
    documents = found(table, TAGGED, name="t.csv")
    assert [(document.words, document.id, document.where) for document in documents] == [
        (("Ann", "met"), "x", "row 1"),
        (("Bo",), "z", "row 3"),
    ]


def test_options_reach_the_files_and_standard_input(tmp_path, monkeypatch):
    path = tmp_path / "x.csv"
    path.write_bytes("body~n\nGröße, so~1\n".encode("cp1252"))
    options = DataOptions(encoding="cp1252", delimiter="~", text_column="body")
    assert [document.text for document in documents_of([str(path)], TEXT, options, ReadReport())] == ["Größe, so"]
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("Größe".encode("cp1252"))))
    (document,) = documents_of(["-"], TEXT, DataOptions(encoding="cp1252"), ReadReport())
    assert document == Document("standard input", "Größe")
    with pytest.raises(InputError, match=r"none\.csv: no such file or folder$"):
        list(documents_of([str(tmp_path / "none.csv")], TEXT, NO_OPTIONS, ReadReport()))


def test_a_pattern_stands_for_what_it_matches(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.csv", "a.csv", "c.txt", "d[1].csv", "deep/er/e.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert given_files(["c.txt", "?.csv", "-"]) == ("c.txt", "a.csv", "b.csv", "-")
    assert given_files(["**/e.csv", "d[1].csv", "deep"]) == ("deep/er/e.csv", "d[1].csv", "deep")
    with pytest.raises(InputError, match=r"^\*\.json: matches no file$"):
        given_files(["a.csv", "*.json"])
    with pytest.raises(InputError, match=r"^f\.csv: no such file or folder$"):
        given_files(["a.csv", "f.csv"])

import pytest

from torch_linformer.data.reading.options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.records import ASKED, TEXT
from torch_linformer.data.reading.rows import ReadReport, Row
from torch_linformer.data.reading.streamed import Document, documents, given_files
from torch_linformer.errors import InputError


def rows(*values, column="text"):
    return [Row({"id": str(i), column: value}, f"row {i}") for i, value in enumerate(values, start=1)]


def test_documents_without_text_are_counted():
    report = ReadReport()
    found = list(documents(rows("a", "", None, " \n", "b"), "x.csv", TEXT, NO_OPTIONS, report))
    assert found == [Document("row 1", "a"), Document("row 5", "b")] and report.empty == 3
    assert list(documents([], "x.csv", TEXT, NO_OPTIONS, report)) == []


def test_the_text_column_is_recognised_or_named():
    def read(column, name=None):
        return list(documents(rows("a", column=column), "x.csv", TEXT, DataOptions(text_column=name), ReadReport()))

    assert read("review") == [Document("row 1", "a")] and read("text", "id") == [Document("row 1", "1")]
    with pytest.raises(
        InputError, match=r"^x\.csv: no column 'body', which --text-column names; columns: 'id', 'text'"
    ):
        read("text", "body")


def test_questions_come_from_their_column_or_are_the_same_for_all():
    asked = [Row({"context": "a", "question": "who?"}, "row 1"), Row({"context": "b", "question": "why?"}, "row 2")]
    found = list(documents(asked, "x.csv", ASKED, NO_OPTIONS, ReadReport()))
    assert found == [Document("row 1", "a", "who?"), Document("row 2", "b", "why?")]
    found = list(documents(rows("a", "b"), "x.csv", ASKED, NO_OPTIONS, ReadReport(), "who?"))
    assert found == [Document("row 1", "a", "who?"), Document("row 2", "b", "who?")]
    with pytest.raises(InputError, match=r"^row 1: no question in column 'question'; fill it in or remove the row$"):
        list(documents([Row({"context": "a", "question": ""}, "row 1")], "x.csv", ASKED, NO_OPTIONS, ReadReport()))


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

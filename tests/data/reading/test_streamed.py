import pytest

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.records import ASKED, TAGGED, TEXT
from torch_linformer.data.reading.rows import ReadReport, Row, TextRow
from torch_linformer.data.reading.streamed import Document, documents, documents_of, given_files
from torch_linformer.errors import InputError


def rows(*values, column="text"):
    return [Row({"id": str(i), column: value}, f"row {i}") for i, value in enumerate(values, start=1)]


def test_documents_without_text_are_counted():
    report = ReadReport()
    found = list(documents(rows("a", "", None, " \n", "b"), "x.csv", TEXT, NO_OPTIONS, report))
    assert found == [Document("row 1", "a", id="1"), Document("row 5", "b", id="5")] and report.empty == 3
    assert list(documents([], "x.csv", TEXT, NO_OPTIONS, report)) == []


def test_the_text_column_is_recognised_or_named():
    def read(column, name=None):
        return list(documents(rows("a", column=column), "x.csv", TEXT, DataOptions(text_column=name), ReadReport()))

    assert read("review") == [Document("row 1", "a", id="1")]
    assert read("text", "id") == [Document("row 1", "1")]
    with pytest.raises(
        InputError, match=r"^x\.csv: no column 'body', which --text-column names; columns: 'id', 'text'"
    ):
        read("text", "body")


def test_questions_come_from_their_column_or_are_the_same_for_all():
    asked = [Row({"context": "a", "question": "who?"}, "row 1"), Row({"context": "b", "question": "why?"}, "row 2")]
    found = list(documents(asked, "x.csv", ASKED, NO_OPTIONS, ReadReport()))
    assert found == [Document("row 1", "a", "who?"), Document("row 2", "b", "why?")]
    found = list(documents(rows("a", "b"), "x.csv", ASKED, NO_OPTIONS, ReadReport(), "who?"))
    assert found == [Document("row 1", "a", "who?", id="1"), Document("row 2", "b", "who?", id="2")]
    with pytest.raises(InputError, match=r"^row 1: no question in column 'question'; fill it in or remove the row$"):
        list(documents([Row({"context": "a", "question": ""}, "row 1")], "x.csv", ASKED, NO_OPTIONS, ReadReport()))


def test_rows_without_text_may_keep_their_places():
    report = ReadReport()
    found = list(documents(rows("a", "", "b"), "x.csv", TEXT, NO_OPTIONS, report, keep_empty=True))
    assert [(document.text, document.id) for document in found] == [("a", "1"), ("", "2"), ("b", "3")]
    assert report.empty == 1


def test_rows_that_cannot_be_read_are_left_to_the_report():
    problems = []
    report = ReadReport(on_bad=lambda where, problem: problems.append((where, str(problem))))
    assert [document.text for document in documents(rows("a", 3, "b"), "x.csv", TEXT, NO_OPTIONS, report)] == ["a", "b"]
    assert problems == [("row 2", "row 2: column 'text' holds 3, not text; name the texts with --text-column")]
    assert list(documents(rows("a"), "x.csv", TEXT, DataOptions(text_column="body"), report)) == []
    assert problems[1][0] == "x.csv" and report.bad == 2


def test_where_the_texts_of_a_table_come_from_is_told():
    report = ReadReport()
    list(documents(rows("a"), "x.csv", TEXT, NO_OPTIONS, report))
    assert report.notes == ["texts from column 'text' (by its name)"]
    report = ReadReport()
    list(documents([TextRow({"text": "a"}, "x.txt")], "x.txt", TEXT, NO_OPTIONS, report))
    assert report.notes == []


def test_columns_that_the_model_was_trained_with():
    table = [Row({"id": 7, "text": "a", "body": "b"}, "row 1")]
    trained = DataOptions(trained=(("text", "body"), ("label", "kind")))
    assert list(documents(table, "x.csv", TEXT, trained, ReadReport())) == [Document("row 1", "b", id="7")]
    assert [
        document.text
        for document in documents(
            rows("a"), "-", TEXT, DataOptions(text_column="text", trained=trained.trained), ReadReport()
        )
    ] == ["a"]


def test_words_are_kept_as_they_are():
    table = [Row({"tokens": ["New York", "is"]}, "row 1"), Row({"tokens": "not a list"}, "row 2")]
    found = list(documents(table, "x.jsonl", TAGGED, NO_OPTIONS, ReadReport()))
    assert [(document.text, document.words) for document in found] == [
        ("New York is", ("New York", "is")),
        ("not a list", ("not", "a", "list")),
    ]
    with pytest.raises(InputError, match=r"row 1: column 'tokens' holds \[''\], no list of words"):
        list(documents([Row({"tokens": [""]}, "row 1")], "x.jsonl", TAGGED, NO_OPTIONS, ReadReport()))


def test_options_reach_the_files(tmp_path):
    path = tmp_path / "x.csv"
    path.write_bytes("body~n\nGröße, so~1\n".encode("cp1252"))
    options = DataOptions(encoding="cp1252", delimiter="~", text_column="body")
    assert [document.text for document in documents_of([str(path)], TEXT, options, ReadReport())] == ["Größe, so"]


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

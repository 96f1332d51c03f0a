import math

import pytest

from torch_linformer.data.reading.cells import read_label, read_text
from torch_linformer.data.reading.columns import UsualNames, find_columns
from torch_linformer.data.reading.options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.rows import Row
from torch_linformer.errors import InputError


def rows(*values):
    return [Row(row, f"t.csv, row {number}") for number, row in enumerate(values, start=1)]


def find(row, *, needs_label=True, **named):
    return find_columns(
        rows(row),
        "t.csv",
        DataOptions(**{f"{what}_column": column for what, column in named.items()}),
        needs_label=needs_label,
    )


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"text": "a", "label": "b"}, ("text", "label", "by its name", "by its name")),
        ({"id": "7", " Review": "a", "LABEL": "1"}, (" Review", "LABEL", "by its name", "by its name")),
        ({"essay": "a", "label": "1"}, ("essay", "label", "the only candidate", "by its name")),
        ({"text": "a", "stars": "1"}, ("text", "stars", "by its name", "the only candidate")),
        ({"essay": "a", "stars": "1"}, ("essay", "stars", "the only candidate", "the only candidate")),
        ({"essay": "a", "id": 7, "class": "b"}, ("essay", "class", "the only candidate", "by its name")),
        ({"label": 1, "sentence": "3"}, ("sentence", "label", "by its name", "by its name")),
    ],
)
def test_columns_are_recognised(row, expected):
    text, label, why_text, why_label = expected
    columns = find(row)
    assert columns[:2] == (text, label)
    assert columns.reason == f"texts from column {text!r} ({why_text}), labels from column {label!r} ({why_label})"


def test_named_columns_are_taken():
    row = {"text": "a", "content": "b", "label": "c", "author": "d"}
    columns = find(row, text="content", label="author")
    assert columns == (
        "content",
        "author",
        None,
        "texts from column 'content' (as asked), labels from column 'author' (as asked)",
    )
    assert find({"text": "a", "content": "b"}, label="text")[:2] == ("content", "text")
    assert find({"label": "a", "target": "b"}, text="label")[:2] == ("label", "target")


def test_labels_that_are_not_needed_are_not_read():
    row = {"text": "a", "label": "b"}
    assert find(row, needs_label=False)[1:] == (None, None, "texts from column 'text' (by its name)")
    assert find(row, needs_label=False, label="label").label == "label"


ASKED = UsualNames(("context", "text"), ("answers",), ("question", "query"))


def test_the_column_of_the_questions():
    row = {"id": "1", "Query": "who?", "context": "a", "answers": "b"}
    columns = find_columns(rows(row), "t.csv", NO_OPTIONS, usual=ASKED, needs_label=True)
    assert columns[:3] == ("context", "answers", "Query")
    assert columns.reason.endswith(", questions from column 'Query' (by its name)")
    untitled = rows({"question": "?", "essay": "a"})
    assert find_columns(untitled, "t.csv", NO_OPTIONS, usual=ASKED, needs_label=False).text == "essay"
    named = find_columns(
        rows(row), "t.csv", DataOptions(text_column="id", question_column="context"), usual=ASKED, needs_label=False
    )
    assert named[:3] == ("id", None, "context")
    with pytest.raises(
        InputError, match="no question column found; name it with --question-column; columns: 'context'"
    ):
        find_columns(rows({"context": "a"}), "t.csv", NO_OPTIONS, usual=ASKED, needs_label=False)
    with pytest.raises(InputError, match="no column 'q', which --question-column names"):
        find_columns(rows(row), "t.csv", DataOptions(question_column="q"), usual=ASKED, needs_label=False)


PAIRS = UsualNames(("article", "text"), ("summary",), called=("source", "target"))


def test_the_columns_of_a_source_and_its_target():
    row = {"article": "a", "summary": "b", "url": "c"}
    columns = find_columns(rows(row), "t.csv", NO_OPTIONS, usual=PAIRS, needs_label=True)
    assert columns[:3] == ("article", "summary", None)
    assert columns.reason == "sources from column 'article' (by its name), targets from column 'summary' (by its name)"
    named = find_columns(
        rows(row), "t.csv", DataOptions(source_column="url", target_column="article"), usual=PAIRS, needs_label=True
    )
    assert named[:2] == ("url", "article")
    for wrong, message in (
        (
            DataOptions(text_column="url"),
            "^--text-column is for another task; this one reads a source column and a target column$",
        ),
        (DataOptions(target_column="urls"), "no column 'urls', which --target-column names; columns: 'article'"),
        (DataOptions(source_column="url", target_column="url"), "column 'url' cannot be both source and target"),
    ):
        with pytest.raises(InputError, match=message):
            find_columns(rows(row), "t.csv", wrong, usual=PAIRS, needs_label=True)
    with pytest.raises(InputError, match="no target column found; name it with --target-column"):
        find_columns(rows({"article": "a"}), "t.csv", NO_OPTIONS, usual=PAIRS, needs_label=True)
    with pytest.raises(InputError, match=r"^--source-column is for another task; this one reads a text column and a"):
        find({"text": "a", "label": "b"}, source="text")


def test_a_column_for_each_label():
    row = {"text": "a", "rude": "1", "loud": "0"}
    options = {"needs_label": True, "several_labels": True}
    assert find_columns(rows(row), "t.csv", DataOptions(label_column="rude,loud"), **options).label == "rude,loud"
    with pytest.raises(InputError, match="no column 'late', which --label-column names"):
        find_columns(rows(row), "t.csv", DataOptions(label_column="rude,late"), **options)
    with pytest.raises(InputError, match="no column 'rude,loud', which --label-column names"):
        find_columns(rows(row), "t.csv", DataOptions(label_column="rude,loud"), needs_label=True)


def test_columns_are_looked_for_in_all_rows():
    columns = find_columns(
        rows({"note": None}, {"note": "a", "label": None}, {"label": 1, "note": "b"}),
        "t.jsonl",
        NO_OPTIONS,
        needs_label=True,
    )
    assert columns[:2] == ("note", "label")


@pytest.mark.parametrize(
    ("row", "options", "message"),
    [
        ({"text": "a"}, {"text": "body"}, "no column 'body', which --text-column names; columns: 'text'"),
        ({"text": "a"}, {"label": "y"}, "no column 'y', which --label-column names; columns: 'text'"),
        ({"text": "a"}, {"text": "text", "label": "text"}, "column 'text' cannot be both text and label"),
        ({"text": "a"}, {}, "no label column found; name it with --label-column; columns: 'text'"),
        (
            {"id": 7, "label": 1},
            {},
            "no text column found; name it with --text-column; columns: 'id', 'label'",
        ),
        (
            {"text": "a", "Content": "b", "label": 1},
            {},
            "'text', 'Content' could each be the text column; name",
        ),
        (
            {"x": "a", "y": "b", "label": 1},
            {},
            "'x', 'y' could each be the text column; name it with --text-c",
        ),
        (
            {"text": "a", "class": "b", "label": 1},
            {},
            "'class', 'label' could each be the label column; name",
        ),
        (
            {"text": "a", "x": "b", "y": 1},
            {},
            "'x', 'y' could each be the label column; name it with --label-c",
        ),
    ],
)
def test_columns_that_cannot_be_told_apart(row, options, message):
    with pytest.raises(InputError) as raised:
        find(row, **options)
    assert str(raised.value).startswith(f"t.csv: {message}")
    assert ", ".join(map(repr, row)) in str(raised.value)


@pytest.mark.parametrize(
    ("value", "label"),
    [(" pos ", "pos"), (3, "3"), (-1, "-1"), (2.0, "2"), (True, "True"), ("1.0", "1.0"), (2**60, str(2**60))],
)
def test_labels_become_text(value, label):
    assert read_label(Row({"label": value}, "t, row 1"), "label") == label


@pytest.mark.parametrize("value", [None, "", " \t", math.nan, "NaN", "nan "])
def test_missing_labels(value):
    with pytest.raises(InputError, match=r"t, row 9: no label in column 'label'; fill it in or remove the row"):
        read_label(Row({"label": value}, "t, row 9"), "label")
    with pytest.raises(InputError, match="t, row 9: no label"):
        read_label(Row({}, "t, row 9"), "label")


@pytest.mark.parametrize("value", [0.5, math.inf, ["a"], b"a", {"a": 1}])
def test_values_that_are_no_labels(value):
    with pytest.raises(InputError, match=r"t, row 9: column 'y' holds .*, no label; expected text or a whole"):
        read_label(Row({"y": value}, "t, row 9"), "y")


@pytest.mark.parametrize(("value", "text"), [("a ", "a "), ("", ""), (" \n\t", ""), (None, "")])
def test_texts(value, text):
    assert read_text(Row({"text": value}, "t, row 1"), "text") == text
    assert read_text(Row({}, "t, row 1"), "text") == ""


@pytest.mark.parametrize("value", [3, 1.5, True, ["a"], b"a"])
def test_values_that_are_no_text(value):
    with pytest.raises(InputError, match=r"t, row 9: column 'x' holds .*, not text; name the texts with --text-c"):
        read_text(Row({"x": value}, "t, row 9"), "x")

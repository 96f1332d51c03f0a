from dataclasses import replace

import pytest

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.records import LABELED, SEVERAL, ChosenColumns, UsualNames, find_columns
from torch_linformer.data.reading.rows import Row
from torch_linformer.errors import InputError


def rows(*values):
    return [Row(f"t.csv, row {number}", row) for number, row in enumerate(values, start=1)]


def find(row, *, needs_label=True, **named):
    return find_columns(
        rows(row),
        "t.csv",
        DataOptions(**{f"{what}_column": column for what, column in named.items()}),
        LABELED,
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
    reason = "texts from column 'content' (as asked), labels from column 'author' (as asked)"
    assert columns[:4] == ("content", "author", None, reason)
    assert find({"text": "a", "content": "b"}, label="text")[:2] == ("content", "text")
    assert find({"label": "a", "target": "b"}, text="label")[:2] == ("label", "target")


def test_labels_that_are_not_needed_are_not_read():
    row = {"text": "a", "label": "b"}
    assert find(row, needs_label=False) == ChosenColumns("text", reason="texts from column 'text' (by its name)")
    assert find(row, needs_label=False, label="label").label == "label"


ASKED = replace(LABELED, usual=UsualNames(("context", "text"), ("answers",), ("question", "query")))


def test_the_column_of_the_questions():
    row = {"id": "1", "Query": "who?", "context": "a", "answers": "b"}
    columns = find_columns(rows(row), "t.csv", NO_OPTIONS, ASKED, needs_label=True)
    assert columns[:3] == ("context", "answers", "Query")
    assert columns.reason.endswith(", questions from column 'Query' (by its name)")
    untitled = rows({"question": "?", "essay": "a"})
    assert find_columns(untitled, "t.csv", NO_OPTIONS, ASKED, needs_label=False).text == "essay"
    named = find_columns(
        rows(row), "t.csv", DataOptions(text_column="id", question_column="context"), ASKED, needs_label=False
    )
    assert named[:3] == ("id", None, "context")
    with pytest.raises(
        InputError, match="no question column found; name it with --question-column; columns: 'context'"
    ):
        find_columns(rows({"context": "a"}), "t.csv", NO_OPTIONS, ASKED, needs_label=False)
    with pytest.raises(InputError, match="no column 'q', which --question-column names"):
        find_columns(rows(row), "t.csv", DataOptions(question_column="q"), ASKED, needs_label=False)


PAIRS = replace(LABELED, usual=UsualNames(("article", "text"), ("summary",), called=("source", "target")))


def test_the_columns_of_a_source_and_its_target():
    row = {"article": "a", "summary": "b", "url": "c"}
    columns = find_columns(rows(row), "t.csv", NO_OPTIONS, PAIRS, needs_label=True)
    assert columns[:3] == ("article", "summary", None)
    assert columns.reason == "sources from column 'article' (by its name), targets from column 'summary' (by its name)"
    named = find_columns(
        rows(row), "t.csv", DataOptions(source_column="url", target_column="article"), PAIRS, needs_label=True
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
            find_columns(rows(row), "t.csv", wrong, PAIRS, needs_label=True)
    with pytest.raises(InputError, match="no target column found; name it with --target-column"):
        find_columns(rows({"article": "a"}), "t.csv", NO_OPTIONS, PAIRS, needs_label=True)
    with pytest.raises(InputError, match=r"^--source-column is for another task; this one reads a text column and a"):
        find({"text": "a", "label": "b"}, source="text")


def test_a_column_for_each_label():
    row = {"text": "a", "rude": "1", "loud": "0"}
    options = {"needs_label": True}
    assert (
        find_columns(rows(row), "t.csv", DataOptions(label_column="rude,loud"), SEVERAL, **options).label == "rude,loud"
    )
    with pytest.raises(InputError, match="no column 'late', which --label-column names"):
        find_columns(rows(row), "t.csv", DataOptions(label_column="rude,late"), SEVERAL, **options)
    with pytest.raises(InputError, match="no column 'rude,loud', which --label-column names"):
        find_columns(rows(row), "t.csv", DataOptions(label_column="rude,loud"), LABELED, needs_label=True)


def test_columns_are_looked_for_in_all_rows():
    columns = find_columns(
        rows({"note": None}, {"note": "a", "label": None}, {"label": 1, "note": "b"}),
        "t.jsonl",
        NO_OPTIONS,
        LABELED,
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
        ({"id": 7, "label": 1}, {}, "no text column found; name it with --text-column; columns: 'id', 'label'"),
        ({"text": "a", "Content": "b", "label": 1}, {}, "'text', 'Content' could each be the text column; name"),
        ({"x": "a", "y": "b", "label": 1}, {}, "'x', 'y' could each be the text column; name it with --text-c"),
        ({"text": "a", "class": "b", "label": 1}, {}, "'class', 'label' could each be the label column; name"),
        ({"text": "a", "x": "b", "y": 1}, {}, "'x', 'y' could each be the label column; name it with --label-c"),
    ],
)
def test_columns_that_cannot_be_told_apart(row, options, message):
    with pytest.raises(InputError) as raised:
        find(row, **options)
    assert str(raised.value).startswith(f"t.csv: {message}")
    assert ", ".join(map(repr, row)) in str(raised.value)


# Of several


def test_texts_differ_and_labels_come_again():
    table = [{"note": f"note {number}", "kind": "ab"[number % 2]} for number in range(6)]
    assert find_columns(rows(*table), "t.csv", NO_OPTIONS, LABELED, needs_label=True)[:2] == ("note", "kind")
    table = [{**row, "title": f"title {number}"} for number, row in enumerate(table)]
    with pytest.raises(InputError, match="'note', 'title' could each be the text column"):
        find_columns(rows(*table), "t.csv", NO_OPTIONS, LABELED, needs_label=True)


def test_a_column_that_counts_the_rows_holds_no_labels():
    table = [{"number": str(number), "text": "a", "stars": str(number % 2)} for number in range(4)]
    assert find_columns(rows(*table), "t.csv", NO_OPTIONS, LABELED, needs_label=True).label == "stars"


def test_of_usual_names_those_of_numbers_are_none_of_texts():
    """A column "sentence" may hold the number of each."""
    words = replace(LABELED, usual=UsualNames(("word", "sentence"), ("tag",)))
    table = rows({"sentence": "1", "word": "a", "tag": "O"}, {"sentence": "2", "word": "3", "tag": "O"})
    assert find_columns(table, "t.csv", NO_OPTIONS, words, needs_label=True)[:2] == ("word", "tag")
    numbers = rows({"text": "1", "content": "2", "label": "a"})
    with pytest.raises(InputError, match="'text', 'content' could each be the text column"):
        find_columns(numbers, "t.csv", NO_OPTIONS, LABELED, needs_label=True)


# Names and groups


@pytest.mark.parametrize("name", ["id", "ID", "_id", "doc_id", "document_id"])
def test_a_column_of_names_is_kept_unasked(name):
    columns = find({name: 7, "text": "a", "label": "b"})
    assert columns.id == name and columns.id_of(Row("", {name: 7})) == "7"
    assert columns.id_of(Row("", {name: None})) == columns.id_of(Row("", {})) == ""


def test_columns_of_names_and_groups_are_named():
    row = {"id": 7, "key": "k", "author": "Ann", "text": "a", "label": "b"}
    columns = find(row, id="key", group="author")
    assert (columns.id, columns.group) == ("key", "author") and columns.id_of(Row("", row)) == "k"
    assert find({"text": "a", "label": "b"}).id_of(Row("", row)) is None
    for what in ("id", "group"):
        with pytest.raises(InputError, match=f"no column 'nowhere', which --{what}-column names; columns: 'id', 'key'"):
            find(row, **{what: "nowhere"})


# What a model was trained with


TRAINED = (("text", "body"), ("label", "kind"), ("question", "asked"))


def test_columns_that_the_model_was_trained_with():
    row = {"text": "a", "body": "b", "kind": "c", "label": "d"}
    columns = find_columns(rows(row), "t.csv", DataOptions(trained=TRAINED), LABELED, needs_label=True)
    assert columns[:3] == ("body", "kind", None)
    assert columns.used == {"text": "body", "label": "kind"}
    assert columns.reason == (
        "texts from column 'body' (as the model was trained), labels from column 'kind' (as the model was trained)"
    )
    named = DataOptions(trained=TRAINED, text_column="text", label_column="label")
    assert find_columns(rows(row), "t.csv", named, LABELED, needs_label=True)[:2] == ("text", "label")
    asked = rows({"context": "a", "body": "b", "asked": "c", "question": "d"})
    columns = find_columns(asked, "t.csv", DataOptions(trained=TRAINED), ASKED, needs_label=False)
    assert columns[:3] == ("body", None, "asked")


def test_a_column_that_the_model_was_trained_with_is_missed():
    options = DataOptions(trained=TRAINED)
    with pytest.raises(InputError) as raised:
        find_columns(rows({"text": "a"}), "t.csv", options, LABELED, needs_label=False)
    assert str(raised.value) == (
        "t.csv: no column 'body', which the model was trained with; name the text column with --text-column; "
        "columns: 'text'"
    )
    table = rows({"body": "a", "label": "b"})
    assert find_columns(table, "t.csv", options, LABELED, needs_label=False).text == "body"  # its labels are not read
    with pytest.raises(InputError, match=r"no column 'kind', .* name the label column with --label-column"):
        find_columns(table, "t.csv", options, LABELED, needs_label=True)
    text = [Row("t.txt", {"text": "a"}, "text")]
    assert find_columns(text, "t.txt", options, LABELED, needs_label=False).text == "text"  # of no table


def test_columns_of_several_labels_that_the_model_was_trained_with():
    options = DataOptions(trained=(("text", "text"), ("label", "rude,loud")))
    several = {"needs_label": True}
    row = {"text": "a", "rude": "1", "loud": "0"}
    assert find_columns(rows(row), "t.csv", options, SEVERAL, **several).label == "rude,loud"
    with pytest.raises(InputError, match="no column 'rude,loud', which the model was trained with"):
        find_columns(rows({"text": "a", "rude": "1"}), "t.csv", options, SEVERAL, **several)


def test_many_columns_are_not_all_listed():
    row = {f"column {number}": "a" for number in range(4000)}
    with pytest.raises(InputError) as raised:
        find(row)
    message = str(raised.value)
    assert message.endswith("'column 18', 'column 19', … (4,000 in all)") and len(message) < 1000


def test_a_missed_column_of_a_table_without_a_header():
    options = DataOptions(trained=(("text", "2"), ("label", "1")))
    with pytest.raises(InputError, match=r"columns: 'ham', 'hello'; --no-header, if the first row is one like the oth"):
        find_columns(rows({"ham": "spam", "hello": "win"}), "t.tsv", options, LABELED, needs_label=False)


@pytest.mark.parametrize("name", ["id", "review_id", "Review ID", "query-id", "pid"])
def test_names_of_things_are_no_texts(name):
    table = [Row("t.csv", {name: f"r{number}x", "words": f"w {number}"}) for number in range(9)]
    assert find_columns(table, "t.csv", DataOptions(), LABELED, needs_label=False).text == "words"

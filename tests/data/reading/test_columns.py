"""Which columns hold the texts, the labels and the questions: by name, as the only candidate, as asked, as trained."""

import pytest

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.records import (
    ASKED,
    LABELED,
    PAIRED,
    SEVERAL,
    TAGGED,
    TEXT,
    ChosenColumns,
    find_columns,
)
from torch_linformer.data.reading.rows import Row
from torch_linformer.errors import InputError

TRAINED = (("text", "body"), ("label", "kind"), ("question", "asked"))
SEVERAL_TRAINED = {"trained": (("text", "text"), ("label", "rude,loud"))}
NOTES = [{"note": f"note {number}", "kind": "ab"[number % 2]} for number in range(6)]
COUNTED = [{"number": str(number), "text": "a", "stars": str(number % 2)} for number in range(4)]
QUESTION = {"id": "1", "Query": "who?", "context": "a", "answers": "b"}
PAIR = {"article": "a", "summary": "b", "url": "c"}
LABELS = {"text": "a", "rude": "1", "loud": "0"}


def find(record, values, options=(), needs_label=True, kind="object"):
    values = values if isinstance(values, list) else [values]
    rows = [Row(f"t.csv, row {number}", row, kind) for number, row in enumerate(values, start=1)]
    trained = {name: value for name, value in dict(options).items() if name == "trained"}
    named = {f"{what}_column": column for what, column in dict(options).items() if what != "trained"}
    return find_columns(rows, "t.csv", DataOptions(**named, **trained), record, needs_label=needs_label)


@pytest.mark.parametrize(
    ("record", "values", "options", "expected"),
    [
        (LABELED, {"text": "a", "label": "b"}, {}, ("text", "label")),
        (LABELED, {"id": "7", " Review": "a", "LABEL": "1"}, {}, (" Review", "LABEL")),
        (LABELED, {"essay": "a", "label": "1"}, {}, ("essay", "label")),
        (LABELED, {"text": "a", "stars": "1"}, {}, ("text", "stars")),
        (LABELED, {"essay": "a", "stars": "1"}, {}, ("essay", "stars")),
        (LABELED, {"essay": "a", "id": 7, "class": "b"}, {}, ("essay", "class")),
        (LABELED, {"label": 1, "sentence": "3"}, {}, ("sentence", "label")),
        (LABELED, {"text": "a", "content": "b"}, {"label": "text"}, ("content", "text")),
        (LABELED, {"label": "a", "target": "b"}, {"text": "label"}, ("label", "target")),
        # They are looked for in all rows; texts differ and labels come again; what counts the rows is no label.
        (LABELED, [{"note": None}, {"note": "a", "label": None}, {"label": 1, "note": "b"}], {}, ("note", "label")),
        (LABELED, NOTES, {}, ("note", "kind")),
        (LABELED, COUNTED, {}, ("text", "stars")),
        (
            TAGGED,
            [{"sentence": n, "word": word, "tag": "O"} for n, word in (("1", "a"), ("2", "3"))],
            {},
            ("word", "tag"),
        ),
        (ASKED, QUESTION, {}, ("context", "answers", "Query")),
        (PAIRED, PAIR, {}, ("article", "summary")),
        (PAIRED, PAIR, {"source": "url", "target": "article"}, ("url", "article")),
        (SEVERAL, LABELS, {"label": "rude,loud"}, ("text", "rude,loud")),
        (SEVERAL, LABELS, SEVERAL_TRAINED, ("text", "rude,loud")),
        (LABELED, {"text": "a", "body": "b", "kind": "c", "label": "d"}, {"trained": TRAINED}, ("body", "kind")),
        (
            LABELED,
            {"text": "a", "body": "b", "kind": "c", "label": "d"},
            {"trained": TRAINED, "text": "text", "label": "label"},
            ("text", "label"),
        ),
        (
            ASKED,
            {"answers": "a", "body": "b", "asked": "c", "kind": "d"},
            {"trained": TRAINED},
            ("body", "kind", "asked"),
        ),
    ],
)
def test_columns_are_chosen(record, values, options, expected):
    columns = find(record, values, options)
    assert columns[:3] == (*expected, None)[:3]


@pytest.mark.parametrize(
    ("record", "values", "options", "expected"),
    [
        (TEXT, {"text": "a", "label": "b"}, {}, ("text", None, None)),
        (LABELED, {"text": "a", "label": "b"}, {"label": "label"}, ("text", "label", None)),
        (ASKED, {"question": "?", "essay": "a"}, {}, ("essay", None, "question")),
        (ASKED, QUESTION, {"text": "id", "question": "context"}, ("id", None, "context")),
        (LABELED, {"body": "a", "label": "b"}, {"trained": TRAINED}, ("body", None, None)),  # its labels are not read
        (ASKED, {"context": "a", "body": "b", "asked": "c"}, {"trained": TRAINED}, ("body", None, "asked")),
    ],
)
def test_labels_that_are_not_needed_are_not_read(record, values, options, expected):
    assert find(record, values, options, needs_label=False)[:3] == expected


@pytest.mark.parametrize("name", ["id", "review_id", "Review ID", "query-id", "pid"])
def test_names_of_things_are_no_texts(name):
    table = [{name: f"r{number}x", "words": f"w {number}"} for number in range(9)]
    assert find(TEXT, table, needs_label=False).text == "words"


def test_why_columns_were_chosen_is_said():
    assert find(LABELED, {"essay": "a", "label": "1"}).reason == (
        "texts from column 'essay' (the only candidate), labels from column 'label' (by its name)"
    )
    assert find(PAIRED, PAIR, {"source": "url"}).reason == (
        "sources from column 'url' (as asked), targets from column 'summary' (by its name)"
    )
    asked = find(ASKED, {**QUESTION, "body": "a"}, {"trained": TRAINED[:1]})
    assert asked.reason.startswith("texts from column 'body' (as the model was trained), labels from")
    assert asked.reason.endswith(", questions from column 'Query' (by its name)")
    assert asked.used == {"text": "body", "label": "answers", "question": "Query"}
    unread = find(TEXT, {"text": "a", "label": "b"}, needs_label=False)
    assert unread == ChosenColumns("text", reason="texts from column 'text' (by its name)", options=NO_OPTIONS)


@pytest.mark.parametrize(
    ("record", "values", "options", "message"),
    [
        (LABELED, {"text": "a"}, {"text": "body"}, "no column 'body', which --text-column names; columns: 'text'"),
        (LABELED, {"text": "a"}, {"label": "y"}, "no column 'y', which --label-column names; columns: 'text'"),
        (LABELED, {"text": "a"}, {"id": "y"}, "no column 'y', which --id-column names; columns: 'text'"),
        (LABELED, {"text": "a"}, {"group": "y"}, "no column 'y', which --group-column names; columns: 'text'"),
        (LABELED, {"text": "a"}, {"text": "text", "label": "text"}, "column 'text' cannot be both text and label"),
        (LABELED, {"text": "a"}, {}, "no label column found; name it with --label-column; columns: 'text'"),
        (
            LABELED,
            {"id": 7, "label": 1},
            {},
            "no text column found; name it with --text-column; columns: 'id', 'label'",
        ),
        (LABELED, {"text": "a", "Content": "b"}, {}, "'text', 'Content' could each be the text column; name it with"),
        (LABELED, {"text": "1", "content": "2"}, {}, "'text', 'content' could each be the text column"),  # of numbers
        (LABELED, {"x": "a", "y": "b", "label": 1}, {}, "'x', 'y' could each be the text column; name it with --text"),
        (LABELED, {"text": "a", "class": "b", "label": 1}, {}, "'class', 'label' could each be the label column"),
        (LABELED, {"text": "a", "x": "b", "y": 1}, {}, "'x', 'y' could each be the label column; name it with --label"),
        (
            LABELED,
            [{**NOTES[n], "title": f"{n}x"} for n in range(6)],
            {},
            "'note', 'title' could each be the text column",
        ),
        (LABELED, LABELS, {"label": "rude,loud"}, "no column 'rude,loud', which --label-column names"),
        (SEVERAL, LABELS, {"label": "rude,late"}, "no column 'late', which --label-column names"),
        (
            SEVERAL,
            {"text": "a", "rude": "1"},
            SEVERAL_TRAINED,
            "no column 'rude,loud', which the model was trained with",
        ),
        (ASKED, {"context": "a"}, {}, "no question column found; name it with --question-column; columns: 'context'"),
        (ASKED, QUESTION, {"question": "q"}, "no column 'q', which --question-column names"),
        (PAIRED, PAIR, {"target": "urls"}, "no column 'urls', which --target-column names; columns: 'article'"),
        (PAIRED, PAIR, {"source": "url", "target": "url"}, "column 'url' cannot be both source and target"),
        (PAIRED, {"article": "a"}, {}, "no target column found; name it with --target-column"),
        (
            PAIRED,
            PAIR,
            {"text": "url"},
            "--text-column is for another task; this one reads a source column and a target",
        ),
        (LABELED, PAIR, {"source": "url"}, "--source-column is for another task; this one reads a text column and a"),
        (
            LABELED,
            {"text": "a"},
            {"trained": TRAINED},
            "no column 'body', which the model was trained with; name the text column with --text-column; columns: 't",
        ),
        (
            LABELED,
            {"body": "a", "label": "b"},
            {"trained": TRAINED},
            "no column 'kind', which the model was trained with",
        ),
        (
            TEXT,
            {"ham": "spam", "hello": "win"},
            {"trained": (("text", "2"),)},
            "no column '2', which the model was trained with; name the text column with --text-column; columns: 'ham', "
            "'hello'; --no-header, if the first row is one like the others",
        ),
    ],
)
def test_columns_that_cannot_be_chosen(record, values, options, message):
    with pytest.raises(InputError) as raised:
        find(record, values, options)
    assert str(raised.value).removeprefix("t.csv: ").startswith(message)


def test_many_columns_are_not_all_listed():
    with pytest.raises(InputError) as raised:
        find(LABELED, {f"column {number}": "a" for number in range(4000)})
    message = str(raised.value)
    assert message.endswith("'column 18', 'column 19', … (4,000 in all)") and len(message) < 1000


def test_texts_of_no_table_have_no_columns_of_a_model():
    assert find(TEXT, {"text": "a"}, {"trained": TRAINED}, needs_label=False, kind="text").text == "text"


# Names and groups


@pytest.mark.parametrize("name", ["id", "ID", "_id", "doc_id", "document_id"])
def test_a_column_of_names_is_kept_unasked(name):
    columns = find(LABELED, {name: 7, "text": "a", "label": "b"})
    assert columns.id == name and columns.id_of(Row("", {name: 7})) == "7"
    assert columns.id_of(Row("", {name: None})) == columns.id_of(Row("", {})) == ""


def test_columns_of_names_and_groups_are_named():
    row = {"id": 7, "key": "k", "author": "Ann", "text": "a", "label": "b"}
    columns = find(LABELED, row, {"id": "key", "group": "author"})
    assert (columns.id, columns.group) == ("key", "author") and columns.id_of(Row("", row)) == "k"
    assert find(LABELED, {"text": "a", "label": "b"}).id_of(Row("", row)) is None

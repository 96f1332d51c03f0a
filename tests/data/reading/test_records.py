"""What a document of each task is read from the cells of a row, and which cells are refused with what to do."""

import json
import math
import re

import pytest

from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import (
    ASKED,
    LABELED,
    NULL,
    PAIRED,
    SCORED,
    SEVERAL,
    TAGGED,
    ChosenColumns,
    join_words,
)
from torch_linformer.data.reading.rows import Row, counts_rows, is_missing, is_number, read_label, read_text
from torch_linformer.errors import InputError

COLUMNS = {
    PAIRED.usual: ChosenColumns("text", "target"),
    ASKED.usual: ChosenColumns("context", "answers", "question"),
}
LABELS = ChosenColumns("text", "rude,loud,late")
SQUAD = {"text": ["met", "Ann met"], "answer_start": [4, 0]}
NOTHING = {"answers": [], "starts": []}
AS_IN_SQUAD = "expected an answer, or text and answer_start as in SQuAD"
TRUTHS = "; a list of truth values has one for each label, two at least"
NO_LABELS = "no labels; expected a list of them"
NO_WORDS = "no list of words or tags"


def read(record, values, columns=None):
    return record.read(Row("t, row 9", values), columns or COLUMNS.get(record.usual, ChosenColumns("text", "label")))


def label(value):
    return {"text": "x", "label": value}


def asked(answers, **others):
    return {"context": "Bo met Bo", "question": "who?", "answers": answers, **others}


@pytest.mark.parametrize(
    ("record", "values", "expected"),
    [
        *((SCORED, label(value), label(number)) for value, number in [("2.5", 2.5), (3, 3.0), (" -1e3 ", -1000.0)]),
        (SCORED, label(True), label(1.0)),
        (SCORED, {"text": " ", "label": "many"}, {"text": ""}),  # which is skipped anyway
        (LABELED, label("[NEW]"), label("[NEW]")),
        # Several labels, as a list, or as a cell spells one: in JSON, in Python, as NumPy prints it.
        *(
            (SEVERAL, label(value), {"label": labels, "unknown": []})
            for value, labels in [
                (["b", "a", "b"], ["a", "b"]),
                ("a, b", ["a", "b"]),
                ("b;a|c", ["a", "b", "c"]),
                ("one two", ["one two"]),
                ([3, 10], ["10", "3"]),
                (4, ["4"]),
                *((nothing, []) for nothing in ([], "", " , ", "[]", "set()")),
                *((cell, ["a", "b"]) for cell in ('["b", "a"]', "['b', 'a']", "('b', 'a')", "{'b', 'a'}", "['b' 'a']")),
                ("['b'\n 'it\\'s']", ["b", "it's"]),
                *((cell, ["10", "3"]) for cell in ("[3, 10]", "[3 10]")),
                ("[7]", ["7"]),
                # Zeros and ones keep their order, as each may stand for the label at its position.
                *((ones, ["1", "0", "1"]) for ones in ([1, 0, 1], [True, False, True], [1.0, 0.0, 1.0], "[1 0 1]")),
                *((cell, ["1", "0", "1"]) for cell in ("[1. 0. 1.]", "[ True False\n  True]")),
                ("[0, 1, 1]", ["0", "1", "1"]),
                *((cell, ["1", "0"]) for cell in ("[true, false]", "[True, False]")),
                ("[sic]", ["[sic]"]),
                ("[draft] a, b", ["[draft] a", "b"]),
                ("['a'", ["['a'"]),
            ]
        ),
        (SEVERAL, label(" nan"), {"label": [], "unknown": ["nan"]}),  # which is told
        *((SEVERAL, label(null), {"label": [], "unknown": [NULL]}) for null in (None, math.nan)),
        # Words and tags
        (
            TAGGED,
            {"text": "Ann  met", "label": "B O"},
            {"word_starts": [0, 4], "word_ends": [3, 7], "label": ["B", "O"]},
        ),
        *(
            (TAGGED, {"text": cell, "label": tags}, {"text": "Ann 's", "label": found})
            for cell in (["Ann", "'s"], '["Ann", "\'s"]', """['Ann', "'s"]""", """['Ann' "'s"]""", "Ann 's")
            for tags, found in (("['B' 'O']", ["B", "O"]), ("[1 0]", ["1", "0"]))
        ),
        (TAGGED, {"text": "[ 3 ]", "label": "O O O"}, {"text": "[ 3 ]"}),  # three words
        (TAGGED, {"text": "[sic]", "label": "O"}, {"text": "[sic]"}),
        # Two texts, and questions
        (PAIRED, {"text": "a b", "target": "b"}, {"text": "a b", "target": "b"}),
        (PAIRED, {"text": " ", "target": None}, {"text": "", "target": ""}),
        *(
            (ASKED, {"context": "Ann met Bo", "question": "what?", "answers": answers, "id": "q7"}, expected)
            for answers in (SQUAD, json.dumps(SQUAD), str(SQUAD))  # the last as pandas writes it into a table
            for expected in [{"text": "Ann met Bo", "question": "what?", "name": "q7", "answers": SQUAD["text"]}]
        ),
        (ASKED, asked("Bo"), {"starts": [0], "name": "t, row 9"}),
        (ASKED, asked("Bo", answer_start="7"), {"starts": [7]}),
        *((ASKED, asked(answers), NOTHING) for answers in ("", {"text": [], "answer_start": []})),
    ],
)
def test_what_is_read(record, values, expected):
    assert expected.items() <= read(record, values).items()


@pytest.mark.parametrize(
    ("record", "values", "message"),
    [
        *((SCORED, label(value), "no label in column 'label'; fill it in or remove") for value in (None, "", math.nan)),
        *((SCORED, label(value), "no number; --task regress learns") for value in ("many", math.inf, "inf", [1])),
        *(
            (record, label("nan"), "column 'label' holds 'nan', which stands for no label; write it otherwise, or")
            for record in (LABELED, SCORED)  # a class may be called so
        ),
        *(
            (LABELED, label(cell), f"column 'label' holds {cell!r}, a list; --task multilabel learns lists of labels")
            for cell in ("[14, 25]", "['a']", "[3 4]", "{'a'}")
        ),
        *((SEVERAL, label(value), TRUTHS) for value in (True, [True], ["a", True], "[true]", [2, False])),
        *((SEVERAL, label(value), NO_LABELS) for value in (1.5, [["a"]], {"a": 1}, [0.5], "{'a': 1}", "[[1], [2]]")),
        *(
            (SEVERAL, label(value), "; write all lists of the column as JSON, [")
            for value in ("[a, b]", " {joy,anger}", '{joy,"two words"} ')  # which are not cut at their commas
        ),
        (TAGGED, {"text": ["a", "b"], "label": ["O"]}, "2 words and 1 tags; give each word one tag"),
        (TAGGED, {"text": 3, "label": ["O"]}, f"column 'text' holds 3, {NO_WORDS}"),
        (TAGGED, {"text": ["a"], "label": None}, f"column 'label' holds None, {NO_WORDS}"),
        (TAGGED, {"text": ["a"], "label": [""]}, f"column 'label' holds [''], {NO_WORDS}"),
        (PAIRED, {"text": "a", "target": " "}, "no target in column 'target'; fill it in or remove the row"),
        (PAIRED, {"text": 3, "target": "b"}, "holds 3, not text; name the sources with --source-column"),
        (PAIRED, {"text": "a", "target": {"de": "b"}}, "holds {'de': 'b'}, not text; name the targets with"),
        (ASKED, {"context": "a", "question": " "}, "no question in column 'question'; fill it in or remove the row"),
        (ASKED, asked("Ann"), "the answer 'Ann' does not stand in the text"),
        (ASKED, asked({"text": ["Bo"], "answer_start": [1]}), "does not stand at character 1 of the text"),
        (ASKED, asked({"text": [" "], "answer_start": [2]}), "an answer is empty; where there is none, leave the list"),
        (ASKED, asked("{broken"), "which is not valid JSON"),
        (ASKED, asked(None), f"column 'answers' holds None; {AS_IN_SQUAD}"),
        *((ASKED, asked(answers), AS_IN_SQUAD) for answers in (["Bo"], 7, {"text": ["Bo"]})),
        *(
            (ASKED, asked({"text": texts, "answer_start": starts}), AS_IN_SQUAD)
            for texts, starts in ((["Bo"], []), ([3], [0]), (["Bo"], ["x"]))
        ),
    ],
)
def test_what_is_refused(record, values, message):
    with pytest.raises(InputError) as raised:
        read(record, values)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_answers_that_are_not_needed():
    found = read(ASKED, asked("Bo"), ChosenColumns("context", None, "question"))
    assert NOTHING.items() <= found.items()


def test_a_column_for_each_label():
    values = {"text": "x", "rude": "1", "loud": "0", "late": True}
    assert read(SEVERAL, values, LABELS)["label"] == ["rude", "late"]
    assert read(SEVERAL, {**values, "rude": 0, "late": 0.0}, LABELS)["label"] == []
    with pytest.raises(InputError, match=r"^column 'loud' holds 'maybe'; a column for one label holds 0 or 1, or noth"):
        read(SEVERAL, {**values, "loud": "maybe"}, LABELS)
    assert read(SEVERAL, {"text": "x", "rude,loud,late": "a"}, LABELS)["label"] == ["a"]  # a column of that name
    for cell in (None, math.nan, "", " ", "NaN", "None", "null", "\\N"):
        found = read(SEVERAL, {"text": "x", "rude": "1", "loud": cell, "late": "0"}, LABELS)
        assert found == {"text": "x", "label": ["rude"], "unknown": ["loud"]}
    assert read(SEVERAL, {"text": "x", "rude": "1"}, LABELS)["unknown"] == ["loud", "late"]  # JSON may leave them out


def test_words_become_a_text():
    joined = join_words(["Ann", "met", "Bo", "."])
    assert joined == {"text": "Ann met Bo .", "word_starts": [0, 4, 8, 11], "word_ends": [3, 7, 10, 12]}
    assert join_words([]) == {"text": "", "word_starts": [], "word_ends": []}


def test_squad_from_a_file(tmp_path, datasets_cache):
    question = {"id": "q1", "question": "who?", "answers": [{"text": "Bo", "answer_start": 8}]}
    paragraph = {"context": "Ann met Bo", "qas": [question, {**question, "id": "q2", "answers": []}]}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    found = load_documents(str(path), ASKED).dataset
    assert found["name"][:] == ["q1", "q2"] and found["starts"][:] == [[8], []]


@pytest.mark.parametrize(
    ("name", "content", "record", "expected"),
    [
        ("a.csv", "body,score\nx,1.5\n", SCORED, label(1.5)),
        ("a.jsonl", '{"text": "x", "labels": ["b", "a"]}\n', SEVERAL, label(["a", "b"])),
        ("a.conll", "Ann B-PER\nmet O\n", TAGGED, {"text": "Ann met", "label": ["B-PER", "O"]}),
        ("a.csv", "context,question,answer\nAnn met Bo,who?,Bo\n", ASKED, {"answers": ["Bo"], "starts": [8]}),
    ],
)
def test_columns_are_recognised(tmp_path, datasets_cache, name, content, record, expected):
    path = tmp_path / name
    path.write_text(content)
    (found,) = load_documents(str(path), record).dataset
    assert expected.items() <= found.items() and found.get("name", f"{path}, row 1") == f"{path}, row 1"


# Cells


@pytest.mark.parametrize(
    ("value", "label"),
    [(" pos ", "pos"), (3, "3"), (-1, "-1"), (2.0, "2"), (True, "True"), ("1.0", "1.0"), (2**60, str(2**60))],
)
def test_labels_become_text(value, label):
    assert read_label(Row("t, row 1", {"label": value}), "label") == label


@pytest.mark.parametrize("value", [None, "", " \t", math.nan, "NaN", "nan ", "\\N"])
def test_missing_labels(value):
    problem = r"no label in column 'label'; fill it in or remove the row"
    if isinstance(value, str) and value.strip():  # a class may be called so
        problem = rf"column 'label' holds {re.escape(repr(value))}, which stands for no label; write it otherwise, or "
    with pytest.raises(InputError, match=problem):
        read_label(Row("t, row 9", {"label": value}), "label")
    with pytest.raises(InputError, match="no label"):
        read_label(Row("t, row 9", {}), "label")
    assert is_missing(value)


@pytest.mark.parametrize("value", [0.5, math.inf, ["a"], b"a", {"a": 1}])
def test_values_that_are_no_labels(value):
    other = "multilabel learns lists" if isinstance(value, list) else "regress learns any number"
    with pytest.raises(InputError, match=rf"column 'y' holds .*, no label; expected text or a whole .* {other}"):
        read_label(Row("t, row 9", {"y": value}), "y")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("a ", "a "),
        ("", ""),
        (" \n\t", ""),
        (None, ""),
        (math.nan, ""),
        (" \\N", ""),
        ("\u200b\ufeff\xa0", ""),
        ("\u200bx", "\u200bx"),
    ],
)
def test_texts(value, text):
    assert read_text(Row("t, row 1", {"text": value}), "text") == text
    assert read_text(Row("t, row 1", {}), "text") == ""


@pytest.mark.parametrize("value", [3, 1.5, True, ["a"], b"a"])
def test_values_that_are_no_text(value):
    with pytest.raises(InputError, match=r"column 'x' holds .*, not text; name the texts with --text-c"):
        read_text(Row("t, row 9", {"x": value}), "x")
    with pytest.raises(InputError, match=r"name the queries with --query-column$"):
        read_text(Row("t, row 9", {"x": value}), "x", "query")


@pytest.mark.parametrize(
    ("value", "number"), [("3", True), (" -1e3 ", True), ("", True), (2.5, True), ("x", False), (None, False)]
)
def test_cells_of_numbers(value, number):
    assert is_number(value) is number


@pytest.mark.parametrize(
    ("values", "counts"),
    [
        (["1", "2", "3"], True),
        ([0, 1], True),
        (["7", "8"], True),
        (["1", "3"], False),
        (["2", "1"], False),
        (["1"], False),
        ([], False),
        (["1", ""], False),
        (["a", "b"], False),
    ],
)
def test_values_that_count_rows(values, counts):
    assert counts_rows(values) is counts

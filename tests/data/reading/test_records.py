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
from torch_linformer.data.reading.rows import (
    Row,
    counts_rows,
    is_missing,
    is_number,
    read_label,
    read_text,
    several,
)
from torch_linformer.errors import InputError

PLAIN = ChosenColumns("text", "label", None, "")
QUESTION = ChosenColumns("context", "answers", "question", "")


def read(record, columns=PLAIN, **values):
    return record.read(Row("t, row 9", values), columns)


def refusal(record, columns=PLAIN, **values):
    with pytest.raises(InputError) as raised:
        read(record, columns, **values)
    return str(raised.value)


# Numbers


@pytest.mark.parametrize(("value", "number"), [("2.5", 2.5), (3, 3.0), (" -1e3 ", -1000.0), (True, 1.0)])
def test_numbers(value, number):
    assert read(SCORED, text="a", label=value) == {"text": "a", "label": number}


@pytest.mark.parametrize("value", [None, "", math.nan])
def test_a_number_that_is_missing(value):
    message = "no label in column 'label'; fill it in or remove the row"
    assert refusal(SCORED, text="a", label=value) == message


@pytest.mark.parametrize("value", ["many", math.inf, "inf", [1]])
def test_what_is_no_number(value):
    assert refusal(SCORED, text="a", label=value).startswith("column 'label' holds ")
    assert read(SCORED, text=" ", label=value)["text"] == ""  # the row is skipped anyway


# Several labels


def test_what_stands_for_no_label_is_named():
    """A class may be called so."""
    problem = "column 'label' holds 'nan', which stands for no label; write it otherwise, or remove the row"
    assert refusal(LABELED, text="a", label="nan") == refusal(SCORED, text="a", label="nan") == problem
    assert read(SEVERAL, text="a", label=" nan") == {"text": "a", "label": [], "unknown": ["nan"]}


@pytest.mark.parametrize(
    ("value", "labels"),
    [
        (["b", "a", "b"], ["a", "b"]),
        ("a, b", ["a", "b"]),
        ("b;a|c", ["a", "b", "c"]),
        ("one two", ["one two"]),
        ([3, 10], ["10", "3"]),
        (4, ["4"]),
        ([], []),
        ("", []),
        (" , ", []),
    ],
)
def test_several_labels(value, labels):
    assert read(SEVERAL, text="x", label=value) == {"text": "x", "label": labels, "unknown": []}


@pytest.mark.parametrize("cell", [None, math.nan])
def test_null_in_the_place_of_labels_is_told_from_none(cell):
    assert read(SEVERAL, text="x", label=cell) == {"text": "x", "label": [], "unknown": [NULL]}


@pytest.mark.parametrize("cell", ["[14, 25]", "['a']", "[3 4]", "{'a'}"])
def test_a_list_is_no_label(cell):
    message = refusal(LABELED, text="x", label=cell)
    assert message.endswith(f"column 'label' holds {cell!r}, a list; --task multilabel learns lists of labels")
    assert read(LABELED, text="x", label="[NEW]") == {"text": "x", "label": "[NEW]"}


def test_a_column_for_each_label():
    columns = ChosenColumns("text", "rude,loud,late", None, "")
    values = {"text": "x", "rude": "1", "loud": "0", "late": True}
    assert read(SEVERAL, columns, **values)["label"] == ["rude", "late"]
    assert read(SEVERAL, columns, **{**values, "rude": 0, "late": 0.0})["label"] == []
    assert refusal(SEVERAL, columns, **{**values, "loud": "maybe"}) == (
        "column 'loud' holds 'maybe'; a column for one label holds 0 or 1, or nothing where it is unknown"
    )
    assert read(SEVERAL, columns, **{"text": "x", "rude,loud,late": "a"})["label"] == ["a"]  # a column of that name


@pytest.mark.parametrize("cell", [None, math.nan, "", " ", "NaN", "None", "null", "\\N"])
def test_an_empty_cell_in_the_column_of_a_label_is_unknown(cell):
    columns = ChosenColumns("text", "rude,loud,late", None, "")
    assert read(SEVERAL, columns, text="x", rude="1", loud=cell, late="0") == {
        "text": "x",
        "label": ["rude"],
        "unknown": ["loud"],
    }
    assert read(SEVERAL, columns, text="x", rude="1")["unknown"] == ["loud", "late"]  # JSON may leave columns out


@pytest.mark.parametrize(
    ("cell", "labels"),
    [
        ('["b", "a"]', ["a", "b"]),
        ("['b', 'a']", ["a", "b"]),
        ("('b', 'a')", ["a", "b"]),
        ("{'b', 'a'}", ["a", "b"]),
        ("['b' 'a']", ["a", "b"]),  # as NumPy prints strings
        ("['b'\n 'it\\'s']", ["b", "it's"]),
        ("[3, 10]", ["10", "3"]),
        ("[3 10]", ["10", "3"]),
        ("[7]", ["7"]),
        ("[1 0 1]", ["1", "0", "1"]),  # each may stand for the label at its position
        ("[0, 1, 1]", ["0", "1", "1"]),
        ("[1. 0. 1.]", ["1", "0", "1"]),
        ("[ True False\n  True]", ["1", "0", "1"]),
        ("[true, false]", ["1", "0"]),
        ("[True, False]", ["1", "0"]),
        ("[]", []),
        ("set()", []),
        ("[sic]", ["[sic]"]),
        ("[draft] a, b", ["[draft] a", "b"]),
        ("['a'", ["['a'"]),
    ],
)
def test_a_list_that_a_cell_spells(cell, labels):
    assert read(SEVERAL, text="x", label=cell)["label"] == labels


@pytest.mark.parametrize("ones", [[1, 0, 1], [True, False, True], [1.0, 0.0, 1.0]])
def test_zeros_and_ones_keep_their_order(ones):
    assert read(SEVERAL, text="x", label=ones)["label"] == ["1", "0", "1"]


@pytest.mark.parametrize("value", [True, [True], ["a", True], "[true]", [2, False]])
def test_truth_values_that_are_not_one_for_each_label(value):
    message = refusal(SEVERAL, text="x", label=value)
    assert message.endswith("; a list of truth values has one for each label, two at least")


@pytest.mark.parametrize("value", [1.5, [["a"]], {"a": 1}, [0.5], "{'a': 1}", "[[1], [2]]"])
def test_what_is_no_list_of_labels(value):
    assert "no labels; expected a list of them" in refusal(SEVERAL, text="x", label=value)


@pytest.mark.parametrize("value", ["[a, b]", " {joy,anger}", '{joy,"two words"} '])
def test_a_list_without_quotes_is_not_cut_at_its_commas(value):
    assert "; write all lists of the column as JSON, [" in refusal(SEVERAL, text="x", label=value)


# Words and tags


def test_words_become_a_text():
    joined = join_words(["Ann", "met", "Bo", "."])
    assert joined == {"text": "Ann met Bo .", "word_starts": [0, 4, 8, 11], "word_ends": [3, 7, 10, 12]}
    assert join_words([]) == {"text": "", "word_starts": [], "word_ends": []}


@pytest.mark.parametrize(("words", "tags"), [(["Ann", "met"], ["B", "O"]), ("Ann  met", "B O")])
def test_words_and_their_tags(words, tags):
    record = read(TAGGED, text=words, label=tags)
    assert record == {"text": "Ann met", "word_starts": [0, 4], "word_ends": [3, 7], "label": ["B", "O"]}


@pytest.mark.parametrize(
    "cell",
    ['["Ann", "\'s"]', """['Ann', "'s"]""", """['Ann' "'s"]""", "Ann 's"],
    ids=["json", "python", "numpy", "words"],
)
def test_words_that_a_cell_spells(cell):
    assert read(TAGGED, text=cell, label="['B' 'O']")["text"] == "Ann 's"
    assert read(TAGGED, text=cell, label="[1 0]")["label"] == ["1", "0"]


def test_words_in_brackets():
    assert read(TAGGED, text="[ 3 ]", label="O O O")["text"] == "[ 3 ]"  # three words
    assert read(TAGGED, text="[sic]", label="O")["text"] == "[sic]"


def test_words_that_do_not_fit_their_tags():
    assert refusal(TAGGED, text=["a", "b"], label=["O"]) == "2 words and 1 tags; give each word one tag"
    assert "column 'text' holds 3, no list of words or tags" in refusal(TAGGED, text=3, label=["O"])
    assert "column 'label' holds None, no list of words or tags" in refusal(TAGGED, text=["a"], label=None)
    assert "column 'label' holds [''], no list of words or tags" in refusal(TAGGED, text=["a"], label=[""])


# Sources and targets


def test_a_source_and_its_target():
    columns = ChosenColumns("text", "target", None, "")
    assert read(PAIRED, columns, text="a b", target="b") == {"text": "a b", "target": "b"}
    assert read(PAIRED, columns, text=" ", target=None) == {"text": "", "target": ""}  # which is skipped
    assert refusal(PAIRED, columns, text="a", target=" ") == (
        "no target in column 'target'; fill it in or remove the row"
    )
    assert "holds 3, not text; name the sources with --source-column" in refusal(PAIRED, columns, text=3, target="b")
    assert "holds {'de': 'b'}, not text; name the targets with" in refusal(
        PAIRED, columns, text="a", target={"de": "b"}
    )


# Questions


@pytest.mark.parametrize(
    "answers",
    [
        {"text": ["met", "Ann met"], "answer_start": [4, 0]},
        json.dumps({"text": ["met", "Ann met"], "answer_start": [4, 0]}),
        str({"text": ["met", "Ann met"], "answer_start": [4, 0]}),  # as pandas writes it into a table
    ],
)
def test_answers_as_in_squad(answers):
    record = read(ASKED, QUESTION, context="Ann met Bo", question="what?", answers=answers, id="q7")
    assert record == {
        "text": "Ann met Bo",
        "question": "what?",
        "name": "q7",
        "answers": ["met", "Ann met"],
        "starts": [4, 0],
    }


def test_one_answer_as_text_is_found():
    asked = {"context": "Bo met Bo", "question": "who?"}
    assert read(ASKED, QUESTION, **asked, answers="Bo")["starts"] == [0]
    assert read(ASKED, QUESTION, **asked, answers="Bo", answer_start="7")["starts"] == [7]
    nothing = {"text": "Bo met Bo", "question": "who?", "name": "t, row 9", "answers": [], "starts": []}
    assert read(ASKED, QUESTION, **asked, answers="") == nothing
    assert read(ASKED, QUESTION, **asked, answers={"text": [], "answer_start": []}) == nothing
    assert read(ASKED, QUESTION._replace(label=None), **asked) == nothing


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ("Ann", "the answer 'Ann' does not stand in the text"),
        ({"text": ["Bo"], "answer_start": [1]}, "the answer 'Bo' does not stand at character 1 of the text"),
        ({"text": ["Bo"]}, "expected an answer, or text and answer_start as in SQuAD"),
        ({"text": ["Bo"], "answer_start": []}, "expected an answer, or text and answer_start as in SQuAD"),
        ({"text": [3], "answer_start": [0]}, "expected an answer, or text and answer_start as in SQuAD"),
        ({"text": ["Bo"], "answer_start": ["x"]}, "expected an answer, or text and answer_start as in SQuAD"),
        (
            {"text": [" "], "answer_start": [2]},
            "an answer is empty; where there is none, leave the list of answers empty",
        ),
        (["Bo"], "expected an answer, or text and answer_start as in SQuAD"),
        (None, "column 'answers' holds None; expected an answer, or text and answer_start as in SQuAD"),
        (7, "expected an answer, or text and answer_start as in SQuAD"),
        ("{broken", "which is not valid JSON"),
    ],
)
def test_answers_that_are_none(answers, message):
    assert message in refusal(ASKED, QUESTION, context="Bo met Bo", question="who?", answers=answers)


def test_a_row_without_a_question():
    assert refusal(ASKED, QUESTION, context="a", question=" ", answers=None) == (
        "no question in column 'question'; fill it in or remove the row"
    )


# From files


@pytest.mark.parametrize(
    ("name", "content", "record", "expected"),
    [
        ("a.csv", "body,score\nx,1.5\n", SCORED, {"text": "x", "label": 1.5}),
        (
            "a.jsonl",
            '{"text": "x", "labels": ["b", "a"]}\n',
            SEVERAL,
            {"text": "x", "label": ["a", "b"], "unknown": []},
        ),
        (
            "a.conll",
            "Ann B-PER\nmet O\n",
            TAGGED,
            {"text": "Ann met", "word_starts": [0, 4], "word_ends": [3, 7], "label": ["B-PER", "O"]},
        ),
        (
            "a.csv",
            "context,question,answer\nAnn met Bo,who?,Bo\n",
            ASKED,
            {"text": "Ann met Bo", "question": "who?", "name": "PATH, row 1", "answers": ["Bo"], "starts": [8]},
        ),
    ],
)
def test_columns_are_recognised(tmp_path, datasets_cache, name, content, record, expected):
    path = tmp_path / name
    path.write_text(content)
    (found,) = load_documents(str(path), record).dataset
    assert found == {
        key: value.replace("PATH", str(path)) if key == "name" else value for key, value in expected.items()
    }


def test_squad_from_a_file(tmp_path, datasets_cache):
    question = {"id": "q1", "question": "who?", "answers": [{"text": "Bo", "answer_start": 8}]}
    paragraph = {"context": "Ann met Bo", "qas": [question, {**question, "id": "q2", "answers": []}]}
    path = tmp_path / "dev.json"
    path.write_text(json.dumps({"data": [{"title": "t", "paragraphs": [paragraph]}]}))
    found = load_documents(str(path), ASKED).dataset
    assert found["name"][:] == ["q1", "q2"] and found["starts"][:] == [[8], []]


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


def test_several_of_a_word():
    assert [several(word) for word in ("text", "query")] == ["texts", "queries"]

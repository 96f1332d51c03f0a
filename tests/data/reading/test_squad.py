import copy
import json

import pytest

from torch_linformer.data.reading.json_rows import is_squad, squad_rows
from torch_linformer.data.reading.rows import BadRow
from torch_linformer.errors import InputError

ANSWER = {"text": "b", "answer_start": 2}
QUESTION = {"id": "q1", "question": "What?", "answers": [ANSWER]}
CONTENT = {"data": [{"paragraphs": [{"context": "a b", "qas": [QUESTION]}]}]}


def changed(path, value=None):
    """CONTENT with the value at `path` replaced, or taken away."""
    content = copy.deepcopy(CONTENT)
    *inner, last = path
    place = content
    for key in inner:
        place = place[key]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return content


PARAGRAPH = ("data", 0, "paragraphs", 0)
ASKED = (*PARAGRAPH, "qas", 0)


def test_rows():
    content = changed((*PARAGRAPH, "qas"), [QUESTION, {**QUESTION, "id": 2, "answers": [ANSWER, ANSWER]}])
    common = {"question": "What?", "context": "a b"}
    assert list(squad_rows(content, "t.json")) == [
        ({"id": "q1", **common, "answers": {"text": ["b"], "answer_start": [2]}}, "t.json, question q1"),
        ({"id": "2", **common, "answers": {"text": ["b"] * 2, "answer_start": [2] * 2}}, "t.json, question 2"),
    ]


@pytest.mark.parametrize(
    ("change", "answers"),
    [
        ({"answers": []}, {"text": [], "answer_start": []}),
        ({"is_impossible": True}, {"text": [], "answer_start": []}),
        ({"is_impossible": False}, {"text": ["b"], "answer_start": [2]}),
    ],
)
def test_questions_without_an_answer(change, answers):
    [(values, _)] = squad_rows(changed(ASKED, {**QUESTION, **change}), "t.json")
    assert values["answers"] == answers


def test_questions_still_to_be_answered_have_no_answers():
    [(values, _)] = squad_rows(changed((*ASKED, "answers")), "t.json")
    assert values == {"id": "q1", "question": "What?", "context": "a b"}
    [(values, _)] = squad_rows(changed(ASKED, {"id": "q1", "question": "?", "is_impossible": True}), "t.json")
    assert values["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("data",), [{}, {"paragraphs": []}], "data[0]: expected an object with 'paragraphs' (an array), as in SQuAD;"),
        ((*PARAGRAPH,), 3, "data[0].paragraphs[0]: expected an object with 'context' (text), as in SQuAD; found int"),
        ((*PARAGRAPH, "context"), None, "data[0].paragraphs[0]: expected an object with 'context' (text), as in"),
        ((*PARAGRAPH, "qas"), {}, "data[0].paragraphs[0]: expected 'qas' to be an array, as in SQuAD; found dict"),
    ],
)
def test_articles_and_paragraphs_that_are_none_are_refused(path, value, message):
    with pytest.raises(InputError) as raised:
        list(squad_rows(changed(path, value), "t.json"))
    assert str(raised.value).startswith(f"t.json, {message}") and "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("id",), None, "data[0].paragraphs[0].qas[0]: expected an object with 'id' (text or a whole number)"),
        (("id",), True, "data[0].paragraphs[0].qas[0]: expected 'id' to be text or a whole number"),
        (("question",), None, "question q1: expected an object with 'question' (text), as in SQuAD; found an"),
        (("answers",), ANSWER, "question q1: expected 'answers' to be an array, as in SQuAD; found dict"),
        (("answers", 0, "text"), None, "question q1: expected an object with 'text' (text), as in SQuAD"),
        (("answers", 0, "answer_start"), "2", "question q1: expected 'answer_start' to be a whole number"),
        (("is_impossible",), "false", "question q1: expected 'is_impossible' to be true or false, as in SQuAD"),
    ],
)
def test_a_bad_question_leaves_the_others(path, value, message):
    content = changed((*ASKED, *path), value)
    content["data"][0]["paragraphs"][0]["qas"].append({"id": "q2", "question": "Who?"})
    bad, good = squad_rows(content, "t.json")
    assert isinstance(bad, BadRow) and bad.where == "t.json, data[0].paragraphs[0].qas[0]"
    assert str(bad.problem).startswith(f"t.json, {message}") and "\n" not in str(bad.problem)
    assert good.values == {"id": "q2", "question": "Who?", "context": "a b"}


@pytest.mark.parametrize("content", [[CONTENT], {"data": [{"text": "x"}]}, {"data": {"paragraphs": []}}, {}, 3])
def test_other_json_is_not_squad(content):
    assert not is_squad(content)


def test_one_article_with_paragraphs_is_enough_to_be_told_what_the_others_lack():
    assert is_squad({"data": [{"title": "x"}, *CONTENT["data"]]})


# Files


@pytest.mark.parametrize("indent", [None, 1], ids=["one-line", "many-lines"])
@pytest.mark.parametrize("mark", ["", "\ufeff\r\n "], ids=["plain", "marked"])
def test_files(write, read, indent, mark):
    content = changed((*PARAGRAPH, "context"), "The café is élegant.")
    path = write("dev.json", mark + json.dumps(content, indent=indent) + "\n")
    outcome = read(path)
    answers = {"text": ["b"], "answer_start": [2]}
    assert outcome.rows == [{"id": "q1", "question": "What?", "context": "The café is élegant.", "answers": answers}]
    assert outcome.places == [f"{path}, question q1"] and outcome.problems == outcome.notes == []


def test_places_of_answers_are_those_of_characters(write, read):
    content = changed((*PARAGRAPH, "context"), "Größe b")
    path = write("dev.json", json.dumps(content, ensure_ascii=False).encode("cp1252"))
    assert read(path, encoding="cp1252").rows[0]["context"] == "Größe b"
    half = changed((*PARAGRAPH, "context"), "caf\ud83d b")
    outcome = read(write("half.json", json.dumps(half)))
    assert outcome.rows[0]["context"] == "caf\ufffd b" and outcome.replaced == 1  # one character for another


def test_files_that_are_damaged(write, read):
    whole = json.dumps(CONTENT, indent=1)
    for name, text in (("a.json", whole[:-2]), ("b.json", json.dumps(CONTENT)[:-2]), ("c.json", whole + "\n{}")):
        path = write(name, text)
        (problem,) = read(path).problems
        assert problem.startswith(f"{path}: not valid JSON (")


@pytest.mark.parametrize(
    "rows",
    [[{"data": [1, {"paragraphs": 2}]}, {"text": "x"}], [{"data": "paragraphs"}], [{"text": "x", "data": []}]],
    ids=["more lines", "no articles", "no data"],
)
def test_json_lines_that_resemble_squad_stay_lines(write, read, rows):
    assert read(write("t.json", "\n".join(map(json.dumps, rows)))).rows == rows

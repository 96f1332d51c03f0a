import copy

import pytest

from torch_linformer.data.reading.squad import is_squad, squad_rows
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
        ((*ASKED, "id"), None, "data[0].paragraphs[0].qas[0]: expected an object with 'id' (text or a whole number)"),
        ((*ASKED, "id"), True, "data[0].paragraphs[0].qas[0]: expected 'id' to be text or a whole number"),
        ((*ASKED, "question"), None, "question q1: expected an object with 'question' (text), as in SQuAD; found an"),
        ((*ASKED, "answers"), ANSWER, "question q1: expected 'answers' to be an array, as in SQuAD; found dict"),
        ((*ASKED, "answers", 0, "text"), None, "question q1: expected an object with 'text' (text), as in SQuAD"),
        ((*ASKED, "answers", 0, "answer_start"), "2", "question q1: expected 'answer_start' to be a whole number"),
    ],
)
def test_what_is_missing_or_of_another_type_is_named(path, value, message):
    with pytest.raises(InputError) as raised:
        list(squad_rows(changed(path, value), "t.json"))
    assert str(raised.value).startswith(f"t.json, {message}") and "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [[CONTENT], {"data": [{"text": "x"}]}, {"data": {"paragraphs": []}}, {}, 3])
def test_other_json_is_not_squad(content):
    assert not is_squad(content)


def test_one_article_with_paragraphs_is_enough_to_be_told_what_the_others_lack():
    assert is_squad({"data": [{"title": "x"}, *CONTENT["data"]]})

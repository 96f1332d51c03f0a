import copy
import json

import pytest

from torch_linformer.data.reading import readers
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.readers import is_object, squad_rows
from torch_linformer.errors import InputError

TABLE = [{"text": "first, one", "label": "a"}, {"text": 'second "two"\nlines', "label": "b"}]


# Lines


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("t.jsonl", "\ufeff" + "\n".join(map(json.dumps, TABLE)), "line {}"),
        ("t.ndjson", "\r\n".join(map(json.dumps, TABLE)) + "\r\n", "line {}"),
        ("t.json", "\n".join(map(json.dumps, TABLE)), "line {}"),
        ("t.json", "\ufeff\n " + json.dumps(TABLE, indent=2), "item {}"),
        ("t.json", json.dumps(TABLE), "item {}"),
        ("t.json", json.dumps(TABLE).replace("}, {", "},\n{"), "item {}"),
    ],
    ids=["jsonl", "ndjson", "json-lines", "array-indented", "array-on-one-line", "array-of-lines"],
)
def test_objects_on_lines_or_in_an_array(write, read, name, content, place):
    path = write(name, content)
    outcome = read(path)
    assert outcome.rows == TABLE
    assert outcome.places == [f"{path}, {place.format(number)}" for number in (1, 2)]
    assert outcome.problems == outcome.notes == [] and outcome.replaced == 0


def test_bad_lines_leave_the_others(write, read):
    path = write("t.jsonl", '{"text": "a"}\n\n{"text": \n"text"\n' + '{"a":' + "[" * 100_000 + '\n{"text": "b"}\n')
    outcome = read(path)
    assert outcome.rows == [{"text": "a"}, {"text": "b"}]
    first, second, third = outcome.problems
    assert first.startswith(f"{path}, line 3: not valid JSON (") and first.endswith(
        "write one JSON object on each line"
    )
    assert second == f"{path}, line 4: expected a JSON object, found str"
    assert third.startswith(f"{path}, line 5: not valid JSON (")


def test_two_values_of_one_name_are_a_bad_row(write, read):
    path = write("t.jsonl", '{"text": "a", "label": "x", "label": "y"}\n{"text": "b", "label": "y"}\n')
    outcome = read(path)
    assert outcome.rows == [{"text": "b", "label": "y"}]
    assert outcome.problems[0].startswith(f"{path}, line 1: not valid JSON (two values are called 'label'); write")


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_file_of_json_with_a_bad_line_is_still_one_of_lines(write, read, number):
    lines = ['{"text": "a"}', '{"text": "b"}']
    lines.insert(number - 1, '{"text": "c')
    path = write("t.json", "\n".join(lines))
    outcome = read(path)
    assert outcome.rows == [{"text": "a"}, {"text": "b"}]
    assert outcome.problems[0].startswith(f"{path}, line {number}: not valid JSON (")


def test_one_line_of_a_file_of_lines_is_a_row(write, read):
    assert read(write("t.jsonl", '{"rows": [{"text": "a"}]}')).rows == [{"rows": [{"text": "a"}]}]


def test_bytes_of_another_encoding_make_a_bad_row(write, read):
    path = write("t.jsonl", b'{"text": "na\xc3\xafve"}\n{"text": "caf\xe9"}\n{"text": "fine"}\n')
    outcome = read(path)
    assert [row["text"] for row in outcome.rows] == ["naïve", "fine"]
    assert outcome.problems == [
        f'{path}, line 2: holds bytes that are not UTF-8 (\'ext": "caf\\xe9"}}\\n\'); '
        "save the file as UTF-8, or name its encoding with --encoding"
    ]
    assert "line 1: holds bytes that are not ascii (" in read(path, encoding="ascii").problems[0]
    array = write(
        "t.json", b'[{"text": "caf\xe9"}, {"text": "na\xc3\xafve"},\n{"text": "\xc3\xa9"}, {"text":\n"\xc3\xa9"}]'
    )
    outcome = read(array)
    assert len(outcome.rows) == 3 and outcome.problems[0].startswith(
        f"{array}, item 1: holds bytes that are not UTF-8 ("
    )


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"text": "\\ud83d\\ude00"}', "😀"),
        ('{"text": "\\ud83d!"}', "\ufffd!"),
        ('{"text": ["a", {"b": "\\udc00"}]}', ["a", {"b": "\ufffd"}]),
    ],
)
def test_half_a_character_that_json_escapes_is_replaced_and_counted(write, read, line, value):
    outcome = read(write("t.jsonl", line))
    assert outcome.rows == [{"text": value}] and outcome.replaced == ("\ufffd" in str(value))


@pytest.mark.parametrize("name", ["e.jsonl", "e.json"])
@pytest.mark.parametrize("content", ["", "\n \n"])
def test_empty_files_have_no_rows(write, read, name, content):
    assert read(write(name, content))[:3] == ([], [], [])


# Arrays


def test_what_is_no_object_in_an_array_leaves_the_others(write, read):
    for content in ('[{"text": "a"}, 3, {"text": "b"}]', '[{"text": "a"},\n 3,\n {"text": "b"}]'):
        path = write("t.json", content)
        outcome = read(path)
        assert outcome.rows == [{"text": "a"}, {"text": "b"}] and outcome.places[1] == f"{path}, item 3"
        assert outcome.problems == [f"{path}, item 2: expected a JSON object, found int"]


@pytest.mark.parametrize(
    "content", ['[{"text": "x"}', '[{"text": "x"}]]', '[{"text": "x"} 3]', '{\n"text": "x"', "nothing"]
)
def test_what_is_no_json(write, read, content):
    path = write("t.json", content)
    (problem,) = read(path).problems
    assert problem.startswith(f"{path}: not valid JSON (")
    assert problem.endswith("; write an array of objects, or one object on each line")


@pytest.mark.parametrize("name", ["rows", "data", "examples"])
def test_the_one_array_of_objects_within_a_value(write, read, name):
    path = write("t.json", json.dumps({"version": 1, "tags": ["a"], name: TABLE, "empty": []}, indent=1))
    outcome = read(path)
    assert outcome.rows == TABLE and outcome.notes == [f"{path}: a row is an object in {name!r}"]


@pytest.mark.parametrize("text", ["a", "x" * 50])
def test_an_array_is_read_item_by_item(write, monkeypatch, read, text):
    monkeypatch.setattr(readers, "_READ", 7)
    monkeypatch.setattr(readers, "_PIECE", 3)
    monkeypatch.setattr(readers, "memory_bytes", lambda: 2000)  # of which an object may have a sixteenth
    rows = [{"text": text, "label": number} for number in range(200)]
    assert read(write("t.json", json.dumps(rows))).rows == rows
    assert [row["a"] for row in read(write("n.json", '[{"a": 1}, 234567, {"a": 7654321}]')).rows] == [1, 7654321]
    outcome = read(write("u.json", json.dumps([*rows, {"text": "x" * 400}, *rows])))
    assert len(outcome.rows) == 200 and "holds more than" in outcome.problems[0]
    twice = read(write("v.json", '[{"text": "a"}, {"text": "b", "text": "c"}, {"text": "d"}]'))
    assert [row["text"] for row in twice.rows] == ["a", "d"] and "two values are called 'text'" in twice.problems[0]


def test_several_arrays_are_refused(write, read):
    path = write("t.json", json.dumps({"train": TABLE, "test": TABLE}))
    assert read(path).problems == [f"{path}: holds several arrays of objects (train, test); save each as a file"]


def test_one_object_is_a_row(write, read):
    for values in ({"text": "a", "label": 1}, {"text": "a", "entities": [{"start": 1}]}):
        assert read(write("t.json", json.dumps(values, indent=1))).rows == [values]


# What pandas writes


PANDAS = {
    "columns": {"text": {"0": "a", "1": "b"}, "label": {"0": 1, "1": 2}},
    "split": {"columns": ["text", "label"], "index": [0, 1], "data": [["a", 1], ["b", 2]]},
    "records": [{"text": "a", "label": 1}, {"text": "b", "label": 2}],
    "table": {
        "schema": {"fields": [{"name": "text"}, {"name": "label"}], "primaryKey": ["index"]},
        "data": [{"text": "a", "label": 1}, {"text": "b", "label": 2}],
    },
}


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("orient", PANDAS)
def test_layouts_of_pandas(write, read, orient, indent):
    outcome = read(write("t.json", json.dumps(PANDAS[orient], indent=indent)))
    assert outcome.rows == PANDAS["records"] and outcome.problems == []


def test_rows_by_name_keep_it(write, read):
    path = write("t.json", '{"anna": {"text": "a"}, "bo": {"text": "b", "label": 2}}')
    outcome = read(path)
    assert outcome.rows == [{"id": "anna", "text": "a"}, {"id": "bo", "text": "b", "label": 2}]
    assert outcome.notes == [f"{path}: an object of 2 objects, read as a table"]


def test_columns_whose_rows_have_names(write, read):
    rows = [{"id": "anna", "Text": "a", "label": 1}, {"id": "bo", "Text": "b", "label": 2}]
    content = {"Text": {"anna": "a", "bo": "b"}, "label": {"anna": 1, "bo": 2}}
    assert read(write("t.json", json.dumps(content))).rows == rows
    content = {"text": {"text": "a", "label": 1}, "bo": {"text": "b", "label": 2}}  # a row may be called so
    assert [row["id"] for row in read(write("u.json", json.dumps(content))).rows] == ["text", "bo"]


def test_columns_of_which_one_lacks_a_row(write, read):
    rows = read(write("t.json", '{"text": {"3": "a", "7": "b"}, "label": {"3": 1}}')).rows
    assert rows == [{"text": "a", "label": 1}, {"text": "b", "label": None}]


def test_a_row_of_another_length_is_bad(write, read):
    path = write("t.json", '{"columns": ["text", "label"], "data": [["a", 1], ["b"], ["c", 3]]}')
    outcome = read(path)
    assert outcome.rows == [{"text": "a", "label": 1}, {"text": "c", "label": 3}]
    assert outcome.problems == [f"{path}, item 2: expected a JSON object, found list"]


@pytest.mark.parametrize("content", ['{"columns": ["a"], "data": 3}', '{"columns": 3, "data": [[1]]}'])
def test_other_values_of_these_names_are_an_object(write, read, content):
    assert read(write("t.json", content)).rows == [json.loads(content)]


def test_options_reach_the_rows(write):
    path = write("t.json", json.dumps([{"body": "Größe", "kind": 1}], ensure_ascii=False).encode("cp1252"))
    named = DataOptions(encoding="cp1252", text_column="body")
    assert load_documents(str(path), options=named).dataset[:] == {"text": ["Größe"], "label": ["1"]}


@pytest.mark.parametrize(("line", "is_one"), [('{"a": 1}', True), ("[1]", False), ("{", False), ("[" * 100_000, False)])
def test_what_is_an_object(line, is_one):
    assert is_object(line) is is_one


# SQuAD

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
    assert [(row.values, row.where) for row in squad_rows(content["data"], "t.json")] == [
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
    values = next(squad_rows(changed(ASKED, {**QUESTION, **change})["data"], "t.json")).values
    assert values["answers"] == answers


def test_questions_still_to_be_answered_have_no_answers():
    values = next(squad_rows(changed((*ASKED, "answers"))["data"], "t.json")).values
    assert values == {"id": "q1", "question": "What?", "context": "a b"}
    values = next(
        squad_rows(changed(ASKED, {"id": "q1", "question": "?", "is_impossible": True})["data"], "t.json")
    ).values
    assert values["answers"] == {"text": [], "answer_start": []}


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("data",), [{}, {"paragraphs": []}]),
        (PARAGRAPH, 3),
        ((*PARAGRAPH, "context"), None),
        ((*PARAGRAPH, "qas"), {}),
        *(
            ((*ASKED, *path), value)
            for path, value in [
                (("id",), None),
                (("id",), True),
                (("question",), None),
                (("question",), 3),
                (("answers",), ANSWER),
                (("answers", 0, "text"), None),
                (("is_impossible",), "false"),
            ]
        ),
    ],
)
def test_what_is_not_as_in_squad_leaves_the_others(path, value):
    content = changed(path, value)
    other = {"paragraphs": [{"context": "c", "qas": [{"id": "q2", "question": "Who?"}]}]}
    bad, good = squad_rows([*content["data"][:1], other], "t.json")
    assert isinstance(bad.values, InputError) and ", as in SQuAD: id, question and answers" in str(bad.values)
    assert "data[0]" in bad.where or "question q1" in bad.where
    assert good.values == {"id": "q2", "question": "Who?", "context": "c"}


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

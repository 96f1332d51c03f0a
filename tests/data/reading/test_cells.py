import math
import re

import pytest

from torch_linformer.data.reading.rows import Row, counts_rows, is_missing, is_number, read_label, read_text, several
from torch_linformer.errors import InputError


@pytest.mark.parametrize(
    ("value", "label"),
    [(" pos ", "pos"), (3, "3"), (-1, "-1"), (2.0, "2"), (True, "True"), ("1.0", "1.0"), (2**60, str(2**60))],
)
def test_labels_become_text(value, label):
    assert read_label(Row({"label": value}, "t, row 1"), "label") == label


@pytest.mark.parametrize("value", [None, "", " \t", math.nan, "NaN", "nan ", "\\N"])
def test_missing_labels(value):
    problem = r"no label in column 'label'; fill it in or remove the row"
    if isinstance(value, str) and value.strip():  # a class may be called so
        problem = rf"column 'label' holds {re.escape(repr(value))}, which stands for no label; write it otherwise, or "
    with pytest.raises(InputError, match=rf"t, row 9: {problem}"):
        read_label(Row({"label": value}, "t, row 9"), "label")
    with pytest.raises(InputError, match="t, row 9: no label"):
        read_label(Row({}, "t, row 9"), "label")
    assert is_missing(value)


@pytest.mark.parametrize("value", [0.5, math.inf, ["a"], b"a", {"a": 1}])
def test_values_that_are_no_labels(value):
    other = "multilabel learns lists" if isinstance(value, list) else "regress learns any number"
    with pytest.raises(InputError, match=rf"column 'y' holds .*, no label; expected text or a whole .* {other}"):
        read_label(Row({"y": value}, "t, row 9"), "y")


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
    assert read_text(Row({"text": value}, "t, row 1"), "text") == text
    assert read_text(Row({}, "t, row 1"), "text") == ""


@pytest.mark.parametrize("value", [3, 1.5, True, ["a"], b"a"])
def test_values_that_are_no_text(value):
    with pytest.raises(InputError, match=r"t, row 9: column 'x' holds .*, not text; name the texts with --text-c"):
        read_text(Row({"x": value}, "t, row 9"), "x")
    with pytest.raises(InputError, match=r"name the queries with --query-column$"):
        read_text(Row({"x": value}, "t, row 9"), "x", "query")


@pytest.mark.parametrize(
    ("value", "number"), [("3", True), (" -1e3 ", True), ("", True), (2.5, True), ("x", False), (None, False)]
)
def test_numbers(value, number):
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

"""What the tasks of slots ask for: rows that can be answered, with the right answers."""

import numpy as np
import pytest

from slot_rows import (
    ASKED,
    CLOSE,
    FIRST_DIGIT,
    FIRST_OPERATOR,
    FIRST_VALUE,
    NOT_ASKED,
    OPERATORS,
    Texts,
    by_outer_operator,
    listops,
    lookup,
    most_frequent_value,
    needle,
)

ROWS = 7


def test_lookup_asks_for_keys_that_stand_once_before_the_gap_with_their_values():
    length, gap = 331, 23
    rows = lookup(np.random.default_rng(0), ROWS, length, gap=gap)
    for words, types, labels in zip(rows["input_ids"], rows["token_type_ids"], rows["labels"], strict=True):
        records = {word: (place, kind) for place, (word, kind) in enumerate(zip(words, types, strict=True)) if kind > 1}
        assert len(records) == np.count_nonzero(types > 1) == length // 64
        assert max(place for place, _ in records.values()) < length - ASKED - gap
        assert (labels[:-ASKED] == NOT_ASKED).all()
        for word, kind, label in zip(words[-ASKED:], types[-ASKED:], labels[-ASKED:], strict=True):
            assert (kind, label) == (1, records[word][1] - FIRST_VALUE)


def test_the_guess_of_lookup_is_the_value_that_most_records_have():
    types = FIRST_VALUE + np.array([[3, 5, 5, -2, -1], [-2, 1, 1, 1, 7]])  # −2: a filler, −1: a question
    assert most_frequent_value({"token_type_ids": types}).tolist() == [[5], [1]]


def test_needle_marks_one_word_beyond_the_gap():
    gap = 19
    rows = needle(np.random.default_rng(0), 200, 41, gap=gap)
    marked = rows["token_type_ids"].astype(bool)
    assert (marked.sum(axis=1) == 1).all()
    assert marked.argmax(axis=1).min() == gap + 1 and marked.argmax(axis=1).max() == 40
    assert (rows["input_ids"][marked] - 1 == rows["labels"]).all()
    assert (rows["input_ids"][:, 0] == 0).all() and rows["input_ids"][:, 1:].min() == 1


def test_values_of_listops_are_those_of_the_expressions():
    rows = listops(np.random.default_rng(0), 40, 61, shortest=17, depth=4)
    names = {"MAX": max, "MIN": min, "MED": lambda x: int(np.median(x)), "SM": lambda x: sum(x) % 10}
    spelled = {FIRST_DIGIT + digit: f"{digit}," for digit in range(10)} | {CLOSE: "]),"}
    spelled |= {FIRST_OPERATOR + number: f"{name}([" for number, name in enumerate(OPERATORS)}
    for tokens, mask, value in zip(rows["input_ids"], rows["attention_mask"], rows["labels"], strict=True):
        own = tokens[: mask.sum()]
        assert (tokens[mask.sum() :] == 0).all()
        text = "".join(spelled[token] for token in own)
        assert eval(text.rstrip(","), names) == value, text
        depths = np.cumsum(((own >= FIRST_OPERATOR) & (own < CLOSE)).astype(int) - (own == CLOSE))
        assert 1 <= depths.max() <= 4 and len(own) <= 61
    used = set(rows["input_ids"].ravel().tolist())
    assert used == {0, *spelled}


def test_the_guess_of_listops_is_the_most_frequent_value_of_the_outer_operator():
    rows = listops(np.random.default_rng(0), 4000, 97, shortest=89)
    guessed = by_outer_operator(rows)
    for operator, name in enumerate(OPERATORS):
        own = rows["input_ids"][:, 0] == FIRST_OPERATOR + operator
        counts = np.bincount(rows["labels"][own], minlength=10)
        (guess,) = set(guessed[own].tolist())
        assert name == "SM" or guess == counts.argmax()
        assert name != "SM" or counts.max() < 1.5 * counts.mean()


def test_expressions_fill_most_of_their_room():
    rows = listops(np.random.default_rng(0), 50, 300, shortest=300)
    assert rows["attention_mask"].sum(axis=1).mean() > 0.95 * 300


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_texts_are_bytes_with_their_labels(tmp_path, suffix):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"text": ["añb", "c"], "label": ["pos", "neg"]})
    file = tmp_path / f"texts.{suffix}"
    table.to_csv(file, index=False) if suffix == "csv" else table.to_parquet(file)
    rows = Texts.read(file).draw(np.random.default_rng(0), 2, 3)
    order = np.argsort(rows["labels"])
    assert rows["input_ids"][order].tolist() == [[100, 0, 0], [98, 0xC3 + 1, 0xB1 + 1]]
    assert rows["attention_mask"][order].tolist() == [[1, 0, 0], [1, 1, 1]]

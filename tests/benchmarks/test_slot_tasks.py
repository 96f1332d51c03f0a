"""The tasks of slots: rows that can be answered, with the right answers; models, and a small run of the command."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import typer

from learning import chosen
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
from slot_tasks import GAP, SHORTEST, STAGES, TASKS, VARIANTS, build, groups, main

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


def test_guesses_are_the_most_frequent_value():
    types = FIRST_VALUE + np.array([[3, 5, 5, -2, -1], [-2, 1, 1, 1, 7]])  # −2: a filler, −1: a question
    assert most_frequent_value({"token_type_ids": types}).tolist() == [[5], [1]]
    rows = listops(np.random.default_rng(0), 4000, 97, shortest=89)
    assert rows["attention_mask"].sum(axis=1).mean() > 0.95 * 97
    guessed = by_outer_operator(rows)
    for operator, name in enumerate(OPERATORS):
        own = rows["input_ids"][:, 0] == FIRST_OPERATOR + operator
        counts = np.bincount(rows["labels"][own], minlength=10)
        (guess,) = set(guessed[own].tolist())
        assert name == "SM" or guess == counts.argmax()
        assert name != "SM" or counts.max() < 1.5 * counts.mean()


def test_texts_are_bytes_with_their_labels(tmp_path):
    pd.DataFrame({"text": ["añb", "c"], "label": ["pos", "neg"]}).to_csv(tmp_path / "texts.csv", index=False)
    rows = Texts.read(tmp_path / "texts.csv").draw(np.random.default_rng(0), 2, 3)
    order = np.argsort(rows["labels"])
    assert rows["input_ids"][order].tolist() == [[100, 0, 0], [98, 0xC3 + 1, 0xB1 + 1]]
    assert rows["attention_mask"][order].tolist() == [[1, 0, 0], [1, 1, 1]]


# Models and the command


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_window_alone_cannot_reach_the_needle(variant):
    torch.manual_seed(0)
    length = GAP + 32
    model = build(TASKS["needle"], variant, length)
    words = torch.randn(2, length, model.config.hidden_size, requires_grad=True)
    model(inputs_embeds=words).logits.sum().backward()
    far = words.grad[:, GAP + 1 :]
    assert words.grad[:, GAP].any()
    assert far.any() == (variant != "window")


@pytest.mark.parametrize(("variant", "rate"), [("linear", 0.1), ("dynamic-window", 3.0)])
def test_every_parameter_is_in_one_group_and_those_of_slots_have_their_rate(variant, rate):
    model = build(TASKS["lookup"], variant, 160)
    others, slots = groups(model, 0.5)
    assert sum(weight.numel() for group in (others, slots) for weight in group["params"]) == model.num_parameters()
    assert (others["lr"], slots["lr"]) == (0.5, 0.5 * rate)
    assert len(slots["params"]) == (8 if variant == "dynamic-window" else 4)


def test_rows_grow_in_stages():
    assert sum(STAGES.values()) == pytest.approx(1)
    lengths = [TASKS["needle"].length_at(progress, 4096) for progress in (0.01, 0.4, 0.5, 0.6, 0.75, 1.0)]
    assert lengths == [256, 256, 512, 1024, 2048, 4096]
    assert TASKS["needle"].length_at(0.01, 1024) == SHORTEST
    assert TASKS["listops"].length_at(0.01, 2048) == 2048


def test_an_unknown_name_is_refused():
    with pytest.raises(typer.BadParameter, match="'haystack' is none of lookup, needle, listops"):
        chosen("needle,haystack", TASKS, "--tasks")


def test_a_stopped_command_goes_on_and_reports_all_runs(tmp_path, capsys):
    def run() -> tuple[list[dict], str]:
        small = {"length": 128, "steps": 2, "batch": 2, "rows": 16}
        main(tmp_path, tasks="needle,lookup", variants="full,dynamic-window", seeds=1, **small)
        lines = (tmp_path / "runs.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], capsys.readouterr().out

    runs, _ = run()
    found = [(each["task"], each["variant"], each["slots"]) for each in runs]
    assert found == [(task, *kind) for task in ("needle", "lookup") for kind in (("full", None), ("dynamic-window", 8))]
    table = (tmp_path / "results.md").read_text()
    assert table.count("| full attention |") == table.count("one P a head + window |") == 2
    figure = (tmp_path / "curves.png").read_bytes()
    assert figure.startswith(b"\x89PNG")
    lines = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(lines[:-1]))
    again, screen = run()
    assert "lookup dynamic-window 0: step 2" in screen and "needle" not in screen
    assert [each["accuracy"] for each in again] == [each["accuracy"] for each in runs]
    assert run() == (again, "")

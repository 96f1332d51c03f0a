import dataclasses
import itertools

import pytest
import torch
from small_suites import SmallSuite, case, workload

from runner.suite import Contender
from runner.timing import time_in_turn


def rows_of(*names, repeat=2, budget=5.0, of=None, log=None):
    of = of or case()
    contenders = {each.name: each for each in SmallSuite(*names, log=log).contenders()}
    return time_in_turn([(contenders[name], of) for name in names], repeat, budget)


@pytest.mark.parametrize("step", ["forward", "training"])
def test_contenders_take_turns_after_all_are_warm(tmp_path, step):
    log = tmp_path / "log"
    rows = rows_of("A", "B", "C", repeat=3, of=case(step=step), log=log)
    calls = [line.split()[0] for line in log.read_text().splitlines()]
    assert "".join(name for name, _ in itertools.groupby(calls)) == "ABC" * 4  # one turn to warm up
    assert [(row.contender, row.repeats, row.error) for row in rows] == [(name, 3, None) for name in "ABC"]
    for row in rows:
        lower, upper = row.spread
        assert 0 < lower <= row.seconds <= upper


def test_one_that_fails_has_no_time_and_the_others_have_theirs():
    errors = {
        "NaN": "ValueError: the output is not finite",
        "shape": "ValueError: the output's shape is (2, 6, 6), expected (2, 7, 6)",
        "wrong": "ValueError: the output is 1.0e-03 off, relative to the largest; 1e-04 is allowed",
        "raising": "ValueError: no such thing",
        "refusing": "NotImplementedError: not for length 7",
    }
    first, *failed, last = rows_of("right", *errors, "checked")
    assert {row.contender: row.error for row in failed} == errors
    assert {(row.seconds, row.spread, row.repeats) for row in failed} == {(None, None, 0)}
    assert first.repeats == last.repeats == 2


def test_an_input_without_its_gradient_is_an_error():
    (row,) = rows_of("detached", of=case(step="training"))
    assert row.error == "ValueError: the input's gradient is missing"
    (row,) = rows_of("detached")
    assert row.error is None


def test_a_slow_contender_gets_fewer_rounds_but_one():
    slow, quick = rows_of("A", "B", repeat=5, budget=0.0, log="/dev/null")
    assert slow.repeats == quick.repeats == 1
    assert slow.spread == (slow.seconds, slow.seconds)


def test_an_error_in_a_later_round_ends_the_part(tmp_path):
    calls = itertools.count()

    def fail_late(module, x):
        if next(calls) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return module(x)

    late = Contender(name="late", build=lambda case: workload(case, fail_late))
    (right,) = SmallSuite("right").contenders()
    failed, other = time_in_turn([(late, case()), (right, case())], 3, 5.0)
    assert failed.error == "out of memory" and failed.seconds is None
    assert other.repeats == 3


def test_steps_run_in_the_mode_of_the_case():
    modes = []

    def noting(module, x):
        modes.append((module.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), x.grad is None))
        return module(x)

    contender = Contender(name="noting", build=lambda case: workload(case, noting))
    for step in ("forward", "decoding"):
        time_in_turn([(contender, case(step=step))], 1, 5.0)
        assert set(modes) == {(False, False, True, True)}
        modes.clear()
    time_in_turn([(contender, case(step="training"))], 1, 5.0)
    assert set(modes) == {(True, True, False, True)}, "a gradient of the step before was left"
    assert len(modes) > 2


def test_a_row_has_the_bytes_of_the_past():
    def build(case):
        return dataclasses.replace(workload(case, lambda module, x: module(x)), cache=1234)

    rows = time_in_turn([(Contender(name="keeps", build=build), case(step="decoding"))], 1, 5.0)
    assert [row.cache for row in (*rows, *rows_of("right"))] == [1234, None]


def test_nobody_takes_no_time():
    assert time_in_turn([], 3, 5.0) == []

"""Steps that several processes compute together, and what is told of one that fails."""

import pytest
from small_suites import MEGABYTE, SmallSuite, case

from runner.processes import _Group, time_ranks
from runner.suite import Case
from suites.context import CAUSAL, MEANS, WINDOW, ContextSuite

K, SIZES = 64, {"width": 128, "heads": 4, "layers": 2, "feedforward": 48}
BYTES = 4


def rows_of(suite, names, cases):
    contenders = {each.name: each for each in suite.contenders()}
    pairs = [(contenders[name], each) for name in names for each in cases]
    return {(row.contender, row.case.ranks): row for row in time_ranks(suite, pairs, 2, 60.0, 1)}


@pytest.fixture(scope="module")
def rows():
    cases = [Case(step="training", length=2048, k=K, batch=1, ranks=ranks, **SIZES) for ranks in (1, 2)]
    return rows_of(ContextSuite(), [MEANS, CAUSAL], cases)


def test_each_has_a_time_and_less_memory_where_it_is_shared(rows):
    assert len(rows) == 4
    for row in rows.values():
        assert (row.error, row.repeats) == (None, 2)
        assert 0 < row.spread[0] <= row.seconds <= row.spread[1]
    assert MEGABYTE < rows[MEANS, 2].memory < 0.8 * rows[MEANS, 1].memory


def test_bytes_are_those_of_the_formula_forward_and_back(rows):
    width, layers = SIZES["width"], SIZES["layers"]
    neighbor = WINDOW * width  # keys and values of half a window: two processes have one neighbor each
    assert rows[MEANS, 2].sent == 2 * layers * (2 * K * width + neighbor) * BYTES
    for name in (MEANS, CAUSAL):
        assert (rows[name, 1].sent, rows[name, 1].messages) == (0, 0)
        assert rows[name, 2].messages >= 2 * layers


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("raising", "ValueError: no such thing"),
        ("one raises", "ValueError: only I"),
        ("killed", "out of memory"),
        ("refusing", "NotImplementedError: not for length 7"),
    ],
)
def test_what_went_wrong_is_told_and_nobody_waits(name, error):
    (row,) = rows_of(SmallSuite(name), [name], [case(ranks=2)]).values()
    assert (row.error, row.seconds) == (error, None)


def test_a_process_that_dies_between_its_turns_is_told(tmp_path):
    group = _Group(SmallSuite("right"), "right", case(ranks=2), 1, tmp_path / "store")
    group.prepare()
    group.processes[0].kill()
    group.processes[0].join()
    group.time_a_round(60.0)
    assert group.row().error == "out of memory"
    group.end()
    assert not any(process.is_alive() for process in group.processes)

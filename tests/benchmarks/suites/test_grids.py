"""Which cases a grid makes, and where ordinary attention ends."""

from dataclasses import replace

import pytest

from runner.suite import Case, Grid
from suites import SUITES
from suites.grids import CAUSAL_LIMIT, EAGER_LIMIT, SDPA_LIMIT, beyond_full_attention, grid_cases

CASE = Case(step="forward", length=512, k=0, batch=1, width=24, heads=3)


def test_each_length_has_a_case_without_slots_and_one_for_each_k_that_fits():
    grid = Grid(batches=[3], device="cuda", dtype="bfloat16")
    cases = list(grid_cases(grid, [64, 16], [32, 8], step="forward", width=24, heads=3))
    assert [(case.length, case.k) for case in cases] == [(16, 0), (16, 8), (64, 0), (64, 8), (64, 32)]
    assert {(case.batch, case.device, case.dtype, case.width) for case in cases} == {(3, "cuda", "bfloat16", 24)}


def test_batches_multiply_the_cases():
    cases = list(grid_cases(Grid(batches=[16, 1]), [8, 4], [4], step="forward", width=24, heads=3))
    assert [(c.length, c.batch, c.k) for c in cases] == [(n, b, k) for n in (4, 8) for b in (1, 16) for k in (0, 4)]


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_takes_the_users_grid(name):
    cases = SUITES[name].cases(Grid(lengths=[640, 1280], ks=[32, 64], batches=[2]))
    attended = [case for case in cases if case.heads]
    assert {case.length for case in attended} == {640, 1280}
    assert {case.k for case in attended} - {0} == {32, 64}
    assert {case.batch for case in attended} == {2}


@pytest.mark.parametrize("name", SUITES)
@pytest.mark.parametrize("quick", [False, True])
def test_cheap_cases_come_first_and_none_comes_twice(name, quick):
    cases = SUITES[name].cases(Grid(quick=quick))
    lengths = [case.length for case in cases if case.heads]
    assert lengths == sorted(lengths)
    assert len(cases) == len(set(cases))


@pytest.mark.parametrize("name", SUITES)
def test_quick_is_a_smaller_grid(name):
    quick, whole = (SUITES[name].cases(Grid(quick=quick)) for quick in (True, False))
    assert sum(case.length for case in quick) < sum(case.length for case in whole) / 3


@pytest.mark.parametrize("name", SUITES)
def test_a_grid_without_a_case_is_refused(name):
    with pytest.raises(ValueError, match=r"no length of \[64\] is long enough for a K of \[512\]"):
        SUITES[name].cases(Grid(lengths=[64], ks=[512]))


@pytest.mark.parametrize("name", SUITES)
def test_names_are_unique_and_everyone_has_a_case(name):
    suite = SUITES[name]
    names = [contender.name for contender in suite.contenders()]
    assert len(names) == len(set(names))
    cases = suite.cases(Grid())
    assert all(any(suite.takes_part(contender, case) for case in cases) for contender in suite.contenders())
    assert all(any(suite.takes_part(contender, case) for contender in suite.contenders()) for case in cases)


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"eager": True}, EAGER_LIMIT), ({"eager": False}, SDPA_LIMIT), ({"eager": False, "causal": True}, CAUSAL_LIMIT)],
)
def test_a_cpu_gives_up_beyond_a_length(options, limit):
    assert beyond_full_attention(replace(CASE, length=limit), **options) is None
    reason = beyond_full_attention(replace(CASE, length=limit + 1), **options)
    assert reason == f"more than {limit:,} tokens take too long on a CPU"


def test_a_cpu_gives_up_where_memory_ends():
    crowded = replace(CASE, length=8192, batch=100_000)
    assert "scores and weights of all pairs need 161 TB" in beyond_full_attention(crowded, eager=True)
    assert beyond_full_attention(crowded, eager=False) is None  # it keeps no scores


def test_a_gpu_finds_out_by_itself():
    assert beyond_full_attention(replace(CASE, length=10**6, device="cuda"), eager=True) is None

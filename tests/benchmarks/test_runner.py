"""A benchmark from its first case to its report: turns, fresh processes, several of them, interruption and resume."""

import dataclasses
import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
import torch
from small_suites import MEGABYTE, SmallSuite, case, workload

from runner.benchmark import run_benchmark
from runner.processes import Peak, _Group, probe, time_ranks
from runner.results import Results, Settings, git_commit, open_results
from runner.suite import Case, Contender, Grid, Measurement
from runner.timing import calls_in_a_round, time_in_turn
from suites.context import CAUSAL, MEANS, WINDOW, ContextSuite
from torch_linformer.measuring import step as measuring

HERE = Path(__file__).parent
PROGRAM = f"""
import sys
sys.path[:0] = {[str(HERE), str(HERE.parents[1] / "benchmarks")]!r}
from pathlib import Path
from small_suites import SmallSuite
from runner.results import Settings
from runner.benchmark import run_benchmark
from runner.suite import Grid

folder = Path(sys.argv[1])
suite = SmallSuite("A", "gate", "raising", log=folder / "log")
try:
    run_benchmark(suite, Settings(grid=Grid(), repeat=2, threads=1), folder / "results")
except KeyboardInterrupt:
    print("interrupted")
"""
WRONG = "ValueError: the output is 1.0e-03 off, relative to the largest; 1e-04 is allowed"


def measure(suite, output, screen, *, resume=False, minutes=None, command="python benchmarks/run.py small", **grid):
    settings = Settings(grid=Grid(**grid), repeat=2, threads=1)
    return run_benchmark(suite, settings, output, resume=resume, minutes=minutes, command=command, screen=screen)


def shown(screen):
    return screen.console.file.getvalue()


def test_a_benchmark_from_its_first_case_to_its_report(tmp_path, screen):
    """One that cannot run by itself is not run beside the others."""
    suite = SmallSuite("checked", "wrong", "raising", "killed", "crashing", "patient")
    output, command = tmp_path / "out", "python benchmarks/run.py 'a b' [b]"
    results = measure(suite, output, screen, command=command)
    errors = {"checked": None, "wrong": WRONG, "raising": "ValueError: no such thing", "killed": "out of memory"}
    errors |= {"crashing": "its process died (SIGABRT)", "patient": None}
    assert {(row.contender, row.case.length): row.error for row in results.rows} == {
        **{(name, length): error for name, error in errors.items() for length in (7, 11)},
        ("patient", 11): "skipped: too long for any patience",
    }
    for row in results.rows:
        assert (row.seconds is None) == (row.spread is None) == (row.repeats == 0) == (row.error is not None)
    lines = shown(screen).splitlines()
    assert "forward, N 7, K 3, B 2: killed out of memory" in lines
    assert any(line.startswith("forward, N 11, K 3, B 2: checked ") and "2 rounds), " in line for line in lines)
    assert {path.name for path in output.iterdir()} == {"results.json", "report.html", "times.png"}
    kept = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert kept["derived"] == {"rows": 12} and kept["command"] == command and kept["settings"]["--threads"] == "1"
    assert {"device", "processor", "cores", "memory", "Python", "torch", "torch-linformer"} <= set(kept["machine"])
    page = (output / "report.html").read_text(encoding="utf-8")
    for part in ("Small things", "Times", "All rows", "Settings", "Machine and versions", "ValueError: no such thing"):
        assert part in page


@pytest.mark.parametrize("together", [False, True])
def test_a_suite_says_which_cases_take_turns(tmp_path, screen, together):
    measure(SmallSuite("A", "B", log=tmp_path / "log", together=together), tmp_path / "out", screen)
    calls = [line for line, _ in itertools.groupby((tmp_path / "log").read_text().splitlines())]
    short, long = ["A 7", "B 7"], ["A 11", "B 11"]
    assert calls == (4 * (short + long) if together else 4 * short + 4 * long)  # alone, warm, and two rounds


def test_who_is_compiled_and_what_minutes_allow(tmp_path, screen):
    suite = SmallSuite("right", "right, compiled", "right, CUDA graphs")
    assert {row.contender for row in measure(suite, tmp_path / "eager", screen).rows} == {"right"}
    results = measure(suite, tmp_path / "compiled", screen, compile=True)
    assert {(row.contender, row.error) for row in results.rows} == {("right", None), ("right, compiled", None)}
    assert all((row.first is None) == (row.memory is not None) == (row.contender == "right") for row in results.rows)
    assert measure(SmallSuite("right"), tmp_path / "out", screen, minutes=0).rows == []
    assert "2 rows would not have ended within 0 minutes; --resume measures them" in shown(screen)
    assert len(measure(SmallSuite("right"), tmp_path / "out", screen, resume=True).rows) == 2


@pytest.mark.parametrize(
    ("cases", "grid", "message"),
    [
        ([case()], {"ks": (9,), "lengths": (7, 8)}, r"--k 9: is more than every length \(7, 8\)"),
        ([], {}, r"small: has no case for these --lengths and --k; leave one of them out"),
    ],
)
def test_a_choice_that_leaves_nothing_to_measure(tmp_path, screen, cases, grid, message):
    suite = SmallSuite("right")
    suite.all_cases = cases
    with pytest.raises(ValueError, match=message):
        measure(suite, tmp_path / "out", screen, **grid)
    assert not (tmp_path / "out").exists()


def test_after_an_end_in_the_middle_the_missing_rows_are_measured_and_no_other(tmp_path, screen):
    """Ctrl-C, which reaches all processes, leaves the folder as it was before."""
    file = tmp_path / "results" / "results.json"
    (tmp_path / "gate").touch()
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        try:
            end = time.monotonic() + 120
            while not ((tmp_path / "log").exists() and "gate 11\n" in (tmp_path / "log").read_text()):
                assert process.poll() is None and time.monotonic() < end
                time.sleep(0.01)
            before = file.read_bytes()
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)  # for the gate not to open before
        finally:
            (tmp_path / "gate").unlink()  # whatever was left behind goes on and ends
        output, error = process.communicate(timeout=60)
    assert output.endswith("\ninterrupted\n") and error == "" and file.read_bytes() == before
    rows = json.loads(before)["rows"]
    assert len(rows) == 4
    calls = Counter((tmp_path / "log").read_text().splitlines())
    suite = SmallSuite("A", "gate", "raising", log=tmp_path / "log")
    with pytest.raises(ValueError, match="add --resume to go on"):
        measure(suite, tmp_path / "results", screen)
    measure(suite, tmp_path / "results", screen, resume=True)
    after = json.loads(file.read_text(encoding="utf-8"))
    assert after["rows"][:4] == rows and len(after["rows"]) == 6
    calls_after = Counter((tmp_path / "log").read_text().splitlines())
    assert calls_after["A 7"] == calls["A 7"] and calls_after["A 11"] > calls["A 11"]


# Rows and their folder

CASES = [case(), case(length=11)]
ORDER = [(each, name) for each in CASES for name in ("a", "b")]
ROWS = [
    Measurement(contender="a", case=CASES[0], seconds=0.1, spread=(0.05, 0.2), repeats=3, memory=7, cache=5),
    Measurement(contender="b", case=CASES[0], error="out of memory"),
    Measurement(contender="a", case=CASES[1], seconds=0.3, spread=(0.3, 0.3), repeats=1),
]


def results(**changed):
    settings = Settings(grid=Grid(lengths=(7, 11)), repeat=3, threads=1).as_options()
    facts = {"suite": "small", "settings": settings, "machine": {"cores": "2"}, "command": "run", "date": "2026-11-21"}
    return Results(**{**facts, **changed})


def test_rows_have_their_order_are_kept_and_gone_on_with_if_asked(tmp_path):
    found = results(derived={"ratio": 2.0})
    for row in reversed(ROWS):
        found.add(row, ORDER)
    assert found.rows == ROWS and found.missing(ORDER) == ORDER[3:]
    (tmp_path / ".DS_Store").touch()
    assert open_results(tmp_path, found, resume=False) is found
    found.save(tmp_path)
    assert open_results(tmp_path, results(command="with --resume", date="later"), resume=True) == found
    with pytest.raises(ValueError, match=r"holds this benchmark already; add --resume to go on, or name another"):
        open_results(tmp_path, results(), resume=False)
    for changed, difference in (
        ({"suite": "other"}, "suite small there, other here"),
        ({"settings": {**results().settings, "--quick": "yes"}}, "--quick no there, yes here"),
        ({"machine": {"cores": "2", "commit": "abc"}}, "commit none there, abc here"),
    ):
        with pytest.raises(ValueError) as error:
            open_results(tmp_path, results(**changed), resume=True)
        assert str(error.value) == f"--output {tmp_path}: holds another benchmark ({difference}); name another folder"


@pytest.mark.parametrize("content", ["", "[]", '{"rows": [{}]}', "null"])
def test_what_is_no_benchmark_is_refused(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=r"results.json: holds no benchmark; name another --output"):
        open_results(tmp_path, results(), resume=True)
    (tmp_path / "results.json").rename(tmp_path / "thesis.tex")
    with pytest.raises(ValueError, match=r"is not empty and holds no benchmark; name another folder"):
        open_results(tmp_path, results(), resume=True)


def test_the_commit_is_told_of_a_file_that_the_checkout_tracks(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        return subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)

    file = tmp_path / "tracked.py"
    file.write_text("")
    assert git_commit(str(file)) is None
    git("init", "--quiet")
    git("add", "tracked.py")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD").stdout[:12]
    assert git_commit(str(file)) == commit and git_commit(str(tmp_path / "installed.py")) is None
    file.write_text("changed")
    assert git_commit(str(file)) == f"{commit}-dirty"


# Turns


def rows_of(*names, repeat=2, budget=5.0, of=None, log=None):
    contenders = {each.name: each for each in SmallSuite(*names, log=log).contenders()}
    return time_in_turn([(contenders[name], of or case()) for name in names], repeat, budget)


@pytest.mark.parametrize("step", ["forward", "training"])
def test_contenders_take_turns_after_all_are_warm(tmp_path, step):
    log = tmp_path / "log"
    rows = rows_of("A", "B", "C", repeat=3, of=case(step=step), log=log)
    calls = [line.split()[0] for line in log.read_text().splitlines()]
    assert "".join(name for name, _ in itertools.groupby(calls)) == "ABC" * 4  # one turn to warm up
    assert [(row.contender, row.repeats, row.error) for row in rows] == [(name, 3, None) for name in "ABC"]
    assert all(0 < row.spread[0] <= row.seconds <= row.spread[1] for row in rows)
    (slow,) = rows_of("A", repeat=5, budget=0.0, log="/dev/null")
    assert slow.repeats == 1 and slow.spread == (slow.seconds, slow.seconds)


def test_one_that_fails_has_no_time_and_the_others_have_theirs():
    errors = {
        "NaN": "ValueError: the output is not finite",
        "shape": "ValueError: the output's shape is (2, 6, 6), expected (2, 7, 6)",
        "wrong": WRONG,
        "raising": "ValueError: no such thing",
        "refusing": "NotImplementedError: not for length 7",
    }
    first, *failed, last = rows_of("right", *errors, "checked")
    assert {row.contender: row.error for row in failed} == errors and first.repeats == last.repeats == 2
    assert {(row.seconds, row.spread, row.repeats) for row in failed} == {(None, None, 0)}
    (row,) = rows_of("detached", of=case(step="training"))
    assert row.error == "ValueError: the input's gradient is missing"
    calls = itertools.count()

    def fail_late(module, x):
        if next(calls) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB")
        return module(x)

    late = Contender(name="late", build=lambda case: workload(case, fail_late))
    (failed, other) = time_in_turn([(late, case()), (*SmallSuite("right").contenders(), case())], 3, 5.0)
    assert (failed.error, failed.seconds, other.repeats) == ("out of memory", None, 3)


def test_steps_run_in_the_mode_of_the_case_and_tell_the_bytes_of_the_past():
    modes = set()

    def noting(module, x):
        modes.add((module.training, torch.is_grad_enabled(), torch.is_inference_mode_enabled(), x.grad is None))
        return module(x)

    build = lambda case: dataclasses.replace(workload(case, noting), cache=1234)  # noqa: E731
    for step, mode in (
        ("forward", (False, False, True, True)),
        ("decoding", (False, False, True, True)),
        ("training", (True, True, False, True)),
    ):
        modes.clear()
        (row,) = time_in_turn([(Contender(name="noting", build=build), case(step=step))], 1, 5.0)
        assert modes == {mode} and row.cache == 1234


@pytest.mark.parametrize(
    ("seconds", "at_least", "calls"),
    [([0.001], 0.05, 55), ([2.0, 0.001], 0.05, 55), ([0.2], 0.05, 1), ([0.0] * 1112 + [1.0], 0.5, 10_000)],
)
def test_a_round_is_long_enough_however_slow_the_first_calls_were(monkeypatch, seconds, at_least, calls):
    """No clock runs: steps tell what they take."""
    clock, done = [0.0], itertools.count()
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])

    def step():
        clock[0] += seconds[min(next(done), len(seconds) - 1)]

    found, mean = calls_in_a_round(step, "cpu", at_least)
    assert found * mean >= at_least and calls <= found <= calls + 1


# Fresh processes


@pytest.mark.parametrize(
    ("name", "megabytes"), [("200 MB", 200), ("200 MB after much", 200), ("right", 0), ("interrupted", 0)]
)
def test_the_peak_of_a_step(name, megabytes):
    peak = probe(SmallSuite(name), name, case(), threads=1)  # Ctrl-C is left to the process that waits
    assert peak.error is None
    assert peak.memory == pytest.approx(megabytes * MEGABYTE, rel=0.1, abs=MEGABYTE)


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("eating", "out of memory"),
        ("killed", "out of memory"),
        ("crashing", "its process died (SIGABRT)"),
        ("raising", "ValueError: no such thing"),
    ],
)
def test_what_went_wrong_is_told(name, error):
    assert probe(SmallSuite(name), name, case(), threads=1) == Peak(error=error)


def rank_rows(suite, names, cases):
    contenders = {each.name: each for each in suite.contenders()}
    pairs = [(contenders[name], each) for name in names for each in cases]
    return {(row.contender, row.case.ranks): row for row in time_ranks(suite, pairs, 2, 60.0, 1)}


def test_a_shared_row_takes_less_memory_and_gives_the_bytes_of_the_formula():
    k, sizes = 64, {"width": 128, "heads": 4, "layers": 2, "feedforward": 48}
    cases = [Case(step="training", length=2048, k=k, batch=1, ranks=ranks, **sizes) for ranks in (1, 2)]
    rows = rank_rows(ContextSuite(), [MEANS, CAUSAL], cases)
    for row in rows.values():
        assert (row.error, row.repeats) == (None, 2) and 0 < row.spread[0] <= row.seconds <= row.spread[1]
    assert MEGABYTE < rows[MEANS, 2].memory < 0.8 * rows[MEANS, 1].memory
    neighbor = WINDOW * 128  # keys and values of half a window: two processes have one neighbor each
    assert rows[MEANS, 2].sent == 2 * 2 * (2 * k * 128 + neighbor) * 4
    for name in (MEANS, CAUSAL):
        assert (rows[name, 1].sent, rows[name, 1].messages) == (0, 0) and rows[name, 2].messages >= 4


@pytest.mark.parametrize(("name", "error"), [("one raises", "ValueError: only I"), ("killed", "out of memory")])
def test_what_went_wrong_with_one_of_several_is_told_and_nobody_waits(name, error):
    (row,) = rank_rows(SmallSuite(name), [name], [case(ranks=2)]).values()
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

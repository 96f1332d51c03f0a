import itertools
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from pathlib import Path

import pytest
from small_suites import SmallSuite, case

from runner.benchmark import run_benchmark
from runner.results import Settings
from runner.suite import Grid
from suites.attention import PEERS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
PROGRAM = f"""
import sys
sys.path[:0] = {[str(HERE), str(ROOT / "benchmarks")]!r}
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


def measure(suite, output, screen, *, resume=False, minutes=None, command="python benchmarks/run.py small", **grid):
    settings = Settings(grid=Grid(**grid), repeat=2, threads=1)
    return run_benchmark(suite, settings, output, resume=resume, minutes=minutes, command=command, screen=screen)


def shown(screen):
    return screen.console.file.getvalue()


def test_a_benchmark_from_its_first_case_to_its_report(tmp_path, screen):
    """One that cannot run by itself is not run beside the others."""
    suite = SmallSuite("checked", "wrong", "raising", "killed", "crashing", "patient")
    output, command = tmp_path / "out", "python benchmarks/run.py 'a b' <&>"
    results = measure(suite, output, screen, command=command)
    wrong = "ValueError: the output is 1.0e-03 off, relative to the largest; 1e-04 is allowed"
    errors = {"checked": None, "wrong": wrong, "raising": "ValueError: no such thing", "killed": "out of memory"}
    errors |= {"crashing": "its process died (SIGABRT)", "patient": None}
    assert {(row.contender, row.case.length): row.error for row in results.rows} == {
        **{(name, length): error for name, error in errors.items() for length in (7, 11)},
        ("patient", 11): "skipped: too long for any patience",
    }
    for row in results.rows:
        assert (row.seconds is None) == (row.spread is None) == (row.repeats == 0) == (row.error is not None)
        assert (row.memory is None) >= (row.error is not None)
    lines = shown(screen).splitlines()
    assert "forward, N 7, K 3, B 2: killed out of memory" in lines
    assert any(line.startswith("forward, N 11, K 3, B 2: checked ") and "2 rounds), " in line for line in lines)
    assert lines[-1] == f"results.json, results.md and report.html are in {output}"

    assert {path.name for path in output.iterdir()} == {"results.json", "results.md", "report.html", "times.png"}
    assert (output / "times.png").read_bytes() == b"\x89PNG"
    kept = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert kept["derived"] == {"rows": 12} and kept["command"] == command
    assert kept["settings"]["--threads"] == "1" and kept["machine"]["threads"] == "1"
    assert {"device", "processor", "cores", "memory", "Python", "torch", "torch-linformer"} <= set(kept["machine"])
    text = (output / "results.md").read_text(encoding="utf-8")
    assert "- rows: **12** (all | of them)" in text and "\n![times](times.png)\n" in text
    assert f"\n```sh\n{command}\n```\n" in text
    page = (output / "report.html").read_text(encoding="utf-8")
    for part in ("Small things", "Times", "All rows", "Settings", "Machine and versions", "ValueError: no such thing"):
        assert part in text and part in page, part


def test_cases_that_differ_in_k_are_measured_in_turn_and_one_without_slots_once(tmp_path, screen):
    cases = [case(k=2), case(k=3), case(k=0)]
    results = measure(SmallSuite("right", "slotless", cases=cases), tmp_path, screen)
    assert [(row.contender, row.case.k) for row in results.rows] == [("right", 2), ("right", 3), ("slotless", 0)]
    lines = [line for line in shown(screen).splitlines() if "round" in line]
    assert len(lines) == 3 and lines[2].startswith("forward, N 7, B 2: slotless")


@pytest.mark.parametrize("together", [False, True])
def test_a_suite_says_which_cases_take_turns(tmp_path, screen, together):
    measure(SmallSuite("A", "B", log=tmp_path / "log", together=together), tmp_path / "out", screen)
    calls = [line for line, _ in itertools.groupby((tmp_path / "log").read_text().splitlines())]
    short, long = ["A 7", "B 7"], ["A 11", "B 11"]
    # Each by itself, to warm up, and two rounds.
    assert calls == (4 * (short + long) if together else 4 * short + 4 * long)


def test_a_group_comes_where_its_dearest_case_stands(tmp_path, screen):
    cases = [case(), case(step="training", length=9), case(length=11)]
    results = measure(SmallSuite("right", cases=cases, together=True), tmp_path, screen)
    measured = [line.partition(",")[0] for line in shown(screen).splitlines() if "round" in line]
    assert measured == ["training", "forward", "forward"]
    assert [row.case for row in results.rows] == cases


def test_who_is_compiled_takes_part_where_that_is_asked_for_and_cuda_graphs_only_on_a_gpu(tmp_path, screen):
    suite = SmallSuite("right", "right, compiled", "right, CUDA graphs")
    results = measure(suite, tmp_path / "eager", screen)
    assert {row.contender for row in results.rows} == {"right"}
    results = measure(suite, tmp_path / "compiled", screen, compile=True)
    assert {row.contender for row in results.rows} == {"right", "right, compiled"}
    assert "2 of the rows are compiled first" in shown(screen) and ", compiled in " in shown(screen)
    for row in results.rows:
        assert row.error is None
        compiled = row.contender != "right"
        assert (row.first is not None, row.memory is None) == (compiled, compiled)


def test_after_so_many_minutes_no_rows_are_begun_and_resume_measures_them(tmp_path, screen):
    suite = SmallSuite("right")
    results = measure(suite, tmp_path / "out", screen, minutes=0)
    assert results.rows == [] and (tmp_path / "out" / "report.html").exists()
    assert "2 rows would not have ended within 0 minutes; --resume measures them" in shown(screen)
    results = measure(suite, tmp_path / "out", screen, resume=True, minutes=60)
    assert len(results.rows) == 2 and shown(screen).count("would not have ended") == 1


def test_several_batches_are_refused_where_tables_have_one(tmp_path, screen):
    with pytest.raises(ValueError, match="--batch 1,16: small takes one number of rows; name one"):
        measure(SmallSuite("right"), tmp_path / "out", screen, batches=(1, 16))


def wait_for(is_there, process, seconds=60):
    end = time.monotonic() + seconds
    while not is_there():
        assert process.poll() is None and time.monotonic() < end, "it has ended, or does not do what was waited for"
        time.sleep(0.01)


def test_after_an_end_in_the_middle_the_missing_rows_are_measured_and_no_other(tmp_path, screen):
    """Of Ctrl-C, which reaches all processes, only one is told; kill -9 leaves the folder as it was before."""
    file = tmp_path / "results" / "results.json"
    (tmp_path / "gate").touch()
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:
        try:
            wait_for(lambda: (tmp_path / "log").exists() and "gate 11\n" in (tmp_path / "log").read_text(), process)
            before = file.read_bytes()
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=60)  # for the gate not to open before
        finally:
            (tmp_path / "gate").unlink()  # whatever was left behind goes on and ends
        output, error = process.communicate(timeout=60)
    assert output.endswith("\ninterrupted\n") and error == "" and file.read_bytes() == before
    rows = json.loads(before)["rows"]
    there = [("raising", 7), ("A", 7), ("gate", 7), ("raising", 11)]
    assert [(row["contender"], row["case"]["length"]) for row in rows] == there
    calls = Counter((tmp_path / "log").read_text().splitlines())
    suite = SmallSuite("A", "gate", "raising", log=tmp_path / "log")
    output = tmp_path / "results"
    with pytest.raises(ValueError, match="add --resume to go on"):
        measure(suite, output, screen)
    results = measure(suite, output, screen, resume=True)
    assert "6 rows, 4 of them are there" in shown(screen)
    after = json.loads((output / "results.json").read_text(encoding="utf-8"))
    assert after["rows"][:4] == rows and len(after["rows"]) == len(results.rows) == 6
    calls_after = Counter((tmp_path / "log").read_text().splitlines())
    assert calls_after["A 7"] == calls["A 7"] and calls_after["A 11"] > calls["A 11"]
    assert (output / "report.html").exists()
    measure(suite, output, screen, resume=True)  # of a finished one
    assert Counter((tmp_path / "log").read_text().splitlines()) == calls_after


@pytest.mark.parametrize(
    ("cases", "grid", "message"),
    [
        ([case()], {"ks": (2, 8)}, r"--k 8: is more than every length \(7\); take a smaller K or longer --lengths"),
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


def test_the_packages_compared_with_are_in_the_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(PEERS) <= {line.partition(">")[0] for line in project["optional-dependencies"]["bench"]}

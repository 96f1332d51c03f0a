import dataclasses
import json
import shutil
import subprocess

import pytest
from small_suites import case

from runner.results import Results, Settings, git_commit, open_results
from runner.suite import Grid, Measurement

CASES = [case(), case(length=11)]
ORDER = [(each, name) for each in CASES for name in ("a", "b")]
ROWS = [
    Measurement(contender="a", case=CASES[0], seconds=0.1, spread=(0.05, 0.2), repeats=3, memory=7, cache=5),
    Measurement(contender="b", case=CASES[0], error="out of memory"),
    Measurement(contender="a", case=CASES[1], seconds=0.3, spread=(0.3, 0.3), repeats=1),
]


def settings(**changed):
    return Settings(grid=Grid(lengths=(7, 11), **changed), repeat=3, threads=1)


def results(**changed):
    facts = {"suite": "small", "settings": settings().as_options(), "machine": {"cores": "2"}}
    return Results(**{**facts, "command": "python benchmarks/run.py small", "date": "2026-11-21", **changed})


def test_settings_are_told_as_options():
    assert settings(quick=True).as_options() == {
        "--batch": "",
        "--compile": "no",
        "--device": "cpu",
        "--dtype": "float32",
        "--k": "",
        "--lengths": "7,11",
        "--quick": "yes",
        "--repeat": "3",
        "--threads": "1",
    }


def test_what_is_saved_is_loaded_again(tmp_path):
    saved = results(rows=ROWS, derived={"ratio": 2.0})
    saved.save(tmp_path)
    assert Results.load(tmp_path / "results.json") == saved
    file = json.loads((tmp_path / "results.json").read_text())
    assert file["rows"][0]["case"]["length"] == 7 and file["rows"][1]["error"] == "out of memory"


def test_rows_are_in_the_order_of_the_cases_and_the_rest_is_missing():
    found = results()
    for row in reversed(ROWS):
        found.add(row, ORDER)
    assert found.rows == ROWS
    assert found.missing(ORDER) == ORDER[3:]


def test_a_folder_that_is_new_or_empty_or_holds_hidden_files_is_taken(tmp_path):
    (tmp_path / ".DS_Store").touch()
    for folder in (tmp_path, tmp_path / "new"):
        for resume in (False, True):
            wanted = results()
            assert open_results(folder, wanted, resume) is wanted


def test_a_folder_with_other_things_is_refused(tmp_path):
    (tmp_path / "thesis.tex").touch()
    for folder in (tmp_path, tmp_path / "thesis.tex"):
        with pytest.raises(ValueError, match=r"is not empty and holds no benchmark; name another folder"):
            open_results(folder, results(), resume=True)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"rows": [{}]}', '{"rows": 3}', "null"])
def test_a_file_of_something_else_is_refused(tmp_path, content):
    (tmp_path / "results.json").write_text(content)
    with pytest.raises(ValueError, match=r"results.json: holds no benchmark; name another --output"):
        open_results(tmp_path, results(), resume=True)


def test_the_same_benchmark_is_gone_on_with_if_asked(tmp_path):
    results(rows=ROWS).save(tmp_path)
    assert open_results(tmp_path, results(command="with --resume", date="later"), resume=True) == results(rows=ROWS)
    with pytest.raises(ValueError, match=r"holds this benchmark already; add --resume to go on, or name another"):
        open_results(tmp_path, results(), resume=False)


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        ({"suite": "other"}, "suite small there, other here"),
        ({"settings": settings(quick=True).as_options()}, "--quick no there, yes here"),
        ({"machine": {"cores": "4"}}, "cores 2 there, 4 here"),
        ({"machine": {"cores": "2", "commit": "abc"}}, "commit none there, abc here"),
    ],
)
def test_another_benchmark_is_not_mixed_in(tmp_path, changed, difference, resume):
    results(rows=ROWS).save(tmp_path)
    with pytest.raises(ValueError) as error:
        open_results(tmp_path, dataclasses.replace(results(), **changed), resume)
    assert str(error.value) == f"--output {tmp_path}: holds another benchmark ({difference}); name another folder"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_the_commit_is_told_of_a_file_that_the_checkout_tracks(tmp_path):
    def git(*arguments):
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
        done = subprocess.run(["git", *identity, *arguments], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    tracked, untracked = tmp_path / "tracked.py", tmp_path / "installed.py"
    for path in (tracked, untracked):
        path.write_text("")
    assert git_commit(str(tracked)) is None
    git("init", "--quiet")
    git("add", "tracked.py")
    git("commit", "--quiet", "--message", "one")
    commit = git("rev-parse", "HEAD")[:12]
    assert git_commit(str(tracked)) == commit
    assert git_commit(str(untracked)) is None
    tracked.write_text("changed")
    assert git_commit(str(tracked)) == f"{commit}-dirty"

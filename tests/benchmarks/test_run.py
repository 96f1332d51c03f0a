"""The door of the benchmarks: a real suite from the command line to its files, and what it answers to bad input."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from run import bench

SMALL = ["--lengths", "64", "--k", "16", "--repeat", "1", "--quick", "--device", "cpu", "--threads", "1"]


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = Path(__file__).parents[2] / "benchmarks" / "run.py"


@pytest.fixture
def start(workplace):
    """A function: start a suite in a process of its own."""

    def call(*arguments):
        command = [sys.executable, *arguments]
        pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
        return subprocess.Popen(command, cwd=workplace, text=True, **pipes)

    return call


@pytest.fixture
def refused(capfd, workplace, monkeypatch):
    """A function: run a suite, which must end with status 2 and leave nothing; returns the last line it says."""

    def call(*arguments):
        files = sorted(workplace.rglob("*"))
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", [str(RUN), *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            typer.run(bench)
        error = capfd.readouterr().err
        assert exit_.value.code == 2, error
        assert sorted(workplace.rglob("*")) == files, "left something behind"
        return error.removesuffix("\n").removeprefix("benchmarks: ")

    return call


NUMBER = "is no positive whole number; write"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("speed", "SUITE must be one of attention, encoder, table3, scaling, causal, context, gpu, got 'speed'"),
        ("attention --lengths=512,many", f"--lengths 512,many: 'many' {NUMBER} --lengths 512,1024"),
        ("attention --k=512,,64", f"--k 512,,64: '' {NUMBER} --k 512,1024"),
        ("attention --batch=-1", f"--batch -1: '-1' {NUMBER} --batch 1,16"),
        ("scaling --batch=1,16", "--batch 1,16: scaling takes one number of rows; name one"),
        ("attention --lengths=64,128 --k=512 --device=cpu", "512"),
        ("attention --dtype=int8", "--dtype must be one of float32, bfloat16, float16, got 'int8'"),
        ("attention --device=tpu", "--device tpu: this machine has no such device; it has: "),
        ("attention --only=nobody", "--only nobody: no contender's name begins so; there are matrix product "),
        ("attention --repeat=0", "Invalid value for '--repeat'"),
        ("attention --threads=many", "Invalid value for '--threads'"),
        ("", "Missing argument"),
    ],
)
def test_bad_input(refused, arguments, message):
    assert message in refused(*arguments.split())


def test_no_compiler(refused, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = "--compile: torch.compile needs a C++ compiler on a CPU, and there is no no-such-compiler; "
    assert refused("attention", *SMALL, "--compile") == f"{message}install it or set CXX"


def test_only_some_take_part(monkeypatch, workplace):
    arguments = ["encoder", *SMALL, "--only", "BERT made linear;BERT without"]
    monkeypatch.setattr(sys, "argv", [str(RUN), *arguments])
    with pytest.raises(SystemExit, match="0"):
        typer.run(bench)
    rows = json.loads((workplace / "runs" / "bench-encoder" / "results.json").read_text(encoding="utf-8"))["rows"]
    found = {(row["contender"].partition(" (")[0], row["case"]["step"], row["error"]) for row in rows}
    names = ("BERT without attention", "BERT made linear")
    assert found == {(name, step, None) for name in names for step in ("forward", "training")} and len(rows) == 4


def test_a_benchmark_that_is_interrupted_and_goes_on_and_what_its_folder_answers(start, refused, workplace):
    arguments = ["scaling", *SMALL]
    process = start(str(RUN), *arguments)
    for line in process.stdout:
        if " rows" in line:  # it has begun
            break
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    command = f"python {RUN} {' '.join(arguments)}"
    assert error == f"stopped; to go on:  {command} --resume\n"
    folder = workplace / "runs" / "bench-scaling"

    process = start(*shlex.split(error.partition(": ")[2])[1:])
    shown, error = process.communicate(timeout=600)
    assert (process.returncode, error) == (0, "")
    assert shown.endswith("results.json and report.html are in runs/bench-scaling\n")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["command"] == command
    assert [row["case"]["step"] for row in results["rows"]] == ["forward", "forward", "training"]
    assert all(row["error"] is None and row["seconds"] > 0 and row["repeats"] == 1 for row in results["rows"])
    assert (folder / "report.html").exists()

    there = "--output runs/bench-scaling: holds "
    again = refused(*arguments)
    assert again == f"{there}this benchmark already; add --resume to go on, or name another folder"
    other = refused(*arguments, "--batch=2", "--resume")
    assert other == f"{there}another benchmark (--batch the suite's there, 2 here); name another folder"

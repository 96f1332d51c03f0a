"""The door of the benchmarks: a real suite from the command line to its files, and what it answers to bad input."""

import json
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
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


def test_an_unknown_suite_names_those_there_are(refused):
    assert (
        refused("speed")
        == "SUITE must be one of attention, encoder, table3, scaling, causal, context, gpu, got 'speed'"
    )
    assert "Missing argument" in refused() and "SUITE" in refused()


@pytest.mark.parametrize("option", ["--lengths", "--k"])
@pytest.mark.parametrize(
    ("text", "part"), [("512,many", "many"), ("0", "0"), ("-512", "-512"), ("512,,64", ""), ("1.5", "1.5")]
)
def test_what_is_no_length(refused, option, text, part):
    message = f"{option} {text}: {part!r} is no positive whole number; write {option} 512,1024"
    assert refused("attention", f"{option}={text}") == message


@pytest.mark.parametrize("option", ["--repeat", "--threads"])
@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_what_is_no_number(refused, option, value):
    assert f"Invalid value for '{option}'" in refused("attention", f"{option}={value}")


@pytest.mark.parametrize("value", ["0", "-1", "many"])
def test_what_is_no_batch(refused, value):
    message = f"--batch {value}: {value!r} is no positive whole number; write --batch 1,16"
    assert refused("attention", f"--batch={value}") == message


def test_several_batches_where_the_tables_have_one(refused):
    assert refused("scaling", "--batch=1,16") == "--batch 1,16: scaling takes one number of rows; name one"


def test_no_compiler(refused, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    message = "--compile: torch.compile needs a C++ compiler on a CPU, and there is no no-such-compiler; "
    assert refused("attention", *SMALL, "--compile") == f"{message}install it or set CXX"


def test_a_k_above_every_length(refused):
    assert "512" in refused("attention", "--lengths=64,128", "--k=512", "--device=cpu")


def test_an_unknown_dtype(refused):
    assert refused("attention", "--dtype=int8") == "--dtype must be one of float32, bfloat16, float16, got 'int8'"


@pytest.mark.parametrize("device", ["mps", "tpu", *([] if torch.cuda.is_available() else ["cuda"])])
def test_a_device_that_is_not_there(refused, device):
    message = refused("attention", f"--device={device}")
    assert message.startswith(f"--device {device}: this machine has no such device; it has: ")
    assert message.endswith("cpu") and "mps" not in message.partition("it has")[2]


def test_a_folder_of_something_else(refused, workplace):
    (workplace / "out").mkdir()
    (workplace / "out" / "thesis.tex").touch()
    message = "--output out: is not empty and holds no benchmark; name another folder"
    assert refused("attention", *SMALL, "--output=out") == message
    assert refused("attention", *SMALL, "--output=out", "--resume") == message


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
    assert shown.endswith("results.json, results.md and report.html are in runs/bench-scaling\n")
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    assert results["command"] == command
    assert [row["case"]["step"] for row in results["rows"]] == ["forward", "forward", "training"]
    assert all(row["error"] is None and row["seconds"] > 0 and row["repeats"] == 1 for row in results["rows"])
    assert {"report.html", "results.md"} < {path.name for path in folder.iterdir()}

    there = "--output runs/bench-scaling: holds "
    again = refused(*arguments)
    assert again == f"{there}this benchmark already; add --resume to go on, or name another folder"
    other = refused(*arguments, "--batch=2", "--resume")
    assert other == f"{there}another benchmark (--batch the suite's there, 2 here); name another folder"

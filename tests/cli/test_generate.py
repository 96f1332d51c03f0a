import io
import os
import shutil
import signal
import sys

import pytest

from torch_linformer.cli.app import run


@pytest.fixture
def generate(clm_run, capsys):
    """A function: run `linformer generate` on the trained model; returns status, text and standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            run(["generate", str(clm_run.folder), *map(str, arguments), "--device", "cpu"])
        shown, error = capsys.readouterr()
        return exit_.value.code, shown, error

    return call


def test_a_prompt_of_the_command_line_and_of_standard_input(generate, monkeypatch):
    options = ("--max-new-tokens", 12, "--seed", 4)
    expected = generate("--prompt", "wet grey naïve", *options)
    assert expected[0] == 0 and expected[2] == "" and len(expected[1]) > 1 and expected[1].endswith("\n")
    for arguments in ((), ("--prompt", "-")):
        data = "wet grey naïve\n".encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert generate(*arguments, *options) == expected


@pytest.mark.parametrize(
    "options",
    ["--temperature 0", "--temperature 0.7 --top-k 5 --top-p 0.9 --seed 1", "--num-beams 3"],
)
def test_ways_of_choosing(generate, options):
    status, shown, error = generate("--prompt", "", "--max-new-tokens", 6, *options.split())
    assert (status, error) == (0, "") and shown.strip()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--max-new-tokens 0", "--max-new-tokens must be at least 1, got 0"),
        ("--temperature -1", "--temperature must be 0, or a number from 0.001 on, got -1.0"),
        ("--num-beams 2 --top-k 4", "--top-k is for drawing tokens, but --num-beams searches"),
        ("--device tpu", "--device tpu: this machine has no such device; it has: "),
        ("--top-k many", "Invalid value for '--top-k': "),
    ],
)
def test_options_that_cannot_be(clm_run, capfd, arguments, message):
    with pytest.raises(SystemExit) as exit_:
        run(["generate", str(clm_run.folder), "--prompt", "a", *arguments.split()])
    shown, error = capfd.readouterr()
    assert exit_.value.code == 2 and shown == "" and error.count("\n") == 1
    assert error.startswith(f"linformer: {message}")


def test_ctrl_c_ends_it_in_the_middle(run_with_client, clm_run, tmp_path, capsys):
    endless = shutil.copytree(clm_run.folder, tmp_path / "endless")
    (endless / "generation_config.json").write_text("{}")  # no end token
    options = ("--prompt", "the", "--max-new-tokens", "1000000", "--device", "cpu")

    def interrupt(_, reader):
        shown = reader.read(20)  # while it is made
        os.kill(os.getpid(), signal.SIGINT)
        return shown + reader.read()

    status, shown = run_with_client(["generate", str(endless), *options], interrupt)
    assert status == 130 and len(shown) >= 20
    assert capsys.readouterr().err.strip() == "linformer: interrupted"

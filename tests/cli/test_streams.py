"""Commands whose standard input or output is closed, as a shell's <&- and >&- do."""

import json
import shutil
import subprocess
import sys

import pytest

BASH = shutil.which("bash")


@pytest.fixture
def closing(datasets_cache, tmp_path, monkeypatch):
    """A function: run the command with redirections of the shell; returns status, output and error."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(datasets_cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)

    def call(redirections, *arguments):
        script = f'"$@" {redirections}'
        command = [BASH, "-c", script, "bash", sys.executable, "-m", "torch_linformer.cli", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        return done.returncode, done.stdout, done.stderr

    return call


pytestmark = pytest.mark.skipif(BASH is None, reason="needs a shell")


def test_training_needs_neither_input_nor_output(closing, quick, as_arguments, tmp_path):
    arguments = as_arguments({**quick, "max_steps": 1, "output": "run"})
    assert closing("<&- >&-", "train", *arguments) == (0, "", "")
    assert json.loads((tmp_path / "run" / "metrics.json").read_text())["documents"]["test"] == 50


def test_what_a_command_makes_is_not_lost(closing, classifier_run, tmp_path):
    (tmp_path / "a.txt").write_text("a text")
    line = "linformer: standard output is closed: open it, or redirect it into a file\n"
    assert closing(">&-", "predict", classifier_run.folder, "a.txt") == (2, "", line)


def test_a_closed_input_is_an_empty_one(closing, clm_run):
    status, shown, error = closing("<&-", "generate", clm_run.folder, "--max-new-tokens", "3", "--seed", "1")
    assert (status, error) == (0, "") and shown.endswith("\n")


def test_an_error_with_nowhere_to_say_it(closing):
    assert closing("2>&-", "predict", "nowhere", "nothing.txt") == (2, "", "")

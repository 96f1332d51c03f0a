"""Commands whose standard input, output or error is closed, as a shell's <&-, >&- and 2>&- do."""

import json
import shutil
import subprocess
import sys

import pytest

BASH = shutil.which("bash")
SEVERAL = """
import json, sys
from torch_linformer.cli import main
statuses = []
for arguments in json.loads(sys.argv[1]):
    sys.argv[1:] = arguments
    try:
        main()
    except SystemExit as ended:
        statuses.append(ended.code)
with open("statuses.json", "w") as file:
    json.dump(statuses, file)
"""

pytestmark = pytest.mark.skipif(BASH is None, reason="needs a shell")


@pytest.fixture
def closing(datasets_cache, tmp_path, monkeypatch):
    """A function: run commands in a process with redirections of the shell; returns statuses, output and error."""
    monkeypatch.setenv("HF_DATASETS_CACHE", str(datasets_cache))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)

    def call(redirections, *commands):
        several = json.dumps([[str(argument) for argument in command] for command in commands])
        command = [BASH, "-c", f'"$@" {redirections}', "bash", sys.executable, "-c", SEVERAL, several]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        return json.loads((tmp_path / "statuses.json").read_text()), done.stdout, done.stderr

    return call


def test_a_command_needs_neither_input_nor_output_but_what_it_makes_is_not_lost(
    closing, classifier_run, quick, as_arguments, tmp_path
):
    (tmp_path / "a.txt").write_text("a text")
    shutil.copy(quick["data"], tmp_path / "my data.csv")
    options = as_arguments({**quick, "data": "my data.csv", "max_steps": 1})
    predict = ("predict", classifier_run.folder, "a.txt")
    line = "linformer: standard output is closed: open it, or redirect it into a file\n"
    assert closing("<&- >&-", ["train", *options], ["info", "runs/my data"], predict) == ([0, 0, 2], "", line)
    assert json.loads((tmp_path / "runs" / "my data" / "metrics.json").read_text())["documents"]["test"] == 50
    report = (tmp_path / "runs" / "my data" / "report.html").read_text(encoding="utf-8")
    assert "linformer train --data &#x27;my data.csv&#x27; " in report.replace("&#39;", "&#x27;").replace("'", "&#x27;")


def test_a_closed_input_is_an_empty_one_and_an_error_with_nowhere_to_say_it_has_its_status(
    run_apart, clm_run, tmp_path
):
    generate = ["generate", str(clm_run.folder), "--max-new-tokens", "3", "--seed", "1"]
    closed = "os.close(0), os.close(2)\nsys.stdin = sys.stderr = None  # as Python itself begins then\n"
    several = json.dumps([generate, ["info", "nowhere"]])
    ended = run_apart(f"{closed}sys.argv[1:] = [{several!r}]\n{SEVERAL}")
    assert ended.returncode == 0 and ended.stdout.endswith("\n")
    assert json.loads((tmp_path / "apart" / "statuses.json").read_text()) == [0, 2]

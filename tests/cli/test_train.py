import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from inspect import signature
from pathlib import Path

import pytest

from torch_linformer.cli.adapt import adapt
from torch_linformer.cli.app import run
from torch_linformer.cli.grouped_help import GROUPS
from torch_linformer.cli.train import train
from torch_linformer.opening.folder import is_whole


def weights(folder):
    return (Path(folder) / "model.safetensors").read_bytes()


def finish(arguments):
    """Run the command here; it must succeed."""
    with pytest.raises(SystemExit) as exit_:
        run(arguments)
    assert exit_.value.code == 0


def wait_for(found, process, seconds=600):
    """Look again and again until `found()` is true, while the process runs."""
    end = time.monotonic() + seconds
    while not found():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.002)


@pytest.fixture
def start_training(start_command, quick, as_arguments, tmp_path):
    """A function: start `linformer train` and stop it (as Ctrl-Z does) once it has left two checkpoints.

    Returns the process, its arguments and its output folder.
    """

    def start(**options):
        output = tmp_path / "run"
        arguments = ["train", *as_arguments({**quick, **options, "output": output})]
        process = start_command(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        wait_for((output / "checkpoint-8" / "complete.json").exists, process)
        os.kill(process.pid, signal.SIGSTOP)
        assert not (output / "checkpoint-40").exists(), "it was too fast to be stopped in the middle"
        return process, arguments, output

    return start


@pytest.mark.usefixtures("measured_once")
def test_a_second_training_in_the_folder_is_refused_until_kill_9_ends_the_first(start_training, classifier_run, capsys):
    process, arguments, output = start_training()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    for more in ([], ["--resume"]):
        with pytest.raises(SystemExit) as exit_:
            run([*arguments, *more])
        assert exit_.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"linformer: --output {output}: process {process.pid} on ") and said.count("\n") == 1
        assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert not (output / "metrics.json").exists() and not (output / "model.safetensors").exists()
    finish([*arguments, "--resume"])
    assert "going on from " in capsys.readouterr().out
    assert weights(output) == weights(classifier_run.folder)
    assert not list(output.glob("checkpoint-*"))


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize(("signum", "called"), [(2, "Ctrl-C"), (15, "SIGTERM"), (1, "SIGHUP")])
def test_a_signal_leaves_a_checkpoint_and_prints_how_to_go_on(start_training, classifier_run, capsys, signum, called):
    """Ctrl-C; SIGTERM of a cluster that ends a job; SIGHUP of a terminal that was closed."""
    process, arguments, output = start_training()
    process.send_signal(signum)
    process.send_signal(signal.SIGCONT)
    shown, error = process.communicate(timeout=600)
    assert process.returncode == 128 + signum
    assert f"{called}: leaving a checkpoint of the last step" in shown
    assert error == f"stopped; to go on:  linformer {shlex.join(arguments)} --resume\n"
    newest = max(output.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    assert is_whole(newest)
    resumed = shlex.split(error.partition("to go on:")[2])
    finish(resumed[1:])
    assert f"going on from {newest}" in capsys.readouterr().out
    assert weights(output) == weights(classifier_run.folder)


@pytest.mark.parametrize(
    ("signum", "more", "advice"),
    [
        (signal.SIGINT, [], "to go on:  linformer {} --resume"),
        (signal.SIGTERM, ["--check"], "nothing was written"),
    ],
)
def test_a_signal_before_the_training(start_command, datasets_cache, write_csv, tmp_path, signum, more, advice):
    path = write_csv(tmp_path / "many.csv", [("wet mud " * 20, i % 2) for i in range(400_000)])
    arguments = ["train", "--data", path, "--output", str(tmp_path / "run"), *more]
    before = set(datasets_cache.rglob("*"))
    process = start_command(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    wait_for(lambda: set(datasets_cache.rglob("*")) - before, process)  # it reads the documents
    process.send_signal(signum)
    _, error = process.communicate(timeout=600)
    assert process.returncode == 128 + signum
    assert error == f"stopped; {advice.format(shlex.join(arguments))}\n"
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("measured_once")
def test_a_toml_file_gives_options_and_the_command_line_has_the_last_word(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {**quick, "max_steps": 7, "batch_size": 4, "output": "from the file"}
    lines = [f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in options.items() if name != "model"]
    lines.append('[model]\nprojection = "linear"\n')
    Path("run.toml").write_text("".join(lines), encoding="utf-8")
    finish(["train", "--config", "run.toml", "--max-steps", "2", "--output", "here"])
    found = json.loads((tmp_path / "here" / "run.json").read_text())
    expected = {**options, "max_steps": 2, "output": None, "probe": None}  # what the model does not depend on
    assert {name: found[name] for name in expected} == expected
    assert not (tmp_path / "from the file").exists()
    shown = capsys.readouterr().out
    Path("run.toml").write_text("resume = true\n" + "".join(lines), encoding="utf-8")
    finish(["train", "--config", "run.toml", "--max-steps", "2", "--output", "here"])
    assert "it is finished" in capsys.readouterr().out and "it is finished" not in shown


def test_resume_of_a_finished_run_succeeds(model_copy, quick, as_arguments, capsys):
    before = weights(model_copy)
    finish(["train", *as_arguments({**quick, "output": model_copy}), "--resume"])
    assert "it is finished" in capsys.readouterr().out and weights(model_copy) == before


def test_every_option_of_the_settings_is_one_of_the_command(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    finish(["train", "--help"])
    shown = capsys.readouterr().out
    options = "data text-column label-column validation test task from freeze tokenizer max-length k window model size"
    options += " class-weights epochs max-steps minutes batch-size learning-rate seed precision device"
    for name in (*options.split(), "output", "config", "resume", "debug"):
        assert f" --{name} " in shown, name
    assert "(tiny | small | base | large) [tiny]" in " ".join(shown.split())


def test_the_groups_of_the_help_have_every_option_and_no_others():
    options = {*signature(train).parameters, *signature(adapt).parameters} - {"source"}
    assert sorted(" ".join(GROUPS.values()).split()) == sorted(options | {"help"})


@pytest.mark.parametrize("command", [[], ["train"], ["adapt"], ["serve"]])
def test_help_is_whole_on_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    finish([*command, "-h"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "..." not in shown.replace("COMMAND [ARGS]...", "")


def test_a_shell_completes_options():
    words = {"_LINFORMER_COMPLETE": "complete_bash", "COMP_WORDS": "linformer train --freeze", "COMP_CWORD": "2"}
    environment = {**os.environ, **words}
    command = [sys.executable, "-m", "torch_linformer.cli"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["--freeze", "--freeze-layers"], done.stderr


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_command_alone_shows_its_subcommands(arguments, capsys):
    finish(arguments)
    shown = capsys.readouterr().out
    assert all(
        f"\n  {name} " in shown for name in ("train", "evaluate", "predict", "generate", "export", "info", "spectrum")
    )


def test_the_report_holds_the_exact_command(start_command, quick, as_arguments, tmp_path):
    """The whole way of a user, in a process of its own: exit status 0, nothing on standard error."""
    shutil.copy(quick["data"], tmp_path / "my data.csv")
    options = {**quick, "data": "my data.csv", "test": "0.2", "max_steps": 1, "max_length": 8, "k": 2}
    arguments = ["train", *as_arguments(options)]
    process = start_command(*arguments, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shown, error = process.communicate(timeout=600)
    assert (process.returncode, error) == (0, "")
    assert "the model and report.html are in runs/my data\n" in shown
    report = (tmp_path / "runs" / "my data" / "report.html").read_text(encoding="utf-8")
    assert "linformer train --data &#x27;my data.csv&#x27; " in report.replace("&#39;", "&#x27;").replace("'", "&#x27;")

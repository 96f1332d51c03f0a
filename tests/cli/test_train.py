import json
import os
import shlex
import signal
import threading
import time
from pathlib import Path

import pytest

from torch_linformer.cli.app import run
from torch_linformer.opening.run_folder import is_whole
from torch_linformer.training.fitting import STOPPING


def weights(folder):
    return (Path(folder) / "model.safetensors").read_bytes()


def finish(arguments):
    """Run the command here; it must succeed."""
    with pytest.raises(SystemExit) as exit_:
        run(arguments)
    assert exit_.value.code == 0


@pytest.fixture
def start_training(start_apart, datasets_cache, quick, as_arguments, tmp_path):
    """A function: start `linformer train` and stop it (as Ctrl-Z does) once it has left two checkpoints.

    Returns the process, a function that waits for its end, its arguments and its output folder.
    """

    def start():
        output = tmp_path / "run"
        arguments = ["train", *as_arguments({**quick, "output": output})]
        cache = f"os.environ['HF_DATASETS_CACHE'] = {str(datasets_cache)!r}"
        command = f"sys.argv[1:] = {arguments!r}\nfrom torch_linformer.cli import main\nmain()"
        process, outcome = start_apart(f"{cache}\n{command}")
        while not (output / "checkpoint-8" / "complete.json").exists():
            assert process.is_alive(), outcome()
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGSTOP)
        assert not (output / "checkpoint-40").exists(), "it was too fast to be stopped in the middle"
        return process, outcome, arguments, output

    return start


@pytest.mark.usefixtures("no_fresh_process")
def test_a_second_training_in_the_folder_is_refused_until_kill_9_ends_the_first(start_training, classifier_run, capsys):
    process, outcome, arguments, output = start_training()
    before = {path: path.stat().st_mtime_ns for path in output.rglob("*")}
    for more in ([], ["--resume"]):
        with pytest.raises(SystemExit) as exit_:
            run([*arguments, *more])
        assert exit_.value.code == 2
        said = capsys.readouterr().err
        assert said.startswith(f"linformer: --output {output}: process {process.pid} on ") and said.count("\n") == 1
        assert {path: path.stat().st_mtime_ns for path in output.rglob("*")} == before
    process.kill()
    assert outcome().returncode == -signal.SIGKILL
    assert not (output / "metrics.json").exists() and not (output / "model.safetensors").exists()
    finish([*arguments, "--resume"])
    assert "going on from " in capsys.readouterr().out
    assert weights(output) == weights(classifier_run.folder)
    assert not list(output.glob("checkpoint-*"))


def check_checkpoint(error, arguments, output, whole, capsys):
    """What a signal left: how to go on, and a checkpoint with which the run ends as the whole one."""
    assert error == f"stopped; to go on:  linformer {shlex.join(arguments)} --resume\n"
    newest = max(output.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]))
    assert is_whole(newest)
    finish([*arguments, "--resume"])
    assert f"going on from {newest}" in capsys.readouterr().out
    assert weights(output) == weights(whole.folder)


@pytest.mark.usefixtures("no_fresh_process")
def test_ctrl_c_leaves_a_checkpoint_and_prints_how_to_go_on(start_training, classifier_run, capsys):
    process, outcome, arguments, output = start_training()
    os.kill(process.pid, signal.SIGINT)
    os.kill(process.pid, signal.SIGCONT)
    ended = outcome()
    assert ended.returncode == 128 + signal.SIGINT
    assert "Ctrl-C: leaving a checkpoint after this step" in ended.stdout
    check_checkpoint(ended.stderr, arguments, output, classifier_run, capsys)


@pytest.fixture
def interrupted(capsys, monkeypatch):
    """A function: run the command here, send this process a signal when something has come; returns what it printed."""

    def call(arguments, signum, has_come):
        monkeypatch.setattr("sys.argv", ["linformer", *arguments])
        former = signal.getsignal(signum)
        if signum != signal.SIGINT:
            signal.signal(signum, lambda *_: None)  # one that comes too late does no harm
        over = threading.Event()

        def send():
            while not over.wait(0.002):
                if has_come():
                    os.kill(os.getpid(), signum)
                    return

        sender = threading.Thread(target=send)
        sender.start()
        try:
            with pytest.raises(SystemExit) as exit_:
                run(arguments)
        finally:
            over.set()
            sender.join()
            signal.signal(signum, former)
        assert exit_.value.code == 128 + signum
        return capsys.readouterr()

    return call


@pytest.mark.usefixtures("no_fresh_process")
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_do_the_same(interrupted, quick, as_arguments, classifier_run, tmp_path, capsys, signum):
    """SIGTERM of a cluster that ends a job; SIGHUP of a terminal that was closed."""
    output = tmp_path / "run"
    arguments = ["train", *as_arguments({**quick, "output": output})]
    shown, error = interrupted(arguments, signum, (output / "checkpoint-8" / "complete.json").exists)
    assert f"{signum.name}: leaving a checkpoint after this step" in shown
    check_checkpoint(error, arguments, output, classifier_run, capsys)


@pytest.mark.usefixtures("no_fresh_process")
def test_a_signal_before_the_training_prints_it_as_well(interrupted, datasets_cache, write_csv, tmp_path):
    path = write_csv(tmp_path / "many.csv", [("wet mud " * 20, i % 2) for i in range(100_000)])
    arguments = ["train", "--data", path, "--max-steps", "1", "--output", str(tmp_path / "run")]

    def written():
        return set(datasets_cache.rglob("*.incomplete*"))

    for signum in STOPPING:
        before = written()
        _, error = interrupted(arguments, signum, lambda before=before: written() - before)
        assert error == f"stopped; to go on:  linformer {shlex.join(arguments)} --resume\n"
        assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("no_fresh_process")
def test_a_toml_file_gives_options_and_the_command_line_has_the_last_word(quick, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = {**quick, "max_steps": 7, "batch_size": 4, "output": "from the file"}
    lines = [f"{name.replace('_', '-')} = {json.dumps(value)}\n" for name, value in options.items()]
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
    options = "data text-column label-column validation test task tokenizer max-length k sharing projection attention"
    options += " embeddings size class-weights epochs max-steps minutes batch-size learning-rate seed precision device"
    options += " output window slot-mass exact-first exact-last"
    for name in (*options.split(), "output", "config", "resume", "debug"):
        assert f" --{name} " in shown, name
    assert "(tiny | small | base | large)  [tiny]" in shown
    assert "\nOptions:" not in shown  # each is in a group of cli/grouped_help.py


@pytest.mark.parametrize("command", [[], ["train"], ["adapt"], ["serve"]])
def test_help_is_whole_on_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    finish([*command, "-h"])
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    assert "..." not in shown.replace("COMMAND [ARGS]...", "")


def test_a_shell_completes_options(capsys, monkeypatch):
    for name, words in {"LINFORMER_COMPLETE": "complete_bash", "COMP_WORDS": "linformer train --freeze"}.items():
        monkeypatch.setenv(f"_{name}" if name.startswith("LIN") else name, words)
    monkeypatch.setenv("COMP_CWORD", "2")
    finish(["train"])
    assert capsys.readouterr().out.split() == ["--freeze", "--freeze-layers"]


@pytest.mark.parametrize("arguments", [[], ["--help"]])
def test_the_command_alone_shows_its_subcommands(arguments, capsys):
    finish(arguments)
    shown = capsys.readouterr().out
    assert all(
        f"\n  {name} " in shown for name in ("train", "evaluate", "predict", "generate", "export", "info", "spectrum")
    )

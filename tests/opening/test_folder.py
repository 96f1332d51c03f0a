"""The folder of a run: held by one process at a time, and gone on from the last whole checkpoint."""

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from torch_linformer.errors import InputError
from torch_linformer.opening import folder
from torch_linformer.opening.folder import (
    LOCK_FILE,
    MANIFEST,
    Spent,
    checkpoints,
    held,
    is_whole,
    open_run,
    read_spent,
    seal,
)

HOLD = """
import sys
from pathlib import Path
from torch_linformer.opening.folder import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    input()
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds the folder "run"; a line on its standard input ends it."""
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_another_process_is_named(holder, tmp_path):
    message = rf"--output {tmp_path / 'run'}: process {holder.pid} on \S+ is at work there; wait for its end, or name"
    with pytest.raises(InputError, match=message), held(tmp_path / "run"):
        pass
    holder.communicate("\n")
    with held(tmp_path / "run"):
        pass
    assert not (tmp_path / "run").exists()


def test_a_dead_process_holds_nothing(holder, tmp_path):
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    assert (tmp_path / "run" / LOCK_FILE).exists()
    with held(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK_FILE).read_text().startswith(f"{os.getpid()} on ")


@pytest.mark.parametrize("moment", ["folder made", "lock opened"])
def test_who_comes_while_the_holder_ends_holds_alone(tmp_path, monkeypatch, moment):
    """The holder takes its file and its folder away before the other one opens the file, or before it locks it."""
    holder = ExitStack()
    holder.enter_context(held(tmp_path / "run"))

    def ending_first(function):
        def call(*arguments, **options):
            holder.close()
            return function(*arguments, **options)

        return call

    module, name = {"folder made": (folder, "open"), "lock opened": (fcntl, "flock")}[moment]
    monkeypatch.setattr(module, name, ending_first(getattr(fcntl, name, open)), raising=False)
    with held(tmp_path / "run"):
        assert (tmp_path / "run" / LOCK_FILE).exists()
        with pytest.raises(InputError, match="is at work there"), held(tmp_path / "run"):
            pass


def test_a_lock_is_held_until_its_file_is_gone(tmp_path, monkeypatch):
    """Or who comes in between would lock a file that is then taken away, and keep nobody out."""
    refused, unlink = [], Path.unlink

    def coming_first(path, **options):
        monkeypatch.undo()
        with pytest.raises(InputError, match="is at work there"), held(tmp_path / "run"):
            pass
        refused.append(path)
        unlink(path, **options)

    with held(tmp_path / "run"):
        monkeypatch.setattr(Path, "unlink", coming_first)
    assert refused == [tmp_path / "run" / LOCK_FILE] and not (tmp_path / "run").exists()


def test_folders_that_were_made_go_again_and_others_stay(tmp_path):
    (tmp_path / "here").mkdir()
    with held(tmp_path / "here" / "runs" / "a"):
        assert (tmp_path / "here" / "runs" / "a").is_dir()
    assert os.listdir(tmp_path / "here") == []
    with held(tmp_path / "here" / "runs" / "a"):
        (tmp_path / "here" / "runs" / "a" / "model").touch()
    assert os.listdir(tmp_path / "here" / "runs" / "a") == ["model"]
    (tmp_path / "empty").mkdir()
    with held(tmp_path / "empty"):
        pass
    assert (tmp_path / "empty").is_dir()


@pytest.fixture
def checkpoint(tmp_path):
    """A sealed checkpoint of two files and a folder."""
    folder = tmp_path / "checkpoint-9"
    (folder / "more").mkdir(parents=True)
    (folder / "weights").write_bytes(b"12345")
    (folder / "more" / "random").write_bytes(b"6")
    (folder / "state.json").write_text("{}")
    seal(folder, Spent(2.5, 700))
    return folder


def test_a_sealed_checkpoint_is_whole_and_knows_what_it_took(checkpoint):
    assert is_whole(checkpoint)
    assert read_spent(checkpoint) == Spent(2.5, 700)
    assert Spent(2.0, 700).tokens_per_second == 350
    seal(checkpoint, Spent(3.0, 800))
    assert is_whole(checkpoint) and read_spent(checkpoint) == Spent(3.0, 800)


DAMAGES = {
    "shorter file": lambda folder: (folder / "weights").write_bytes(b"123"),
    "empty file": lambda folder: (folder / "state.json").write_bytes(b""),
    "longer file": lambda folder: (folder / "weights").write_bytes(b"123456"),
    "missing file": lambda folder: (folder / "weights").unlink(),
    "zeroed file": lambda folder: (folder / "weights").write_bytes(bytes(5)),
    "overwritten file": lambda folder: (folder / "more" / "random").write_bytes(b"7"),
    "not sealed": lambda folder: (folder / MANIFEST).unlink(),
    "seal cut off": lambda folder: (folder / MANIFEST).write_text((folder / MANIFEST).read_text()[:20]),
    "seal of another kind": lambda folder: (folder / MANIFEST).write_text("{}"),
    "seal without digests": lambda folder: (folder / MANIFEST).write_text('{"files": {"weights": 5}}'),
    "empty folder": lambda folder: [file.unlink() for file in folder.iterdir() if file.is_file()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_not_whole(checkpoint, damage):
    DAMAGES[damage](checkpoint)
    assert not is_whole(checkpoint)


def test_checkpoints_come_by_number_and_nothing_else_does(tmp_path):
    for name in ("checkpoint-100", "checkpoint-9", "checkpoint-20", "checkpoint-x", "checkpoint-3.old", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-20", "checkpoint-100"]
    assert checkpoints(tmp_path / "nowhere") == []


def test_a_run_goes_on_from_the_last_whole_checkpoint(checkpoint, watching_screen):
    """The broken ones after it are removed, and that is said; without a whole one it starts afresh."""
    output = checkpoint.parent
    (output / "run.json").write_text("{}")
    for newest, told in (("checkpoint-9", f"going on from {checkpoint}"), ("", "starting afresh")):
        for number in (18, 108):
            (output / f"checkpoint-{number}").mkdir()
        screen = watching_screen(None, None)
        assert open_run(output, {}, True, screen) == (checkpoint if newest else None)
        assert [path.name for path in checkpoints(output)] == [name for name in (newest,) if name]
        assert screen.shown.count("is incomplete or damaged: removed") == (2 if newest else 3) and told in screen.shown
        (checkpoint / MANIFEST).unlink(missing_ok=True)

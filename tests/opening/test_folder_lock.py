import os
import signal
import subprocess
import sys
import threading

import pytest

from torch_linformer.errors import InputError
from torch_linformer.opening.folder import LOCK_FILE, held

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


def test_one_of_many_at_once(tmp_path):
    """Whoever comes while a lock is being given back takes it or is refused, and never beside another."""
    inside, most, entered = [], [], []

    def enter():
        for _ in range(200):
            try:
                with held(tmp_path / "run"):
                    inside.append(1)
                    most.append(len(inside))
                    inside.pop()
                    entered.append(1)
            except InputError:
                pass

    threads = [threading.Thread(target=enter) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert entered and set(most) == {1}


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

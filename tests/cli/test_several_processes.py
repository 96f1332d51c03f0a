"""What the command says where torchrun has started several processes: one line, by the main one."""

import pytest

from torch_linformer.cli.app import run


@pytest.fixture
def workplace(tmp_path):
    return tmp_path


def test_commands_of_one_process_are_refused(refused, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    line = refused("predict", "a model", "a file")
    assert line == "predict is the work of one process: torchrun and accelerate launch are for train and adapt"


@pytest.mark.parametrize(
    "arguments", [("predict", "a model", "a file"), ("train", "--k", "0.5"), ("train", "--no-such")]
)
def test_other_processes_are_silent(capfd, monkeypatch, arguments):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(SystemExit) as ended:
        run(list(arguments))
    assert ended.value.code == 2
    assert capfd.readouterr().err == ""


def test_rows_that_cannot_be_shared(refused, monkeypatch, tmp_path, write_csv, weather):
    monkeypatch.setenv("WORLD_SIZE", "3")
    data = write_csv(tmp_path / "texts.csv", weather(40, seed=0))
    line = refused("train", "--data", data, "--device", "cpu", "--output", tmp_path / "run")
    assert line == "--batch-size 8 cannot be shared by 3 processes: take a multiple of 3"

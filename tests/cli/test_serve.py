import socket

import pytest

from torch_linformer.cli.app import run


@pytest.fixture
def refused_serve(classifier_run, capsys):
    """A function: run `linformer serve`, which must end with status 2 and one line; returns the line."""

    def call(*options):
        with pytest.raises(SystemExit) as exit_:
            run(["serve", str(classifier_run.folder), "--device", "cpu", *options])
        error = capsys.readouterr().err
        assert exit_.value.code == 2 and error.count("\n") == 1
        return error.removeprefix("linformer: ")

    return call


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--host", "256.0.0.1"), "--host 256.0.0.1 --port 8000: cannot listen there ("),
        (("--port", "0", "--truncate", "--overflow", "windows"), "--truncate has no effect with --overflow windows"),
        (("--port", "0", "--overflow", "tail"), "--overflow must be one of cut, windows, got 'tail'"),
        (("--port", "0", "--api-key", ""), "--api-key: is empty; give a key, or leave it out"),
        (("--port", "0", "--max-queue", "0"), "Invalid value for '--max-queue'"),
    ],
)
def test_options_that_cannot_be(refused_serve, options, said):
    assert refused_serve(*options).startswith(said)


def test_a_port_that_is_taken(refused_serve):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        said = refused_serve("--port", port)
    assert said.startswith(f"--host 127.0.0.1 --port {port}: cannot listen there (Address already in use)")


def test_a_missing_folder(capsys):
    with pytest.raises(SystemExit):
        run(["serve", "nowhere", "--port", "0"])
    assert capsys.readouterr().err.startswith("linformer: nowhere: no such folder")


def test_what_is_not_installed(refused_serve, monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    assert refused_serve() == 'uvicorn not installed: pip install "torch-linformer[serve]"\n'


def test_an_encoder_that_cuts_nothing_has_nothing_to_truncate(plain_encoder, capsys):
    with pytest.raises(SystemExit):
        run(["serve", str(plain_encoder), "--port", "0", "--device", "cpu", "--truncate"])
    reads = f"{plain_encoder} reads a document in windows of 16 tokens and makes a vector of their mean"
    assert capsys.readouterr().err == f"linformer: --truncate has no effect: {reads}; add --overflow cut\n"

"""Nothing in these tests touches the user's caches or the network."""

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from torch_linformer.cli.app import run


@pytest.fixture(autouse=True, scope="module")
def surroundings(datasets_cache):
    """Caches of the session's own, and the hub switched off."""


@pytest.fixture
def refused(capfd, workplace):
    """A function: run the command, which must end with status 2 and one line; returns what the line says."""

    def call(*arguments):
        files = sorted(workplace.rglob("*"))
        capfd.readouterr()
        with pytest.raises(SystemExit) as exit_:
            run([str(argument) for argument in arguments])
        error = capfd.readouterr().err
        assert exit_.value.code == 2, error
        assert error.count("\n") == 1 and error.startswith("linformer: "), error
        assert sorted(workplace.rglob("*")) == files, "left something behind"
        return error.removeprefix("linformer: ").removesuffix("\n")

    return call


@pytest.fixture
def run_with_client(monkeypatch):
    """A function: run the command here, with pipes to a function in another thread; returns status and its result."""

    def call(arguments, client):
        (stdin, there), (here, stdout) = os.pipe(), os.pipe()

        def talk():
            with open(there, "w") as writer, open(here) as reader:
                return client(writer, reader)

        with open(stdin) as ours, ThreadPoolExecutor(1) as pool, monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", ours)
            result = pool.submit(talk)
            with open(stdout, "w") as output, pytest.raises(SystemExit) as exit_:
                patch.setattr(sys, "stdout", output)
                run(arguments)
            return exit_.value.code, result.result()

    return call

"""Nothing in these tests touches the user's caches or the network."""

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

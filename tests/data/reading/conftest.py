"""What the tests of several modules that read files share."""

from typing import NamedTuple

import pytest

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.rows import located
from torch_linformer.data.reading.sources import read_rows
from torch_linformer.errors import InputError


class Outcome(NamedTuple):
    """What reading gives: values and places of the rows, problems of those that cannot be read, notes, replaced."""

    rows: list
    places: list
    problems: list
    notes: list
    replaced: int


@pytest.fixture
def write(tmp_path):
    """A function: a file of that name and content, its path."""

    def write_file(name, content):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write_file


@pytest.fixture(scope="session")
def read():
    """A function: the outcome of reading a file or folder with the options of the user."""

    def read_all(path, *, whole=True, labeled=False, **options):
        notes = []
        rows = list(read_rows([path], DataOptions(**options), notes.append, whole=whole, labeled=labeled))
        good = [row for row in rows if not isinstance(row.values, InputError)]
        problems = [str(located(row)) for row in rows if isinstance(row.values, InputError)]
        assert not any("\n" in problem for problem in problems)
        replaced = sum(row.replaced for row in good)
        return Outcome([row.values for row in good], [row.where for row in good], problems, notes, replaced)

    return read_all

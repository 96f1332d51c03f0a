"""What the tests of several modules that read files share."""

from typing import NamedTuple

import pytest

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.readers import iter_rows
from torch_linformer.data.reading.rows import ReadReport


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
        problems = []
        report = ReadReport(on_bad=lambda where, problem: problems.append(str(problem)))
        rows = list(iter_rows(path, report, options=DataOptions(**options), whole=whole, labeled=labeled))
        assert report.bad == len(problems) and not any("\n" in problem for problem in problems)
        return Outcome(
            [row.values for row in rows], [row.where for row in rows], problems, report.notes, report.replaced
        )

    return read_all

"""The search of a library's docstrings: they are gone from the files that they should find."""

import ast

import pytest

from torch_linformer.data.reading import collection
from torch_linformer.data.reading.data_options import NO_OPTIONS
from torch_linformer.data.reading.docstrings import MOST_QUERIES, docstring_search, without_docstrings
from torch_linformer.errors import InputError
from torch_linformer.tasks.retrieval import Retrieval

SOURCE = '''\
"""What the module is for."""; import os  # kept
# a comment

class Café:
    \'\'\'A class of two lines,

    and a second paragraph.
    \'\'\'

    name = "a string that is no docstring"

    def empty(self):
        "nothing but this"  # and a comment

    async def waits(self): "in one line"

if os:
    def inner():
        """In a branch."""; return 1
'''
LEFT = """\
import os  # kept
# a comment

class Café:

    name = "a string that is no docstring"

    def empty(self):
        ...  # and a comment

    async def waits(self): ...

if os:
    def inner():
        return 1
"""


def test_all_docstrings_are_taken_out_and_nothing_else():
    text, docstrings = without_docstrings(SOURCE)
    assert text == LEFT
    ast.parse(text)
    assert docstrings == [
        "What the module is for.",
        "A class of two lines,\n\nand a second paragraph.",
        "nothing but this",
        "in one line",
        "In a branch.",
    ]


def module(name, queries):
    functions = "".join(
        f'def f{number}():\n    """{query}\n\n    More.\n    """\n' for number, query in enumerate(queries)
    )
    return functions + f"{name} = {'1' * 1000}\n"


@pytest.fixture
def library(tmp_path):
    def query(name, number):
        return f"Number {number} of what the module {name} is asked for."

    files = {
        "alone.py": module("alone", [query("alone", 0), "Too short.", query("alone", 0)]),
        "package/one.py": module("one", [query("one", number) for number in range(2 * MOST_QUERIES + 1)]),
        "package/deep/two.py": module("two", ["What two packages say of their files is no query.", query("two", 0)]),
        "other/three.py": module("three", ["What two packages say of their files is no query.", query("three", 0)]),
        "other/short.py": f'"""{query("short", 0)}"""\n',
        "other/wrong.py": module("wrong", [query("wrong", 0)]) + "print 1\n",
        "package/tests/test_one.py": module("tested", [query("tested", 0)]),
        "site-packages/foreign/four.py": module("foreign", [query("foreign", 0)]),
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text, encoding="utf-8")
    return tmp_path


def test_files_are_asked_for_by_the_docstrings_that_are_theirs_alone(library):
    files, description = docstring_search(library, "a library")
    assert {file.name: file.group for file in files} == {
        "alone.py": "alone",
        "other/three.py": "other",
        "package/deep/two.py": "package",
        "package/one.py": "package",
    }
    asked = {file.name: [query.split()[1] for query in file.queries] for file in files}
    assert asked["package/one.py"] == ["0", "2", "4", "6"] and len(asked["alone.py"]) == 1
    assert not any("More." in query or "two packages" in query for file in files for query in file.queries)
    assert not any('"""' in file.text for file in files)
    assert description.startswith("4 files of a library, without their docstrings, and 7 of these as queries")
    assert docstring_search(library, "a library")[0] == files


def test_it_is_what_a_search_reads_of_stdlib(library, monkeypatch):
    monkeypatch.setattr(collection, "stdlib_search", lambda: docstring_search(library, "a library"))
    found = Retrieval.load("stdlib", None, NO_OPTIONS)
    assert found.dataset.column_names == ["text", "queries", "name", "group"] and found.name == "stdlib"
    assert found.dataset["name"][:] == ["alone.py", "other/three.py", "package/deep/two.py", "package/one.py"]


def test_a_single_package_cannot_be_held_out(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.py").write_text(module("a", ["A query of eight words that finds this file."]))
    with pytest.raises(InputError, match="too few source files with docstrings"):
        docstring_search(tmp_path, "")

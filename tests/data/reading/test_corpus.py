import ast
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

import torch_linformer
from torch_linformer.data.reading import collection
from torch_linformer.data.reading.corpus import (
    MIN_FILES,
    MOST_QUERIES,
    docstring_search,
    package_documents,
    stdlib_documents,
    without_docstrings,
)
from torch_linformer.data.reading.data_options import NO_OPTIONS
from torch_linformer.errors import InputError
from torch_linformer.tasks.retrieval import Retrieval


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def write_package(root, name, files):
    for number in range(files):
        write(root / name / f"m{number:03}.py", f"{name} = {number}\n")


def test_labels_are_the_packages_with_enough_files(tmp_path):
    write_package(tmp_path, "beta", MIN_FILES)
    write_package(tmp_path, "alpha", MIN_FILES + 3)
    write_package(tmp_path, "small", MIN_FILES - 1)
    documents, description = package_documents(tmp_path, "Python 9's library")
    assert Counter(document.values["label"] for document in documents) == {"alpha": 23, "beta": 20}
    assert documents[0][:2] == ("alpha/m000.py", {"text": "alpha = 0\n", "label": "alpha"})
    assert [document.where for document in documents] == sorted(document.where for document in documents)
    assert (
        description == "43 distinct files of Python 9's library, 2 packages with at least 20 files; 0 copies left out"
    )


def test_what_is_no_document_is_left_out(tmp_path):
    for package in ("a", "b"):
        write_package(tmp_path, package, MIN_FILES)
    write(tmp_path / "top.py", "in no package")
    write(tmp_path / "a" / "empty.py", "")
    write(tmp_path / "a" / "blank.py", "\n \n")
    write(tmp_path / "a" / "notes.txt", "no source")
    write(tmp_path / "b" / "copy.py", "a = 7\n")  # the same bytes as a/m007.py, which comes first
    write_package(tmp_path / "site-packages", "numpy", MIN_FILES)
    write_package(tmp_path / "a", "__pycache__", 3)
    documents, description = package_documents(tmp_path, "")
    assert description.endswith("; 1 copies left out")
    assert Counter(document.values["label"] for document in documents) == {"a": 20, "b": 20}


def test_packages_are_read_whole_with_their_subpackages(tmp_path):
    write_package(tmp_path, "a", MIN_FILES)
    write_package(tmp_path, "b", MIN_FILES - 1)
    write(tmp_path / "b" / "deep" / "er" / "x.py", b"caf\xe9 = 1\r\n")
    document = package_documents(tmp_path, "").documents[-1 - (MIN_FILES - 1)]
    assert document[:2] == ("b/deep/er/x.py", {"text": "caf\ufffd = 1\r\n", "label": "b"})


def test_smaller_libraries_lower_the_threshold_and_say_so(tmp_path):
    for name, files in (("a", 30), ("b", 7), ("c", 7), ("d", 6)):
        write_package(tmp_path, name, files)
    documents, description = package_documents(tmp_path, "it")
    assert Counter(document.values["label"] for document in documents) == {"a": 30, "b": 7, "c": 7}
    assert (
        description
        == "44 distinct files of it, 3 packages with at least 7 files (fewer than two have 20); 0 copies left out"
    )


@pytest.mark.parametrize("sizes", [[], [30], [30, 1]])
def test_a_library_without_two_packages_is_an_error(tmp_path, sizes):
    for number, files in enumerate(sizes):
        write_package(tmp_path, f"p{number}", files)
    with pytest.raises(InputError, match="too few source files to learn from; give a file or folder"):
        package_documents(tmp_path, "")


def test_the_standard_library_of_this_python():
    documents, description = stdlib_documents()
    sizes = Counter(document.values["label"] for document in documents)
    assert len(sizes) >= 2
    assert len({document.values["text"] for document in documents}) > 0.99 * len(documents) > 100
    assert f"{len(documents):,} distinct files of Python {sys.version.split()[0]}" in description
    assert f"{len(sizes)} packages with at least" in description
    assert {"asyncio", "email", "encodings"} <= set(sizes)
    assert (documents, description) == stdlib_documents()


def test_the_corpus_needs_only_the_standard_library():
    """Without site-packages there is nothing else it could import."""
    code = "from torch_linformer.data.reading import corpus; print(len(corpus.stdlib_documents()[0]))"
    source = Path(torch_linformer.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(source)},
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(stdlib_documents().documents)


# Docstrings as queries: they are gone from the files that they should find

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
    assert found.dataset.column_names == ["text", "queries", "name", "group"]
    assert found.dataset["name"][:] == ["alone.py", "other/three.py", "package/deep/two.py", "package/one.py"]


def test_a_single_package_cannot_be_held_out(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "a.py").write_text(module("a", ["A query of eight words that finds this file."]))
    with pytest.raises(InputError, match="too few source files with docstrings"):
        docstring_search(tmp_path, "")

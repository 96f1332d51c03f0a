"""The data sets that every Python carries, of the source files of its own standard library.

To classify: a document is a file, and its label is the package that it belongs to. To search: a query is the first
paragraph of a docstring, and should find the file that it was taken out of. Nothing has to be downloaded. What is found
depends on the Python that runs: versions add and remove packages, and some Linux distributions leave out the tests.
This module imports only the standard library.
"""

import ast
import platform
import re
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from torch_linformer.data.reading.rows import Row
from torch_linformer.errors import InputError

MIN_FILES = 20  # of a package
LEAST_CHARACTERS = 1_000  # of a file without its docstrings: a shorter one has nothing that a query could find
LEAST_WORDS = 8  # of a query: "Return the name." asks for nothing
MOST_QUERIES = 4  # of a file, so that no file of many functions is most of a score
_PARAGRAPH = re.compile(r"\n[^\S\n]*\n")
_TESTS = {"test", "tests", "idle_test"}
_FOREIGN = {"site-packages", "dist-packages", "__pycache__"}
_Documented = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def _library() -> tuple[Path, str]:
    """The folder of the running Python's standard library, and what it is called on the screen."""
    return Path(sysconfig.get_paths()["stdlib"]), f"Python {platform.python_version()}'s standard library"


def source_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Each Python file below ``root`` that is not empty: its path from there, and its bytes; no installed packages."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if not _FOREIGN.intersection(parts) and path.is_file() and (content := path.read_bytes()).strip():
            yield "/".join(parts), content


# To classify


class Corpus(NamedTuple):
    """The documents, sorted by path below the library's folder, and one line for the screen which describes them."""

    documents: list[Row]
    description: str


def stdlib_documents() -> Corpus:
    """The source files of the running Python's standard library: some 25 MB of text in about a second."""
    return package_documents(*_library())


def package_documents(root: Path, library: str) -> Corpus:
    """The packages below `root` that hold at least `MIN_FILES` distinct Python files; `library` names it on the screen.

    The label of a file is the first part of its path below `root`. Left out are modules directly in `root`,
    which belong to no package, installed packages, empty files, and all but the first of the files with the
    same bytes. Bytes that are not UTF-8 become U+FFFD. Where fewer than two packages are that large, the minimum
    is lowered to the size of the second largest package, and the description tells.
    """
    files = [(path, content) for path, content in source_files(root) if "/" in path]
    distinct = dict[bytes, str]()
    for path, content in files:
        distinct.setdefault(content, path)
    labels = Counter(path.partition("/")[0] for path in distinct.values())
    second = sorted(labels.values())[-2] if len(labels) > 1 else 0
    if second < 2:
        raise InputError(f"{root}: too few source files to learn from; give a file or folder of your own")
    least = min(MIN_FILES, second)
    documents = [
        Row(path, {"text": content.decode("utf-8", "replace"), "label": label}, "text")
        for content, path in distinct.items()
        if labels[label := path.partition("/")[0]] >= least
    ]
    packages = sum(size >= least for size in labels.values())
    lowered = "" if least == MIN_FILES else f" (fewer than two have {MIN_FILES})"
    what = f"{len(documents):,} distinct files of {library}"
    copies = f"; {len(files) - len(distinct):,} copies left out"
    return Corpus(documents, f"{what}, {packages} packages with at least {least} files{lowered}{copies}")


# To search


class Searched(NamedTuple):
    """A file without its docstrings, and what asks for it.

    Attributes:
        name: its path below the library's folder.
        text: without docstrings.
        queries: the first paragraph of some of these.
        group: the package or the module that it belongs to.
    """

    name: str
    text: str
    queries: list[str]
    group: str


def stdlib_search() -> tuple[list[Searched], str]:
    """The files of the running Python's standard library, and one line for the screen which describes them."""
    return docstring_search(*_library())


def docstring_search(root: Path, library: str) -> tuple[list[Searched], str]:
    """The source files below ``root``, tests and installed packages left out; ``library`` names it on the screen.

    Of the queries of a file :data:`MOST_QUERIES` are kept, evenly from its beginning to its end. A query that files of
    several packages have asks for none of them and is left out, as are files without queries.
    """
    files: list[Searched] = []
    owners = defaultdict[str, set[str]](set)
    for path, content in source_files(root):
        parts = path.split("/")
        group = parts[0].removesuffix(".py")
        if _TESTS.intersection(parts):
            continue
        try:
            text, docstrings = without_docstrings(content.decode("utf-8-sig"))
        except (SyntaxError, ValueError):  # another encoding, or an example of wrong code
            continue
        paragraphs = (" ".join(_PARAGRAPH.split(docstring.strip())[0].split()) for docstring in docstrings)
        queries = list(dict.fromkeys(query for query in paragraphs if len(query.split()) >= LEAST_WORDS))
        if len(text.strip()) >= LEAST_CHARACTERS:
            files.append(Searched(path, text, queries, group))
            for query in queries:
                owners[query].add(group)
    found = []
    for file in files:
        own = [query for query in file.queries if len(owners[query]) == 1]
        kept = min(len(own), MOST_QUERIES)
        if own:
            found.append(file._replace(queries=[own[number * len(own) // kept] for number in range(kept)]))
    if len({file.group for file in found}) < 2:
        raise InputError(f"{root}: too few source files with docstrings to learn from; give documents of your own")
    number, groups = sum(len(file.queries) for file in found), len({file.group for file in found})
    return found, (
        f"{len(found):,} files of {library}, without their docstrings, and {number:,} of these as queries; what is "
        f"held out is of other packages and modules, of which there are {groups}"
    )


def without_docstrings(source: str) -> tuple[str, list[str]]:
    """A module's text without the docstrings of it, its classes and its functions; and these docstrings, in order.

    A body that was nothing else is ``...``, so that the text still is a module.

    Raises:
        SyntaxError: the text is none.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in strings
        documented = [(node, ast.get_docstring(node)) for node in _documented(ast.parse(source))]
    lines, docstrings = source.encode().splitlines(keepends=True), []
    for node, docstring in reversed(documented):  # from the end, so that places before it stay as they are
        if docstring is None:
            continue
        docstrings.append(docstring)
        statement: Any = node.body[0]
        before = lines[statement.lineno - 1][: statement.col_offset]
        after = lines[statement.end_lineno - 1][statement.end_col_offset :]
        if after.lstrip().startswith(b";"):
            after = after.lstrip(b"; \t")
        rest = before + b"..." * (len(node.body) == 1 and not isinstance(node, ast.Module)) + after
        lines[statement.lineno - 1 : statement.end_lineno] = [rest] if rest.strip() else []
    return b"".join(lines).decode(), docstrings[::-1]


def _documented(node: ast.AST) -> Iterator[_Documented]:
    """What may have a docstring, in the order of the text: a body stands in other statements, never in expressions."""
    if isinstance(node, _Documented):
        yield node
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):
            yield from _documented(child)

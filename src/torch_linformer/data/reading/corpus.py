"""The data set that every Python carries: the source files of its own standard library.

A document is one source file and its label is the package it belongs to, so a classifier can be trained
anywhere, without a download. What is found depends on the Python that runs: versions add and remove packages,
and some Linux distributions leave out the tests. This module imports only the standard library.
"""

import platform
import sysconfig
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from torch_linformer.data.reading.rows import Row
from torch_linformer.errors import InputError

MIN_FILES = 20
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__"})


class Corpus(NamedTuple):
    """The documents, sorted by path below the library's folder, and one line for the screen which describes them."""

    documents: list[Row]
    description: str


def stdlib_documents() -> Corpus:
    """The source files of the running Python's standard library: some 25 MB of text in about a second."""
    library = f"Python {platform.python_version()}'s standard library"
    return package_documents(Path(sysconfig.get_paths()["stdlib"]), library)


def package_documents(root: Path, library: str) -> Corpus:
    """The packages below `root` that hold at least `MIN_FILES` distinct Python files; `library` names it on the screen.

    The label of a file is the first part of its path below `root`. Left out are modules directly in `root`,
    which belong to no package, installed packages, empty files, and all but the first of the files with the
    same bytes. Bytes that are not UTF-8 become U+FFFD. Where fewer than two packages are that large, the minimum
    is lowered to the size of the second largest package, and the description tells.
    """
    files = [(path, content) for path, content in source_files(root) if "/" in path]
    distinct = _distinct(files)
    sizes = Counter(document.values["label"] for document in distinct)
    second = sorted(sizes.values())[-2] if len(sizes) > 1 else 0
    if second < 2:
        raise InputError(f"{root}: too few source files to learn from; give a file or folder of your own")
    least = min(MIN_FILES, second)
    documents = [document for document in distinct if sizes[document.values["label"]] >= least]
    packages = sum(size >= least for size in sizes.values())
    lowered = "" if least == MIN_FILES else f" (fewer than two have {MIN_FILES})"
    what = f"{len(documents):,} distinct files of {library}"
    copies = f"; {len(files) - len(distinct):,} copies left out"
    return Corpus(documents, f"{what}, {packages} packages with at least {least} files{lowered}{copies}")


def source_files(root: Path) -> Iterator[tuple[str, bytes]]:
    """Each Python file below ``root`` that is not empty: its path from there, and its bytes; no installed packages."""
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if _FOREIGN.intersection(parts) or not path.is_file():
            continue
        content = path.read_bytes()
        if content.strip():
            yield "/".join(parts), content


def _distinct(files: Sequence[tuple[str, bytes]]) -> list[Row]:
    """All but the later ones of the files with the same bytes, labeled with the first part of their path."""
    seen, rows = set[bytes](), list[Row]()
    for path, content in files:
        if content not in seen:
            seen.add(content)
            values = {"text": content.decode("utf-8", "replace"), "label": path.partition("/")[0]}
            rows.append(Row(path, values, "text"))
    return rows

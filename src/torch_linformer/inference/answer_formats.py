"""How answers are written: as JSON lines, or vectors as Parquet or an array of NumPy."""

import json
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.lib import format as npy
from pyarrow import parquet

from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import Answer
from torch_linformer.inference.output_parts import is_folder_of_parts
from torch_linformer.reporting.files import atomic_path

_MORE_CONTROLS = re.compile("[\x7f-\x9f]")


@dataclass(frozen=True)
class AnswerFormat:
    """How answers are written.

    Attributes:
        suffix: of the file of a part.
        write: makes that file of some answers.
        join: makes one file, with the name it is given, of the parts.
        done: what was done with the documents, in a word.
        empty: what became of those without text.
        suffixes: that a file of all answers may have; any if empty.
    """

    suffix: str
    write: Callable[[Sequence[Answer], Path], object]
    join: Callable[[Sequence[Path], Path], object]
    done: str
    empty: str
    suffixes: tuple[str, ...] = ()

    def check(self, output: Path | None, max_errors: int) -> None:
        """Raise ``InputError`` where answers cannot be written to an output."""
        if not self.suffixes:
            return
        if output is None or (output.suffix not in self.suffixes and not is_folder_of_parts(output)):
            names = " or ".join(self.suffixes)
            raise InputError(f"--output {output}: the name must end with {names}, or have no suffix")
        if max_errors and output.suffix == ".npy":
            raise InputError(
                f"--max-errors leaves rows out, and those of {output} have no names: write a .parquet file"
            )

    def said(self, number: int, cut: int, max_length: int, report: ReadReport) -> str:
        """A sentence: what was done with how many documents, and how many of them were cut, skipped or damaged."""
        counts = (
            (f"cut at {max_length:,} tokens", cut),
            (self.empty, report.empty),
            ("with half a character replaced", report.replaced),
            ("left out, as they cannot be read", report.bad),
        )
        notes = "".join(f", {count:,} {what}" for what, count in counts if count)
        return f"{number:,} document{'' if number == 1 else 's'} {self.done}{notes}"


def json_line(answer: Answer) -> str:
    """An answer as a line of JSON.

    A file's name may hold bytes that are not UTF-8 (lone surrogates), which JSON can escape. It escapes controls of a
    terminal of its own accord, but for the second set, whose first is DEL.
    """
    line = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return _MORE_CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", line) + "\n"


def _write_lines(answers: Iterable[Answer], path: Path) -> None:
    path.write_text("".join(map(json_line, answers)), encoding="utf-8", newline="\n")


def _join_lines(parts: Sequence[Path], output: Path) -> None:
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        for part in parts:
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, file)


def _write_vectors(answers: Sequence[Answer], path: Path) -> None:
    """Parquet with the columns ``document`` (its place), ``id`` (what its row calls it), ``embedding`` and counts.

    A document of several vectors has a row for each, numbered by the column ``vector``.
    """
    of_each = [np.atleast_2d(answer["embedding"]) for answer in answers]
    vectors, numbers = (
        np.concatenate(of_each).astype(np.float32),
        [range(len(vectors_of_document)) for vectors_of_document in of_each],
    )
    several = np.ndim(answers[0]["embedding"]) == 2
    answers = [answer for answer, rows in zip(answers, numbers, strict=True) for _ in rows]
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
    columns: dict[str, Any] = {
        "document": [answer["document"].encode("utf-8", "backslashreplace").decode() for answer in answers],
        "id": pyarrow.array([answer.get("id") for answer in answers], pyarrow.string()),
        **({"vector": [*chain.from_iterable(numbers)]} if several else {}),
        "embedding": lists,
        "tokens": [answer["tokens"] for answer in answers],
        "cut": [answer["cut"] for answer in answers],
    }
    parquet.write_table(pyarrow.table(columns), path)


def _join_vectors(parts: Sequence[Path], output: Path) -> None:
    """One Parquet file, or the vectors as one array ``(documents, C)`` in float32."""
    schema = parquet.read_schema(parts[0])
    tables = map(parquet.read_table, parts)
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        if output.suffix == ".parquet":
            with parquet.ParquetWriter(file, schema) as writer:
                for table in tables:
                    writer.write_table(table)
            return
        rows = sum(parquet.read_metadata(part).num_rows for part in parts)
        shape = (rows, schema.field("embedding").type.list_size)
        npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for table in tables:
            file.write(table["embedding"].combine_chunks().flatten().to_numpy().astype("<f4").tobytes())


LINES = AnswerFormat(".jsonl", _write_lines, _join_lines, "read", "skipped, without text")
VECTORS = AnswerFormat(
    ".parquet",
    _write_vectors,
    _join_vectors,
    "embedded",
    "without text, whose vectors are NaN",
    suffixes=(".parquet", ".npy"),
)

"""Which reader of tables takes those in tests/data/files apart as they are meant.

    pip install duckdb clevercsv
    python benchmarks/dialects.py

A file counts as read right where the reader, left to itself, finds as many rows as are expected, and the first text
among its cells.
"""

import csv
import tomllib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from torch_linformer.data.reading.data_options import NO_OPTIONS
from torch_linformer.data.reading.sources import read_rows

FILES = Path(__file__).parent.parent / "tests" / "data" / "files"
Rows = list[list[Any]]


def ours(path: Path) -> Rows:
    """The reader of the project."""
    return [list(row.values.values()) for row in read_rows([path], NO_OPTIONS, lambda note: None)]


def duckdb(path: Path) -> Rows:
    """DuckDB's `read_csv`, which sniffs."""
    import duckdb

    return [list(row) for row in duckdb.sql(f"select * from read_csv('{path}', all_varchar=true)").fetchall()]


def clevercsv(path: Path) -> Rows:
    """The dialect and the header that clevercsv finds."""
    import clevercsv

    text = path.read_text(encoding="utf-8")
    dialect = clevercsv.Sniffer().sniff(text)
    rows = list(clevercsv.reader(text.splitlines(keepends=True), dialect))
    return rows[1:] if clevercsv.Sniffer().has_header(text) else rows


def standard(path: Path) -> Rows:
    """`csv.Sniffer` of Python."""
    text = path.read_text(encoding="utf-8")
    rows = list(csv.reader(text.splitlines(keepends=True), csv.Sniffer().sniff(text)))
    return rows[1:] if csv.Sniffer().has_header(text) else rows


def arrow(path: Path) -> Rows:
    """pyarrow, which sniffs nothing, with the delimiter of the suffix."""
    from pyarrow import csv as arrow_csv

    parse = arrow_csv.ParseOptions(delimiter="\t" if path.suffix == ".tsv" else ",", newlines_in_values=True)
    columns = arrow_csv.read_csv(path, parse_options=parse).to_pydict()
    return [list(row) for row in zip(*columns.values(), strict=True)]


def tables() -> Iterable[tuple[Path, int, str]]:
    """The tables of text that are to be read without an option: how many rows they have, and the first text."""
    for expected in tomllib.loads((FILES / "expected.toml").read_text(encoding="utf-8")).values():
        path = FILES / expected["file"]
        asked = {"encoding", "delimiter", "quoting", "header", "max_errors"} & expected.get("options", {}).keys()
        one_word = path.name.startswith("one_word")
        if path.suffix in (".csv", ".tsv") and "first" in expected and not asked and not one_word:
            yield path, expected["rows"], expected["first"]["text"].strip()


def main() -> None:
    """Print how many each reader gets right, and which not."""
    readers: list[Callable[[Path], Rows]] = [ours, duckdb, clevercsv, standard, arrow]
    cases = {path: (rows, text) for path, rows, text in tables() if path.name != "file_names.csv"}
    for reader in readers:
        wrong = []
        for path, (rows, text) in cases.items():
            try:
                found = reader(path)
            except Exception as error:  # whatever another package raises is a file that it does not read
                wrong.append(f"{path.name} ({type(error).__name__})")
                continue
            if len(found) != rows or not any(text in map(str, row) for row in found):
                wrong.append(f"{path.name} ({len(found)} rows)")
        print(f"{reader.__name__}: {len(cases) - len(wrong)} of {len(cases)} right; not {', '.join(wrong) or 'any'}")


if __name__ == "__main__":
    main()

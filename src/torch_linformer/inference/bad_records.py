"""Records that cannot be read, in a file of their own, so that they do not end a run over many others."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError
from torch_linformer.inference.output_parts import is_folder_of_parts

_ROW = re.compile(r"(?P<file>.+), (?:row|line|item) (?P<row>\d+)", re.DOTALL)  # how readers name a row's place


@contextmanager
def reporting_bad_records(
    output: Path | None, most: int, say: Callable[[str], object] = lambda sentence: None
) -> Iterator[ReadReport]:
    """A report that leaves out so many bad records, each with a line in :func:`file_of_errors`; with 0 none.

    ``say`` is called with how files are read.

    Raises:
        InputError: there is no output beside which that file could lie, or one more record is bad.
    """
    if most < 0:
        raise InputError(f"--max-errors must be 0 or more, got {most}")
    if not most:
        yield ReadReport(on_note=say)
        return
    if output is None:
        raise InputError("--max-errors writes bad records beside the file of --output: name it")
    file = file_of_errors(output)
    file.unlink(missing_ok=True)  # of an earlier run, or of this one before it was interrupted

    def write(where: str, problem: InputError) -> None:
        if report.bad > most:
            raise InputError(f"{problem}; it is one more than --max-errors {most}, see {file}")
        place = _ROW.fullmatch(where)
        record = {
            "record": where,
            "file": place["file"] if place else where,
            "row": int(place["row"]) if place else None,
            "error": str(problem),
        }
        with file.open("a", encoding="utf-8", errors="backslashreplace") as lines:
            lines.write(json.dumps(record, ensure_ascii=False) + "\n")

    report = ReadReport(on_bad=write, on_note=say)
    yield report


def file_of_errors(output: Path) -> Path:
    """Where the bad records of an output are told: in its folder, or beside its file."""
    return output / "_errors.jsonl" if is_folder_of_parts(output) else output.with_name(f"{output.name}.errors.jsonl")

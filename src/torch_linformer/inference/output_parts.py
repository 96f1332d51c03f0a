"""The results of many documents in parts beside a manifest, each complete or absent: what a run goes on from."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from torch_linformer.data.reading.folders import folder_files
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError
from torch_linformer.opening.folder_lock import held
from torch_linformer.opening.run_folder import differences
from torch_linformer.reporting.files import atomic_path, write_json

PART_SECONDS = 30.0  # of work that an interruption may cost
PART_DOCUMENTS = 10_000  # at most, whose results are held until they are a part
MANIFEST = "_manifest.json"  # readers of folders of Parquet pass over names that begin so
T = TypeVar("T")


class OutputParts:
    """What is there of an output, in the order of its documents.

    A part counts from the moment at which the manifest names it, so that each is complete or absent.

    Attributes:
        folder: of the parts.
        manifest: what its file holds: the settings and the input of the run, its parts, and whether it is finished.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        left = {file for file in folder.iterdir() if file.name.startswith(("part-", ".part-", "._manifest"))}
        for file in left - set(self.files):  # of a part that was not complete when its process was killed
            file.unlink()

    @property
    def files(self) -> list[Path]:
        """One a part."""
        return [self.folder / part["file"] for part in self.manifest["parts"]]

    @property
    def documents(self) -> int:
        """How many documents the parts have together."""
        return sum(part["documents"] for part in self.manifest["parts"])

    @property
    def cut(self) -> int:
        """How many of them were cut."""
        return sum(part["cut"] for part in self.manifest["parts"])

    @property
    def finished(self) -> bool:
        """Whether nothing is missing."""
        return bool(self.manifest["finished"])

    @property
    def report(self) -> ReadReport:
        """What a finished run noticed of its input."""
        return ReadReport(**self.manifest["left_out"])

    def add(
        self, rows: Sequence[dict[str, Any]], suffix: str, write: Callable[[Sequence[dict[str, Any]], Path], object]
    ) -> None:
        """Have the next part written, with a row for each document."""
        name = f"part-{len(self.files):05d}{suffix}"
        with atomic_path(self.folder / name) as temporary:
            write(rows, temporary)
        self.manifest["parts"].append({"file": name, "documents": len(rows), "cut": sum(row["cut"] for row in rows)})
        self._save()

    def finish(self, report: ReadReport) -> None:
        """Say in the manifest that all parts are there, and what was noticed of the input."""
        self.manifest["left_out"] = {"replaced": report.replaced, "empty": report.empty, "bad": report.bad}
        self.manifest["finished"] = True
        self._save()

    def grouped(self, found: Iterable[T], on_document: Callable[[int], object]) -> Iterator[list[T]]:
        """Results in groups that are worth a part; ``on_document`` is called with how many documents have theirs."""
        rows: list[T] = []
        begin = None  # of the work: the first results may wait for processes to start
        for number, row in enumerate(found, start=self.documents + 1):
            begin = begin or time.monotonic()
            rows.append(row)
            on_document(number)
            if len(rows) == PART_DOCUMENTS or time.monotonic() - begin > PART_SECONDS:
                yield rows
                rows, begin = [], time.monotonic()
        if rows:
            yield rows

    def _save(self) -> None:
        write_json(self.folder / MANIFEST, self.manifest)


def is_folder_of_parts(output: Path) -> bool:
    """Whether an output is to stay in parts: a folder that is there, or a new name without a suffix."""
    return output.is_dir() or not (output.suffix or output.exists())


@contextmanager
def parts_of(output: Path, settings: Any, files: Sequence[str], resume: bool) -> Iterator[OutputParts]:
    """The parts of an output that a run with the same settings and the same files has left.

    They lie in the output where it is a folder; for one that is a file in a hidden folder beside it, which is removed
    once the block succeeds. ``settings`` are a dataclass of what JSON can hold.

    Raises:
        InputError: another process makes this output, the run is not to be gone on with, it is another one, or its
            input has changed.
    """
    stays = is_folder_of_parts(output)
    folder = output if stays else output.with_name(f".{output.name}.parts")
    wanted = {"settings": json.loads(json.dumps(asdict(settings))), "input": _state(files)}
    with held(folder):
        parts = OutputParts(folder, _manifest(output, folder, wanted, resume))
        try:
            yield parts
        finally:
            if not parts.files:  # nothing to go on with
                (folder / MANIFEST).unlink()
    if not stays:
        shutil.rmtree(folder)


def _manifest(output: Path, folder: Path, wanted: dict[str, Any], resume: bool) -> dict[str, Any]:
    file = folder / MANIFEST
    if not file.exists():
        if any(not path.name.startswith((".", "_")) for path in folder.iterdir()):  # a failed run leaves its errors
            raise InputError(f"--output {output}: is not empty and holds no run; name another folder")
        write_json(file, {"finished": False, **wanted, "parts": []})
    elif not resume:
        state = "holds a finished run" if _read(file)["finished"] else "a run was interrupted"
        raise InputError(f"--output {output}: {state}; add --resume to go on, or remove {folder}")
    there = _read(file)
    if different := differences(there["settings"], wanted["settings"]):
        raise InputError(f"--output {output}: the interrupted run is another ({different}); remove {folder}")
    if there["input"] != wanted["input"]:
        raise InputError(f"--output {output}: the files were changed since the run began; remove {folder}")
    return there


def _read(file: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{file}: is not valid JSON; remove {file.parent}") from None
    return manifest


def _state(files: Sequence[str]) -> dict[str, Any]:
    """How many files there are, their bytes, and a digest of their names, sizes and times; pipes have no such state."""
    digest, number, total = hashlib.sha256(), 0, 0
    for given in map(Path, files):
        for file in [item.path for item in folder_files(given)] if given.is_dir() else [given]:
            if file.is_file():
                at = file.stat()
                digest.update(os.fsencode(file) + f"\0{at.st_size} {at.st_mtime_ns}\n".encode())
                number, total = number + 1, total + at.st_size
    return {"files": number, "bytes": total, "sha256": digest.hexdigest()}

"""The results of many documents in parts beside a manifest, each whole or made anew: what a run goes on from."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

from torch_linformer.data.reading.formats import folder_files
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError
from torch_linformer.opening.folder import differences, held
from torch_linformer.reporting.files import atomic_path, damage_of, file_state, write_json

PART_SECONDS = 30.0  # of work that an interruption may cost, beside a group of documents
PART_DOCUMENTS = 10_000  # at most, unless a group has more, whose results are held until they are a part
MANIFEST = "_manifest.json"  # readers of folders of Parquet pass over names that begin so
DIGEST = "sha256"
Row = dict[str, Any]


class Gap(NamedTuple):
    """Documents without results, by their numbers from 0: from ``begin`` on, before ``end`` or to the last."""

    begin: int
    end: int | None


EVERYTHING = (Gap(0, None),)


class OutputParts:
    """What is there of an output, in the order of its documents.

    A part counts from the moment at which the manifest names it, and as long as its file is the one that was written
    then: each is whole, or its documents are a gap.

    Attributes:
        folder: of the parts.
        manifest: what its file holds: the settings, model and input of the run, its parts, and whether it is finished.
        damages: the files of the parts that are not as they were written, and what is wrong with each.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        left = {file for file in folder.iterdir() if file.name.startswith(("part-", ".part-", "._manifest"))}
        for file in left - set(self.files):  # of a part that was not complete when its process was killed
            file.unlink()
        states = zip(self.files, (damage_of(folder / part["file"], part) for part in manifest["parts"]), strict=True)
        self._damaged = {number: (file, state) for number, (file, state) in enumerate(states) if state is not None}
        if self._damaged and self.finished:
            self.manifest["finished"] = False
            self._save()

    @property
    def damages(self) -> list[tuple[Path, str]]:
        return list(self._damaged.values())

    @property
    def gaps(self) -> list[Gap]:
        """The documents of each damaged part, and all after the last part."""
        gaps, begin = list[Gap](), 0
        for number, part in enumerate(self.manifest["parts"]):
            if number in self._damaged:
                gaps.append(Gap(begin, begin + part["documents"]))
            begin += part["documents"]
        return [*gaps, Gap(begin, None)]

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

    def put(
        self, number: int, rows: Sequence[Row], suffix: str, write: Callable[[Sequence[Row], Path], object]
    ) -> None:
        """Have a part written, the next or a damaged one, with a row for each document."""
        name = f"part-{number:05d}{suffix}"
        with atomic_path(self.folder / name) as temporary:
            write(rows, temporary)
        part = {"file": name, "documents": len(rows), "cut": sum(row["cut"] for row in rows)}
        self.manifest["parts"][number : number + 1] = [{**part, **file_state(self.folder / name)}]
        self._damaged.pop(number, None)
        self._save()

    def finish(self, report: ReadReport) -> None:
        """Say in the manifest that all parts are there, and what was noticed of the input."""
        self.manifest["left_out"] = {"replaced": report.replaced, "empty": report.empty, "bad": report.bad}
        self.manifest["finished"] = True
        self._save()

    def grouped(
        self, groups: Iterable[Sequence[Row]], on_document: Callable[[int], object]
    ) -> Iterator[tuple[int, list[Row]]]:
        """The results of the gaps as parts with their numbers: a damaged part's, or some groups that are worth one.

        A new part holds whole groups, so that what follows is grouped alike whether or not the run is interrupted.
        ``on_document`` is called with how many documents have their results.

        Raises:
            InputError: there are fewer documents than parts that were there had.
        """
        damaged = list(self._damaged)
        done = self.documents - sum(self.manifest["parts"][number]["documents"] for number in damaged)
        rows: list[Row] = []
        begin = None  # of the work: the first results may wait for processes to start
        for group in groups:
            begin = begin or time.monotonic()
            if not damaged and rows and len(rows) + len(group) > PART_DOCUMENTS:
                yield len(self.files), rows
                rows, begin = [], time.monotonic()
            for row in group:
                rows.append(row)
                done += 1
                on_document(done)
                if damaged and len(rows) == self.manifest["parts"][damaged[0]]["documents"]:
                    yield damaged.pop(0), rows
                    rows, begin = [], time.monotonic()
            if not damaged and rows and time.monotonic() - begin > PART_SECONDS:
                yield len(self.files), rows
                rows, begin = [], time.monotonic()
        if damaged:
            raise InputError(f"{self.folder}: there are fewer documents than its parts had; remove it")
        if rows:
            yield len(self.files), rows

    def _save(self) -> None:
        _write(self.folder / MANIFEST, self.manifest)


def is_folder_of_parts(output: Path) -> bool:
    """Whether an output is to stay in parts: a folder that is there, or a new name without a suffix."""
    return output.is_dir() or not (output.suffix or output.exists())


def run_identity(settings: Any, model: str, files: Sequence[str]) -> dict[str, Any]:
    """What two runs must share to go on with each other: the settings, what the model is, and the state of the input.

    Args:
        settings: a dataclass of what JSON can hold.
        model: a digest of its files.
        files: files and folders.
    """
    return {"settings": json.loads(json.dumps(asdict(settings))), "model": model, "input": _state(files)}


@contextmanager
def parts_of(output: Path, identity: dict[str, Any], resume: bool) -> Iterator[OutputParts]:
    """The parts of an output that a run with the same :func:`run_identity` has left.

    They lie in the output where it is a folder; for one that is a file in a hidden folder beside it, which is removed
    once the block succeeds.

    Raises:
        InputError: another process makes this output, the run is not to be gone on with, it is another one, its model
            or its input has changed, or its manifest was changed.
    """
    stays = is_folder_of_parts(output)
    folder = output if stays else output.with_name(f".{output.name}.parts")
    with held(folder):
        parts = OutputParts(folder, _manifest(output, folder, identity, resume))
        try:
            yield parts
        finally:
            if not parts.files:  # nothing to go on with
                (folder / MANIFEST).unlink()
    if not stays:
        shutil.rmtree(folder)


def _manifest(output: Path, folder: Path, identity: dict[str, Any], resume: bool) -> dict[str, Any]:
    file = folder / MANIFEST
    if not file.exists():
        if any(not path.name.startswith((".", "_")) for path in folder.iterdir()):  # a failed run leaves its errors
            raise InputError(f"--output {output}: is not empty and holds no run; name another folder")
        _write(file, {"finished": False, **identity, "parts": []})
    elif not resume:
        state = "holds a finished run" if _read(file)["finished"] else "a run was interrupted"
        raise InputError(f"--output {output}: {state}; add --resume to go on, or remove {folder}")
    manifest = _read(file)
    if different := differences(manifest["settings"], identity["settings"]):
        raise InputError(f"--output {output}: the interrupted run is another ({different}); remove {folder}")
    if manifest["model"] != identity["model"]:
        name = identity["settings"]["model"]
        raise InputError(f"--output {output}: the model in {name} was changed since the run began; remove {folder}")
    if manifest["input"] != identity["input"]:
        raise InputError(f"--output {output}: the files were changed since the run began; remove {folder}")
    return manifest


def _read(file: Path) -> dict[str, Any]:
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{file}: is not valid JSON; remove {file.parent}") from None
    if not isinstance(manifest, dict) or manifest.pop(DIGEST, None) != _digest(manifest):
        raise InputError(f"{file}: is not as the run wrote it; put it back, or remove {file.parent}")
    return manifest


def _write(file: Path, manifest: dict[str, Any]) -> None:
    write_json(file, {**manifest, DIGEST: _digest(manifest)})


def _digest(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _state(files: Sequence[str]) -> dict[str, Any]:
    """How many files there are, their bytes, and a digest of their names, sizes and times; pipes have no such state."""
    digest, number, total = hashlib.sha256(), 0, 0
    for path in map(Path, files):
        for file in [item.path for item in folder_files(path)] if path.is_dir() else [path]:
            if file.is_file():
                at = file.stat()
                digest.update(os.fsencode(file) + f"\0{at.st_size} {at.st_mtime_ns}\n".encode())
                number, total = number + 1, total + at.st_size
    return {"files": number, "bytes": total, "sha256": digest.hexdigest()}

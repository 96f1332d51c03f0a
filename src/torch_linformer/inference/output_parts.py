"""Answers in parts beside a manifest, each whole or made anew: what a run goes on from."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch_linformer.data.reading.formats import folder_files
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import Answer
from torch_linformer.opening.folder import differences, held
from torch_linformer.opening.load import model_digest
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.reporting.files import atomic_path, damage_of, file_state, write_json

PART_SECONDS = 30.0  # of work that an interruption may cost, beside a group of documents
PART_DOCUMENTS = 10_000  # at most, unless a group has more, whose answers are held until they are a part
MANIFEST = "_manifest.json"  # readers of folders of Parquet pass over names that begin so
DIGEST = "sha256"
Gap = tuple[int, int | None]  # documents without answers: the number of the first, from 0, and where the next gap ends


class OutputParts:
    """What is there of an output, in the order of its documents.

    A part counts from the moment at which the manifest names it, and as long as its file is the one that was written
    then: each is whole, or its documents are a gap.

    Attributes:
        manifest: the settings, model and input of the run, its parts, and whether it is finished.
        damages: by the number of each part whose file is not as it was written, what is wrong with it.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder, self.manifest = folder, manifest
        self.parts: list[dict[str, Any]] = manifest["parts"]
        for file in folder.iterdir():
            if file.name.startswith(("part-", ".part-", "._manifest")) and file not in self.files:
                file.unlink()  # of a part that was not complete when its process was killed
        states = {number: damage_of(folder / part["file"], part) for number, part in enumerate(self.parts)}
        self.damages = {number: state for number, state in states.items() if state is not None}
        if self.damages:
            manifest["finished"] = False

    @property
    def files(self) -> list[Path]:
        """One a part."""
        return [self.folder / part["file"] for part in self.parts]

    @property
    def gaps(self) -> list[Gap]:
        """The documents of each damaged part, and all after the last part."""
        gaps, begin = list[Gap](), 0
        for number, part in enumerate(self.parts):
            if number in self.damages:
                gaps.append((begin, begin + part["documents"]))
            begin += part["documents"]
        return [*gaps, (begin, None)]

    def total(self, count: str) -> int:
        """How many ``documents`` the parts have together, or how many of these were ``cut``."""
        return sum(part[count] for part in self.parts)

    def fill(
        self,
        groups: Iterable[Sequence[Answer]],
        suffix: str,
        write: Callable[[Sequence[Answer], Path], object],
        on_document: Callable[[int], object],
    ) -> None:
        """Have the answers of the gaps written: those of a damaged part, or some groups that are worth a new one.

        A new part holds whole groups, so that what follows is grouped alike whether or not the run is interrupted.
        ``on_document`` is called with how many documents have their answers.

        Raises:
            InputError: there are fewer documents than parts that were there had.
        """
        done = self.total("documents") - sum(self.parts[number]["documents"] for number in self.damages)
        rows: list[Answer] = []
        begin = None  # of the work: the first answers may wait for processes to start

        def put() -> None:
            nonlocal rows, begin
            number = next(iter(self.damages), len(self.parts))
            file = self.folder / f"part-{number:05d}{suffix}"
            with atomic_path(file) as temporary:
                write(rows, temporary)
            part = {"file": file.name, "documents": len(rows), "cut": sum(row["cut"] for row in rows)}
            self.parts[number : number + 1] = [part | file_state(file)]
            self.damages.pop(number, None)
            _write(self.folder, self.manifest)
            rows, begin = [], time.monotonic()

        for group in groups:
            begin = begin or time.monotonic()
            if not self.damages and rows and len(rows) + len(group) > PART_DOCUMENTS:
                put()
            rows += group
            for number in range(done + 1, done + len(group) + 1):
                on_document(number)
            done += len(group)
            if self.damages:
                is_whole = len(rows) == self.parts[next(iter(self.damages))]["documents"]
            else:
                is_whole = time.monotonic() - begin > PART_SECONDS
            if is_whole:
                put()
        if self.damages:
            raise InputError(f"{self.folder}: there are fewer documents than its parts had; remove it")
        if rows:
            put()

    def finish(self, noticed: dict[str, int]) -> None:
        """Say in the manifest that all parts are there, and what was noticed of the input."""
        self.manifest |= {"left_out": noticed, "finished": True}
        _write(self.folder, self.manifest)


def is_folder_of_parts(output: Path) -> bool:
    """Whether an output is to stay in parts: a folder that is there, or a new name without a suffix."""
    return output.is_dir() or not (output.suffix or output.exists())


@contextmanager
def parts_of(output: Path, settings: Any, resume: bool) -> Iterator[OutputParts]:
    """The parts of an output that a run with the same settings, model and input has left.

    They lie in the output where it is a folder; for one that is a file in a hidden folder beside it, which is removed
    once the block succeeds.

    Args:
        output: a file or a folder.
        settings: a dataclass of what JSON can hold, with ``model`` and ``files``.
        resume: whether to go on with a run that is there.

    Raises:
        InputError: another process makes this output, the run is not to be gone on with, it is another one, its model
            or its input has changed, or its manifest was changed.
    """
    stays = is_folder_of_parts(output)
    folder = output if stays else output.with_name(f".{output.name}.parts")
    run = {
        "settings": json.loads(json.dumps(asdict(settings))),
        "model": model_digest(encoder_folder(settings.model)),
        "input": _state(settings.files),
    }
    with held(folder):
        if not (folder / MANIFEST).exists():
            if any(not path.name.startswith((".", "_")) for path in folder.iterdir()):  # a failed run leaves its errors
                raise InputError(f"--output {output}: is not empty and holds no run; name another folder")
            _write(folder, {"finished": False, **run, "parts": []})
            resume = True
        manifest, problem = _read(folder), None
        if not resume:
            problem = "holds a finished run" if manifest["finished"] else "a run was interrupted"
            problem += "; add --resume to go on, or"
        elif different := differences(manifest["settings"], run["settings"]):
            problem = f"the interrupted run is another ({different});"
        elif manifest["model"] != run["model"]:
            problem = f"the model in {settings.model} was changed since the run began;"
        elif manifest["input"] != run["input"]:
            problem = "the files were changed since the run began;"
        if problem:
            raise InputError(f"--output {output}: {problem} remove {folder}")
        parts = OutputParts(folder, manifest)
        try:
            yield parts
        finally:
            if not parts.files:  # nothing to go on with
                (folder / MANIFEST).unlink()
    if not stays:
        shutil.rmtree(folder)


def _read(folder: Path) -> dict[str, Any]:
    file = folder / MANIFEST
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{file}: is not valid JSON; remove {folder}") from None
    if not isinstance(manifest, dict) or manifest.pop(DIGEST, None) != _digest(manifest):
        raise InputError(f"{file}: is not as the run wrote it; put it back, or remove {folder}")
    return manifest


def _write(folder: Path, manifest: dict[str, Any]) -> None:
    write_json(folder / MANIFEST, {**manifest, DIGEST: _digest(manifest)})


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

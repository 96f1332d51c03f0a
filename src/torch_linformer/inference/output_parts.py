"""The results of many documents in parts, each complete or absent: what an interrupted run goes on from."""

import json
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from torch_linformer.errors import InputError
from torch_linformer.opening.folder_lock import held
from torch_linformer.opening.run_folder import differences
from torch_linformer.reporting.files import atomic_path, write_json

PART_SECONDS = 30.0  # of work that an interruption may cost
SETTINGS = "settings.json"
T = TypeVar("T")


class OutputParts:
    """What is there of an output, in the order of its documents.

    Attributes:
        files: one a part.
        documents: how many these have together.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = sorted(folder.glob("part-*"))
        self.documents = sum(int(file.stem.rpartition("-")[2]) for file in self.files)

    def add(self, documents: int, suffix: str, write: Callable[[Path], object]) -> None:
        """Have the next part written, with so many documents."""
        file = self.folder / f"part-{len(self.files):08d}-{documents}{suffix}"
        with atomic_path(file) as temporary:
            write(temporary)
        self.files.append(file)
        self.documents += documents

    def grouped(self, found: Iterable[T], on_document: Callable[[int], object]) -> Iterator[list[T]]:
        """Results in groups that are worth a part; ``on_document`` is called with how many documents have theirs."""
        rows: list[T] = []
        begin = time.monotonic()
        for number, row in enumerate(found, start=self.documents + 1):
            rows.append(row)
            on_document(number)
            if time.monotonic() - begin > PART_SECONDS:
                yield rows
                rows, begin = [], time.monotonic()
        if rows:
            yield rows


@contextmanager
def parts_of(output: Path, settings: Any, resume: bool) -> Iterator[OutputParts]:
    """The parts of an output that a run with the same settings has left; they are removed once the block succeeds.

    ``settings`` are a dataclass of what JSON can hold.

    Raises:
        InputError: another process makes this output, the run is not to be gone on with, or it is another one.
    """
    wanted = json.loads(json.dumps(asdict(settings)))
    folder = output.with_name(f".{output.name}.parts")
    with held(folder):
        if not (folder / SETTINGS).exists():
            write_json(folder / SETTINGS, wanted)
        elif not resume:
            raise InputError(f"--output {output}: a run was interrupted; add --resume to go on, or remove {folder}")
        there = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        if different := differences(there, wanted):
            raise InputError(f"--output {output}: the interrupted run is another ({different}); remove {folder}")
        parts = OutputParts(folder)
        try:
            yield parts
        finally:
            if not parts.files:  # nothing to go on with
                (folder / SETTINGS).unlink()
    shutil.rmtree(folder)

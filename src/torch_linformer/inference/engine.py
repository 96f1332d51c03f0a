"""Where a model computes the answers to many documents: in this process, in several, or in the workers of Ray Data."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import torch

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.records import Record
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document, documents_of
from torch_linformer.errors import InputError
from torch_linformer.inference.output_parts import EVERYTHING, Gap
from torch_linformer.inference.predictor import Columns, Predictor
from torch_linformer.inference.window_reader import in_groups
from torch_linformer.inference.worker_processes import in_processes
from torch_linformer.opening.devices import resolve_device

ENGINES = ("local", "ray")
Row = dict[str, Any]


@dataclass(frozen=True)
class GivenDocuments:
    """The documents of some files, which any process that finds these can read, again and again.

    Attributes:
        files: files and folders, "-" is standard input.
        record: what is read of a row.
        options: what the user says of the files.
        question: asked of every document.
        batch_size: windows of a batch, for which documents of similar lengths are read ahead.
        keep_empty: whether documents without text are among them.
    """

    files: tuple[str, ...]
    record: Record
    options: DataOptions
    question: str | None
    batch_size: int
    keep_empty: bool = False

    def groups(self, report: ReadReport, gaps: Sequence[Gap]) -> Iterator[Columns]:
        """The documents of the gaps, as columns of some batches: ``document``, its place, and ``text``.

        Words that were given stand in the column of the texts, as lists. ``id`` is there where rows have a name. A
        group depends on nothing before its first document, so that a run that goes on at one makes the same groups.
        """
        documents = documents_of(
            self.files, self.record, self.options, report, self.question, keep_empty=self.keep_empty
        )
        read = 0
        for begin, end in gaps:
            span = islice(documents, begin - read, None if end is None else end - read)
            for kind, alike in groupby(span, _kind):
                for group in in_groups(alike, self.batch_size):
                    yield _columns(group, *kind)
            read = begin if end is None else end


def _kind(document: Document) -> tuple[bool, bool, bool]:
    """What is there of a document, as the columns of a batch have it of all."""
    return document.words is not None, document.id is not None, document.question is not None


def _columns(group: Sequence[Document], in_words: bool, has_id: bool, is_asked: bool) -> Columns:
    columns: Columns = {
        "document": [document.where for document in group],
        "text": [list(document.words or ()) if in_words else document.text for document in group],
    }
    columns |= {"id": [document.id for document in group]} if has_id else {}
    columns |= {"question": [document.question for document in group]} if is_asked else {}
    return columns


@dataclass(frozen=True, kw_only=True)
class Engine:
    """What computes; it changes no answer but for roundings.

    Attributes:
        name: ``local``, or ``ray`` for Ray Data.
        workers: processes of this machine, or workers of Ray.
        ray_address: of a cluster of Ray; None starts one on this machine.
    """

    name: str = "local"
    workers: int = 1
    ray_address: str | None = None

    def check(self, files: Sequence[str], device: str, compiled: bool = False) -> None:
        """Raise ``InputError`` where it cannot be as it is asked for, perhaps with a compiled model."""
        if self.name not in ENGINES:
            raise InputError(f"--engine must be one of {', '.join(ENGINES)}, got {self.name!r}")
        if self.workers < 1:
            raise InputError(f"--workers must be 1 or more, got {self.workers}")
        if compiled and (self.name != "local" or self.workers > 1):
            raise InputError("--compile is for a single process: leave out --workers and --engine ray")
        if self.ray_address is not None and self.name != "ray":
            raise InputError("--ray-address is for --engine ray")
        if self.name == "ray" and "-" in files:
            raise InputError("--engine ray reads files, which its workers can open, and no standard input")
        threads = torch.get_num_threads()
        if self.ray_address is None and self.workers > threads:
            raise InputError(f"--workers {self.workers} cannot share {threads} threads (OMP_NUM_THREADS): take fewer")
        if self.name == "local" and self.workers > 1 and resolve_device(device) != "cpu":
            raise InputError("--workers share the threads of a CPU: add --device cpu, or leave --workers out")

    def answers(
        self,
        predictor: Predictor,
        given: GivenDocuments,
        report: ReadReport,
        most: int = 0,
        gaps: Sequence[Gap] = EVERYTHING,
    ) -> Iterator[list[Row]]:
        """The answers to the documents of the gaps, in their order, of a group at a time.

        ``report`` is brought up to date; ``most`` is how many bad records it takes.
        """
        if self.name == "ray":
            from torch_linformer.inference.on_ray import on_ray

            return map(_rows, on_ray(predictor, given, report, most, gaps, self.workers, self.ray_address))
        groups = given.groups(report, gaps)
        return map(_rows, in_processes(self.workers, predictor, groups) if self.workers > 1 else map(predictor, groups))


def _rows(columns: Columns) -> list[Row]:
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]

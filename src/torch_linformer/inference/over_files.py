"""A model over the documents of many files: their answers in parts, which an interrupted run goes on from."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError
from torch_linformer.inference.bad_records import file_of_errors, reporting_bad_records
from torch_linformer.inference.engine import Engine, GivenDocuments, Row
from torch_linformer.inference.output_parts import OutputParts, is_folder_of_parts, parts_of, run_identity
from torch_linformer.inference.predictor import Predictor
from torch_linformer.inference.window_reader import what_was_read
from torch_linformer.opening.folders import check_writable
from torch_linformer.opening.model_files import model_digest
from torch_linformer.opening.run_folder import trained_columns


@dataclass(frozen=True, kw_only=True)
class FilesSettings:
    """A model and the files that it reads, and how: two runs with the same settings go on with each other."""

    model: str
    files: tuple[str, ...]
    text_column: str | None = None
    id_column: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    quoting: str = "auto"
    header: bool | None = None
    text_folder: str | None = None
    overflow: str = "cut"
    stride: int | None = None
    precision: str = "auto"

    @property
    def reading(self) -> DataOptions:
        """What the user says of the files, and the columns that the model was trained with."""
        return replace(DataOptions.of(self), trained=trained_columns(self.model))


@dataclass(frozen=True)
class PartFormat:
    """How answers are written.

    Attributes:
        suffix: of the file of a part.
        write: makes that file of some answers.
        join: makes one file, with the name it is given, of the parts.
        done: what was done with the documents, in a word.
        empty: what became of those without text.
    """

    suffix: str
    write: Callable[[Sequence[Row], Path], object]
    join: Callable[[Sequence[Path], Path], object]
    done: str
    empty: str


@dataclass(frozen=True, kw_only=True)
class AnswersOfFiles:
    """A run over files.

    Attributes:
        settings: a dataclass of what makes the answers: two runs with the same go on with each other.
        predictor: what answers.
        given: the documents.
        engine: where it computes.
        format: how the answers are written.
    """

    settings: Any
    predictor: Predictor
    given: GivenDocuments
    engine: Engine
    format: PartFormat

    def write(
        self,
        output: Path,
        *,
        resume: bool,
        max_errors: int,
        on_document: Callable[[int], object],
        say: Callable[[str], object],
    ) -> str:
        """Write the answers, in the order of their documents; returns a sentence about these.

        ``say`` is called with how the files are read, and with the parts of an earlier run that are damaged.

        ``output`` is a file, or a folder in which they stay in parts beside their manifest.

        Raises:
            InputError: no text, too many bad records, or a run that is not to be gone on with, or that is another.
        """
        check_writable(output)
        identity = run_identity(self.settings, model_digest(self.predictor.model), self.given.files)
        with parts_of(output, identity, resume) as parts:
            for file, state in parts.damages:
                say(f"{file}: {state}; it is made anew")
            if parts.finished:
                return self.said(parts.documents, parts.cut, parts.report)
            with reporting_bad_records(output, max_errors, say) as report:
                answers = self.engine.answers(self.predictor, self.given, report, max_errors, parts.gaps)
                for number, rows in parts.grouped(answers, on_document):
                    parts.put(number, rows, self.format.suffix, self.format.write)
            self._finish(parts, output, report)
        return self.said(parts.documents, parts.cut, report)

    def said(self, number: int, cut: int, report: ReadReport) -> str:
        """A sentence: what was done with how many documents, and how many of them were cut, skipped or damaged."""
        return what_was_read(number, self.format.done, self.format.empty, cut, self.predictor.max_length, report)

    def nothing(self, report: ReadReport, output: Path | None = None) -> InputError:
        """The error for files without any text."""
        left_out = f", {report.bad:,} left out: see {file_of_errors(output)}" if report.bad and output else ""
        return InputError(f"{', '.join(self.given.files)}: no document with any text{left_out}")

    def _finish(self, parts: OutputParts, output: Path, report: ReadReport) -> None:
        if not parts.files:
            raise self.nothing(report, output)
        if not is_folder_of_parts(output):
            self.format.join(parts.files, output)
        parts.finish(report)

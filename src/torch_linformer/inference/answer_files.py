"""``linformer predict`` and ``linformer embed``: a model over many files, its answers as lines or vectors.

The answers lie in parts until all are there, so that an interrupted run can go on; an input of any size will do.
"""

import json
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, ClassVar, cast

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import given_files
from torch_linformer.errors import InputError
from torch_linformer.inference.answer_formats import LINES, VECTORS, AnswerFormat, json_line
from torch_linformer.inference.document_model import Answer
from torch_linformer.inference.engines import Engine
from torch_linformer.inference.input_documents import InputDocuments
from torch_linformer.inference.output_parts import is_folder_of_parts, parts_of, run_identity
from torch_linformer.inference.predictor import Predictor
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.folder import check_writable, trained_columns
from torch_linformer.opening.load import model_digest
from torch_linformer.opening.named_encoders import encoder_folder

_ROW = re.compile(r"(?P<file>.+), (?:row|line|item) (?P<row>\d+)", re.DOTALL)  # how readers name a row's place


@dataclass(frozen=True, kw_only=True)
class FilesSettings:
    """A model and the files that it reads, and how: two runs with the same settings go on with each other.

    Files are names of files, folders and patterns; "-" is standard input.
    """

    format: ClassVar[AnswerFormat]

    model: str
    files: tuple[str, ...]
    text_column: str | None = None
    id_column: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    quoting: str = "auto"
    header: bool | None = None
    text_folder: str | None = None
    overflow: str | None = None
    stride: int | None = None
    precision: str = "auto"

    @property
    def reading(self) -> DataOptions:
        """What the user says of the files, and the columns that the model was trained with."""
        return replace(DataOptions.of(self), trained=trained_columns(self.model))

    @property
    def answering(self) -> dict[str, Any]:
        """What the `Predictor` is told."""
        return {"overflow": self.overflow, "stride": self.stride, "precision": self.precision}


@dataclass(frozen=True, kw_only=True)
class PredictSettings(FilesSettings):
    """What makes the lines of predictions."""

    format = LINES

    question_column: str | None = None
    source_column: str | None = None
    question: str | None = None
    threshold: float | None = None
    top_k: int | None = None

    @property
    def answering(self) -> dict[str, Any]:
        return {**super().answering, "threshold": self.threshold, "top_k": self.top_k}


@dataclass(frozen=True, kw_only=True)
class EmbedSettings(FilesSettings):
    """What makes the vectors; that of a row without text is NaN, so that rows stay in their places."""

    format = VECTORS

    normalize: bool = True
    prompt_name: str | None = None

    @property
    def answering(self) -> dict[str, Any]:
        own = {"normalize": self.normalize, "prompt_name": self.prompt_name}
        return {**super().answering, **own, "vectors": True, "keep_empty": True}


def answer_files(
    settings: FilesSettings,
    output: Path | None = None,
    *,
    resume: bool = False,
    max_errors: int = 0,
    device: str = "auto",
    batch_size: int = 16,
    engine: Engine | None = None,
    compile: bool = False,
    on_document: Callable[[int], object] = lambda number: None,
    say: Callable[[str], object] = lambda sentence: None,
) -> str:
    """Write the answers to all documents of some files, in their order: JSON lines, or vectors.

    In a folder the answers stay in parts, beside a manifest. Those of a file lie in parts in a hidden folder beside it
    until all are there.

    Args:
        settings: `PredictSettings` or `EmbedSettings`.
        output: a file (of vectors: .parquet or .npy) or a folder: one that is there, or a new name without a suffix.
            Lines also go into a pipe, or to standard output if None.
        resume: go on with an interrupted run; documents whose answers are there are read and not computed again.
        max_errors: so many records that cannot be read are left out, and written to ``OUTPUT.errors.jsonl``, or to
            ``_errors.jsonl`` in the folder.
        device: ``auto`` takes a GPU if there is one.
        batch_size: windows computed at once.
        engine: where it computes; in this process if None.
        compile: whether torch.compile makes the kernels; in this process only.
        on_document: called with how many documents have their answer.
        say: called with what the user should know before the first document, and of parts that are damaged.

    Returns:
        A sentence: how many documents there were, and how many of them were cut, skipped or damaged.

    Raises:
        InputError: another suffix, a missing file, no text, too many bad records, a model that predicts nothing, an
            engine that is not there, or an interrupted run that is not to be gone on with, or that is another.
    """
    settings.format.check(output, max_errors)
    in_parts = output is not None and (output.is_file() or output.is_dir() or not output.exists())
    if resume and not in_parts:
        raise InputError("--resume goes on with a file: name it with --output")
    precision = resolve_precision(settings.precision, resolve_device(device))
    settings = replace(settings, files=given_files(settings.files), precision=precision)
    engine = engine or Engine()
    engine.check(settings.files, device, compile)
    predictor = Predictor(settings.model, **settings.answering, device=device, batch_size=batch_size, compile=compile)
    for notice in predictor.notices:
        say(notice)
    settings = replace(settings, overflow=predictor.overflow)
    if predictor.several and cast(Path, output).suffix == ".npy":
        raise InputError(
            f"--output {output}: the rows of an array have no names, and this model makes several vectors of a "
            "document: write a .parquet file"
        )
    question = getattr(settings, "question", None)
    if (question or settings.reading.question_column) and not predictor.record.usual.question:
        raise InputError("questions are for models trained with --task qa; this one answers without")
    what = settings.files, predictor.record, settings.reading, question, batch_size
    documents = InputDocuments(*what, reads=predictor.reads, keep_empty=predictor.keep_empty)
    if isinstance(settings, EmbedSettings) and "-" not in settings.files:
        for sentence in documents.ask_of_lines(predictor.num_tokens):
            say(sentence)
    if in_parts:
        answering = partial(engine.answers, predictor, documents)
        return _written_in_parts(
            settings, cast(Path, output), answering, predictor.max_length, resume, max_errors, on_document, say
        )
    report = bad_record_report(None, max_errors, say)
    written, cut = _stream(chain.from_iterable(engine.answers(predictor, documents, report)), output, on_document)
    if not written:
        raise no_text(settings, report)
    return settings.format.said(written, cut, predictor.max_length, report)


def _stream(answers: Iterable[Answer], output: Path | None, on_document: Callable[[int], object]) -> tuple[int, int]:
    """Write lines to a pipe, or to standard output; returns how many, and how many documents were cut."""
    written = cut = 0
    with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as stream:
        for answer in answers:
            stream.write(json_line(answer))
            written, cut = written + 1, cut + answer["cut"]
            on_document(written)
        stream.flush()
    return written, cut


def _written_in_parts(
    settings: FilesSettings,
    output: Path,
    answering: Callable[..., Iterable[Sequence[Answer]]],
    max_length: int,
    resume: bool,
    max_errors: int,
    on_document: Callable[[int], object],
    say: Callable[[str], object],
) -> str:
    """Write answers in parts, of which a file is made at the end; returns the sentence of :func:`answer_files`."""
    check_writable(output)
    with parts_of(
        output, run_identity(settings, model_digest(encoder_folder(settings.model)), settings.files), resume
    ) as parts:
        for file, state in parts.damages:
            say(f"{file}: {state}; it is made anew")
        if parts.finished:
            return settings.format.said(parts.documents, parts.cut, max_length, parts.report)
        report = bad_record_report(output, max_errors, say)
        answers = answering(report, max_errors, parts.gaps)
        for number, rows in parts.grouped(answers, on_document):
            parts.put(number, rows, settings.format.suffix, settings.format.write)
        if not parts.files:
            raise no_text(settings, report, output)
        if not is_folder_of_parts(output):
            settings.format.join(parts.files, output)
        parts.finish(report)
    return settings.format.said(parts.documents, parts.cut, max_length, report)


def no_text(settings: FilesSettings, report: ReadReport, output: Path | None = None) -> InputError:
    """The error for files without any text."""
    left_out = f", {report.bad:,} left out: see {file_of_errors(output)}" if report.bad and output else ""
    return InputError(f"{', '.join(settings.files)}: no document with any text{left_out}")


def bad_record_report(output: Path | None, max_errors: int, say: Callable[[str], object]) -> ReadReport:
    """A report that leaves out so many bad records, each with a line in :func:`file_of_errors`; with 0 none.

    ``say`` is called with how files are read.

    Raises:
        InputError: there is no output beside which that file could lie, or, from the report, one more record is bad.
    """
    if max_errors < 0:
        raise InputError(f"--max-errors must be 0 or more, got {max_errors}")
    if not max_errors:
        return ReadReport(on_note=say)
    if output is None:
        raise InputError("--max-errors writes bad records beside the file of --output: name it")
    file = file_of_errors(output)
    file.unlink(missing_ok=True)  # of an earlier run, or of this one before it was interrupted

    def write(where: str, problem: InputError) -> None:
        if report.bad > max_errors:
            raise InputError(f"{problem}; it is one more than --max-errors {max_errors}, see {file}")
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
    return report


def file_of_errors(output: Path) -> Path:
    """Where the bad records of an output are told: in its folder, or beside its file."""
    return output / "_errors.jsonl" if is_folder_of_parts(output) else output.with_name(f"{output.name}.errors.jsonl")

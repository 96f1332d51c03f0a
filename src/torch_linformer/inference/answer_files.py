"""``linformer predict`` and ``linformer embed``: a model over many files, its answers as lines or vectors.

The answers lie in parts until all are there, so that an interrupted run can go on; an input of any size will do.
"""

import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pyarrow
from numpy.lib import format as npy
from pyarrow import parquet

from torch_linformer.data import windows
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document, documents_of, given_files, is_stream
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import Answer, in_groups
from torch_linformer.inference.engines import Engine
from torch_linformer.inference.output_parts import Gap, is_folder_of_parts, parts_of
from torch_linformer.inference.predictor import Embedder, FolderModel, Predictor
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.folder import check_writable, trained_columns
from torch_linformer.reporting.files import atomic_path

_ROW = re.compile(r"(?P<file>.+), (?:row|line|item) (?P<row>\d+)", re.DOTALL)  # how readers name a row's place
_MORE_CONTROLS = re.compile("[\x7f-\x9f]")
_LONGER = 10 * windows.FEW_TOKENS  # characters, which have that many tokens
_SPARED = 100  # longer texts, which may all stand first
_COUNTED = 1000  # texts, about, whose tokens are counted


def json_line(answer: Answer) -> str:
    """An answer as a line of JSON.

    A file's name may hold bytes that are not UTF-8 (lone surrogates), which JSON can escape. It escapes controls of a
    terminal of its own accord, but for the second set, whose first is DEL.
    """
    line = json.dumps(answer, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return _MORE_CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", line) + "\n"


def _write_lines(answers: Sequence[Answer], path: Path) -> None:
    path.write_text("".join(map(json_line, answers)), encoding="utf-8", newline="\n")


def _join_lines(parts: Sequence[Path], output: Path) -> None:
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        for part in parts:
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, file)


def _write_vectors(answers: Sequence[Answer], path: Path) -> None:
    """Parquet; a document of several vectors has a row for each, numbered by the column ``vector``."""
    several = np.ndim(answers[0]["embedding"]) == 2
    rows = [(answer, *row) for answer in answers for row in enumerate(np.atleast_2d(answer["embedding"]))]
    vectors = np.stack([vector for _, _, vector in rows])
    columns: dict[str, Any] = {
        "document": [answer["document"].encode("utf-8", "backslashreplace").decode() for answer, _, _ in rows],
        "id": pyarrow.array([answer.get("id") for answer, _, _ in rows], pyarrow.string()),
        **({"vector": [number for _, number, _ in rows]} if several else {}),
        "embedding": pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1]),
        "tokens": [answer["tokens"] for answer, _, _ in rows],
        "cut": [answer["cut"] for answer, _, _ in rows],
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
        shape = (
            sum(parquet.read_metadata(part).num_rows for part in parts),
            schema.field("embedding").type.list_size,
        )
        npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for table in tables:
            file.write(table["embedding"].combine_chunks().flatten().to_numpy().astype("<f4").tobytes())


class AnswerFormat(NamedTuple):
    """How answers are written."""

    suffixes: tuple[str, ...]  # that a file of all answers may have; the first is that of a part
    write: Callable[[Sequence[Answer], Path], object]  # makes the file of a part
    join: Callable[[Sequence[Path], Path], object]  # makes one file, with the name it is given, of the parts
    done: str  # what was done with the documents, in a word
    empty: str  # what became of those without text


@dataclass(frozen=True, kw_only=True)
class FilesSettings:
    """A model and the files that it reads, and how: two runs with the same settings go on with each other.

    Files are names of files, folders and patterns; "-" is standard input.
    """

    format: ClassVar[AnswerFormat]
    opens: ClassVar[type[FolderModel]]

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
    def answering(self) -> dict[str, Any]:
        """What the opened model is told."""
        return {"overflow": self.overflow, "stride": self.stride, "precision": self.precision}


@dataclass(frozen=True, kw_only=True)
class PredictSettings(FilesSettings):
    """What makes the lines of predictions."""

    format = AnswerFormat((".jsonl", ".ndjson", ".json"), _write_lines, _join_lines, "read", "skipped, without text")
    opens = Predictor

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

    format = AnswerFormat(
        (".parquet", ".npy"), _write_vectors, _join_vectors, "embedded", "without text, whose vectors are NaN"
    )
    opens = Embedder

    normalize: bool = True
    prompt_name: str | None = None

    @property
    def answering(self) -> dict[str, Any]:
        own = {"normalize": self.normalize, "prompt_name": self.prompt_name, "keep_empty": True}
        return {**super().answering, **own}


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
        output: a file (of lines: .jsonl, .ndjson or .json; of vectors: .parquet or .npy) or a folder: one that is
            there, or a new name without a suffix. Lines also go into a pipe, or to standard output if None.
        resume: go on with an interrupted run; documents whose answers are there are read and not computed again.
        max_errors: so many records that cannot be read are left out, and written to ``OUTPUT.errors.jsonl``, or to
            ``_errors.jsonl`` in the folder.
        device: as of `Predictor`, like ``batch_size``, and ``compile``, which is for this process only.
        engine: where it computes; in this process if None.
        on_document: called with how many documents have their answer.
        say: called with what the user should know before the first document, and of parts that are damaged.

    Returns:
        A sentence: how many documents there were, and how many of them were cut, skipped or damaged.

    Raises:
        InputError: another suffix, a missing file, no text, too many bad records, a model that predicts nothing, an
            engine that is not there, or an interrupted run that is not to be gone on with, or that is another.
    """
    form, embeds = settings.format, isinstance(settings, EmbedSettings)
    target = output if output and (output.is_file() or output.is_dir() or not output.exists()) else None
    if (embeds or target) and not (target and (target.suffix in form.suffixes or is_folder_of_parts(target))):
        raise InputError(f"--output {output}: the name must end with {' or '.join(form.suffixes)}, or have no suffix")
    if max_errors and target and target.suffix == ".npy":
        raise InputError(f"--max-errors leaves rows out, and those of {target} have no names: write a .parquet file")
    if resume and not target:
        raise InputError("--resume goes on with a file: name it with --output")
    engine = engine or Engine()
    engine.check(device, compile)
    settings = replace(
        settings,
        files=given_files(settings.files),
        precision=resolve_precision(settings.precision, resolve_device(device)),
    )
    opened = settings.opens(settings.model, **settings.answering, device=device, batch_size=batch_size, compile=compile)
    model = opened.document_model
    for notice in opened.notices:
        say(notice)
    settings = replace(settings, overflow=opened.overflow)
    if model.several and target and target.suffix == ".npy":
        raise InputError(
            f"--output {output}: the rows of an array have no names, and this model makes several vectors of a "
            "document: write a .parquet file"
        )
    options = replace(DataOptions.of(settings), trained=trained_columns(settings.model))
    question = getattr(settings, "question", None)
    if (question or options.question_column) and not model.record.usual.question:
        raise InputError("questions are for models trained with --task qa; this one answers without")
    reading = settings.files, model.record, options
    if embeds and not any(map(is_stream, settings.files)):
        lenient = ReadReport(on_bad=lambda where, problem: None)
        for sentence in _ask_of_lines(documents_of(*reading, lenient), model.encode):
            say(sentence)

    def answers(report: ReadReport, gaps: Sequence[Gap] = ((0, None),)) -> Iterator[Sequence[Answer]]:
        documents = documents_of(*reading, report, question, keep_empty=embeds, reads=model.encode.reads)
        return engine.answers(opened, _groups(documents, gaps, batch_size))

    def said(number: int, cut: int, report: ReadReport) -> str:
        counts = {
            f"cut at {opened.max_length:,} tokens": cut,
            form.empty: report.empty,
            "with half a character replaced": report.replaced,
            "left out, as they cannot be read": report.bad,
        }
        notes = "".join(f", {count:,} {what}" for what, count in counts.items() if count)
        return f"{number:,} document{'' if number == 1 else 's'} {form.done}{notes}"

    def no_text(report: ReadReport) -> InputError:
        left_out = f", {report.bad:,} left out: see {_file_of_errors(target)}" if report.bad and target else ""
        return InputError(f"{', '.join(settings.files)}: no document with any text{left_out}")

    if target is None:
        report = _bad_record_report(None, max_errors, say)
        written = cut = 0
        with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as stream:
            for answer in chain.from_iterable(answers(report)):
                stream.write(json_line(answer))
                written, cut = written + 1, cut + answer["cut"]
                on_document(written)
            stream.flush()
        if not written:
            raise no_text(report)
        return said(written, cut, report)
    check_writable(target)
    with parts_of(target, settings, resume) as parts:
        for number, state in parts.damages.items():
            say(f"{parts.files[number]}: {state}; it is made anew")
        if parts.manifest["finished"]:
            report = ReadReport(**parts.manifest["left_out"])
        else:
            report = _bad_record_report(target, max_errors, say)
            parts.fill(answers(report, parts.gaps), form.suffixes[0], form.write, on_document)
            if not parts.files:
                raise no_text(report)
            if not is_folder_of_parts(target):
                form.join(parts.files, target)
            parts.finish({"replaced": report.replaced, "empty": report.empty, "bad": report.bad})
    return said(parts.total("documents"), parts.total("cut"), report)


def _groups(documents: Iterator[Document], gaps: Iterable[Gap], batch_size: int) -> Iterator[list[Document]]:
    """The documents of the gaps, some batches at a time; those of a group have the same fields."""
    done = 0  # a group depends on nothing before its first document: a run that goes on at one makes the same groups
    for first, end in gaps:
        span = islice(documents, first - done, None if end is None else end - done)
        for _, alike in groupby(span, lambda document: [field is None for field in document]):
            yield from in_groups(alike, batch_size)
        done = first if end is None else end


def _ask_of_lines(documents: Iterable[Document], encode: windows.DocumentEncoder) -> list[str]:
    """What :func:`~torch_linformer.data.windows.ask_of_lines` asks of the first texts, of which a part is counted."""
    texts, longer = list[str](), 0
    for document in islice(documents, windows.MANY_TEXTS):
        longer += len(document.text) > _LONGER
        if longer > _SPARED + (1 - windows.NEARLY_ALL) * len(texts):
            return []  # without reading the others
        texts.append(document.text[:_LONGER])
    if len(texts) < windows.MANY_TEXTS:
        return []
    num_tokens = encode(texts[:: -(-len(texts) // _COUNTED)])["num_tokens"]
    return windows.ask_of_lines(len(texts), num_tokens, first=True)


def _bad_record_report(output: Path | None, max_errors: int, say: Callable[[str], object]) -> ReadReport:
    """A report that leaves out so many bad records, each with a line in :func:`_file_of_errors`; with 0 none."""
    if max_errors < 0:
        raise InputError(f"--max-errors must be 0 or more, got {max_errors}")
    if not max_errors:
        return ReadReport(on_note=say)
    if output is None:
        raise InputError("--max-errors writes bad records beside the file of --output: name it")
    file = _file_of_errors(output)
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


def _file_of_errors(output: Path) -> Path:
    """Where the bad records of an output are told: in its folder, or beside its file."""
    return output / "_errors.jsonl" if is_folder_of_parts(output) else output.with_name(f"{output.name}.errors.jsonl")

"""A trained model's predictions for new documents, streamed: an input of any size will do."""

import dataclasses
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from typing import TextIO

from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import given_files
from torch_linformer.errors import InputError
from torch_linformer.inference.engine import Engine, GivenDocuments, Row
from torch_linformer.inference.over_files import AnswersOfFiles, FilesSettings, PartFormat
from torch_linformer.inference.predictor import Predictor
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.reporting.files import atomic_path

_MORE_CONTROLS = re.compile("[\x7f-\x9f]")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictSettings(FilesSettings):
    """What makes the answers."""

    question_column: str | None = None
    source_column: str | None = None
    question: str | None = None
    threshold: float | None = None
    top_k: int | None = None


def predict_files(
    settings: PredictSettings,
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
    """Write a JSON line for every document of some files ("-" is standard input), in their order.

    The lines of a file lie in parts in a hidden folder beside it until all are there, so that an interrupted run can go
    on. In a folder they stay in parts, beside a manifest.

    Args:
        settings: the model and the files, folders and patterns of names.
        output: a file, a folder (one that is there, or a new name without a suffix) or a pipe; standard output if None.
        resume: go on with an interrupted run; documents whose lines are there are read and not computed again.
        max_errors: so many records that cannot be read are left out, and written to ``OUTPUT.errors.jsonl``, or to
            ``_errors.jsonl`` in the folder.
        device: ``auto`` takes a GPU if there is one.
        batch_size: windows computed at once.
        engine: where it computes; in this process if None.
        compile: whether torch.compile makes the kernels; in this process only.
        on_document: called with how many documents have their line.
        say: called with what the user should know before the first document.

    Returns:
        A sentence: how many documents there were, and how many of them were cut, skipped or damaged.

    Raises:
        InputError: a missing file, no text, a model that predicts nothing, an engine that is not there, or an
            interrupted run that is not to be gone on with, or that is another.
    """
    streamed = output is None or not (output.is_file() or output.is_dir() or not output.exists())
    if resume and streamed:
        raise InputError("--resume goes on with a file: name it with --output")
    precision = resolve_precision(settings.precision, resolve_device(device))
    settings = dataclasses.replace(settings, files=given_files(settings.files), precision=precision)
    engine = engine or Engine()
    engine.check(settings.files, device, compile)
    predictor = Predictor(
        settings.model,
        overflow=settings.overflow,
        stride=settings.stride,
        threshold=settings.threshold,
        top_k=settings.top_k,
        device=device,
        precision=settings.precision,
        batch_size=batch_size,
        compile=compile,
    )
    if predictor.notice:
        say(predictor.notice)
    options = settings.reading
    if (settings.question or options.question_column) and not predictor.record.usual.question:
        raise InputError("questions are for models trained with --task qa; this one answers without")
    run = AnswersOfFiles(
        settings=settings,
        predictor=predictor,
        given=GivenDocuments(settings.files, predictor.record, options, settings.question, batch_size),
        engine=engine,
        format=PartFormat(".jsonl", _write, _join, "read", "skipped, without text"),
    )
    if output is not None and not streamed:
        return run.write(output, resume=resume, max_errors=max_errors, on_document=on_document, say=say)
    if max_errors:
        raise InputError("--max-errors writes bad records beside the file of --output: name it")
    report = ReadReport(on_note=say)
    with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as stream:
        written, cut = _stream(engine.answers(predictor, run.given, report), stream, on_document)
    if not written:
        raise run.nothing(report)
    return run.said(written, cut, report)


def _stream(groups: Iterable[list[Row]], stream: TextIO, on_document: Callable[[int], object]) -> tuple[int, int]:
    """Write lines at once; returns how many there were, and how many documents were cut."""
    written = cut = 0
    for written, record in enumerate(chain.from_iterable(groups), start=1):
        stream.write(_line(record))
        cut += record["cut"]
        on_document(written)
    stream.flush()
    return written, cut


def _write(records: Iterable[Row], path: Path) -> None:
    path.write_text("".join(map(_line, records)), encoding="utf-8", newline="\n")


def _line(record: Row) -> str:
    # A file's name may hold bytes that are not UTF-8 (lone surrogates), which JSON can escape. It escapes controls of a
    # terminal of its own accord, but for the second set, whose first is DEL.
    line = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
    return _MORE_CONTROLS.sub(lambda control: f"\\u{ord(control[0]):04x}", line) + "\n"


def _join(parts: Sequence[Path], output: Path) -> None:
    """Make the parts one file."""
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        for part in parts:
            with part.open("rb") as lines:
                shutil.copyfileobj(lines, file)

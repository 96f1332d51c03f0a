"""A trained model's predictions for new documents, streamed: an input of any size will do."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TextIO, cast

from torch import nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.columns import NamedColumns
from torch_linformer.data.reading.records import TEXT, Record
from torch_linformer.data.reading.streamed import Document, check_there, documents_of
from torch_linformer.errors import InputError
from torch_linformer.inference.bad_records import reporting_bad_records
from torch_linformer.inference.output_parts import parts_of
from torch_linformer.inference.window_reader import WindowReader, Windows, what_was_read
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.model_folder import load_model, load_tokenizer, reader_config
from torch_linformer.opening.new_folder import check_writable
from torch_linformer.reporting.files import atomic_path
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class PredictSettings:
    """What makes the answers: two runs with the same go on with each other."""

    model: str
    files: tuple[str, ...]
    text_column: str | None = None
    question_column: str | None = None
    source_column: str | None = None
    question: str | None = None
    overflow: str = "cut"
    stride: int | None = None
    precision: str = "auto"


def predict_files(
    settings: PredictSettings,
    output: Path | None = None,
    *,
    resume: bool = False,
    max_errors: int = 0,
    device: str = "auto",
    batch_size: int = 16,
    on_document: Callable[[int], object] = lambda number: None,
) -> str:
    """Write a JSON line for every document of some files ("-" is standard input), in their order.

    The lines of a file lie in a hidden folder beside it until all are there, so that an interrupted run can go on.

    Args:
        settings: the model and the files.
        output: a file or a pipe; standard output if None.
        resume: go on with an interrupted run; documents whose lines are there are read and not computed again.
        max_errors: so many records that cannot be read are left out, and written to ``OUTPUT.errors.jsonl``.
        device: ``auto`` takes a GPU if there is one.
        batch_size: windows computed at once.
        on_document: called with how many documents have their line.

    Returns:
        A sentence: how many documents there were, and how many of them were cut, skipped or damaged.

    Raises:
        InputError: a missing file, no text, a model that predicts nothing, or an interrupted run that is not to be gone
            on with, or that is another.
    """
    streamed = output is None or (output.exists() and not output.is_file())
    if resume and streamed:
        raise InputError("--resume goes on with a file: name it with --output")
    check_there(settings.files)
    if output is not None:
        check_writable(output)
    predictor = _predictor(settings, resolve_device(device), batch_size)
    named = NamedColumns(settings.text_column, question=settings.question_column, source=settings.source_column)
    if (settings.question or named.question) and not predictor.record.usual.question:
        raise InputError("questions are for models trained with --task qa; this one answers without")
    with reporting_bad_records(None if streamed else output, max_errors) as report:
        documents = documents_of(settings.files, predictor.record, named, report, settings.question)
        if output is None or streamed:
            with nullcontext(sys.stdout) if output is None else output.open("w", encoding="utf-8") as stream:
                written, cut = _stream(predictor.predict(documents), stream, on_document)
        else:
            with parts_of(output, settings, resume) as parts:
                found = predictor.predict(islice(documents, parts.documents, None))
                for records in parts.grouped(found, on_document):
                    parts.add(len(records), ".jsonl", partial(_write_lines, records))
                if not parts.files:
                    raise _nothing(settings.files)
                written, cut = parts.documents, _join(parts.files, output)
        if not written:
            raise _nothing(settings.files)
    return what_was_read(written, "read", cut, predictor.encode.max_length, report)


def _nothing(files: Sequence[str]) -> InputError:
    return InputError(f"{', '.join(files)}: no document with any text")


def _stream(records: Iterable[dict[str, Any]], stream: TextIO, on_document: Callable[[int], object]) -> tuple[int, int]:
    """Write lines at once; returns how many there were, and how many documents were cut."""
    written = cut = 0
    for written, record in enumerate(records, start=1):
        stream.write(_line(record))
        cut += record["cut"]
        on_document(written)
    stream.flush()
    return written, cut


def _predictor(settings: PredictSettings, device: str, batch_size: int) -> "Predictor":
    return Predictor(
        load_model(settings.model),
        load_tokenizer(settings.model),
        overflow=settings.overflow,
        stride=settings.stride,
        device=device,
        precision=resolve_precision(settings.precision, device),
        batch_size=batch_size,
    )


def _write_lines(records: Iterable[dict[str, Any]], path: Path) -> None:
    path.write_text("".join(map(_line, records)), encoding="utf-8", newline="\n")


def _line(record: dict[str, Any]) -> str:
    # A file's name may hold bytes that are not UTF-8 (lone surrogates), which JSON can escape.
    return json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode() + "\n"


def _join(parts: Sequence[Path], output: Path) -> int:
    """Make the parts one file; returns how many documents were cut."""
    cut = 0
    with atomic_path(output) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:
        for part in parts:
            with part.open(encoding="utf-8", newline="\n") as lines:
                for line in lines:
                    cut += json.loads(line)["cut"]
                    stream.write(line)
    return cut


class Predictor:
    """A trained model with its tokenizer and task, which must be one that predicts something about a document.

    ``overflow`` and ``stride`` are those of `DocumentEncoder`; ``batch_size`` counts windows.
    """

    def __init__(
        self,
        model: LinformerPreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        overflow: str = "cut",
        stride: int | None = None,
        device: str,
        precision: str,
        batch_size: int,
    ) -> None:
        self.task = predicting_task(model, tokenizer)
        self.model = cast(nn.Module, model).to(device).eval()
        self.encode = self.task.encoder(
            reader_config(model.config).max_position_embeddings, overflow=overflow, stride=stride
        )
        self.windows = WindowReader(
            self.task.collate,
            lambda batch: self.task.respond(self.model, batch),
            device=device,
            precision=precision,
            batch_size=batch_size,
        )

    @property
    def record(self) -> Record:
        """What is read of a row, without what the task needs only for training."""
        usual = self.task.record.usual
        return self.task.record if usual.question or usual.called != TEXT.usual.called else TEXT

    def predict(self, documents: Iterable[Document]) -> Iterator[dict[str, Any]]:
        """A record for each document, in their order; batches hold documents of similar lengths."""
        for group in self.windows.groups(documents):
            yield from self.answer(group, self.prepare(group))

    def prepare(self, documents: Sequence[Document]) -> Windows:
        """The windows of some documents, all of which have a question or none of which has."""
        return self.encode([document.text for document in documents], _questions(documents))

    def answer(self, documents: Sequence[Document], windows: Windows) -> Iterator[dict[str, Any]]:
        """A record for each document, from the windows that :meth:`prepare` made of them."""
        columns = self.task.documents([document.text for document in documents], _questions(documents))
        answers = self.task.answers(self.windows.read(windows), windows, columns)
        sizes = zip(windows["document"], windows["num_tokens"], windows["length"], strict=True)
        tokens_and_read = {number: (tokens, read) for number, tokens, read in sizes}
        for number, document in enumerate(documents):
            tokens, read = tokens_and_read[number]
            question = {} if document.question is None else {"question": document.question}
            answer = self.task.describe(answers[number], document.text)
            cut = self.encode.overflow == "cut" and tokens > read
            yield {"document": document.where, **question, **answer, "tokens": tokens, "cut": cut}


def predicting_task(model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerFast) -> Task:
    """The task of a model; an ``InputError`` where it predicts nothing of a document."""
    task = task_of(model, tokenizer)
    if type(task).describe is Task.describe:
        raise InputError(f"{type(model).__name__} predicts nothing of a document: {task.instead}")
    return task


def _questions(documents: Sequence[Document]) -> list[str] | None:
    return [str(document.question) for document in documents] if documents[0].question is not None else None

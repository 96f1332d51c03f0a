"""A trained model's predictions for new documents, streamed: an input of any size will do."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

from torch import nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.columns import NOT_NAMED, NamedColumns
from torch_linformer.data.reading.readers import ReadReport
from torch_linformer.data.reading.records import TEXT, Record
from torch_linformer.data.reading.streamed import Document, documents_of
from torch_linformer.errors import InputError
from torch_linformer.inference.window_reader import WindowReader, Windows, what_was_read
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.model_folder import reader_config
from torch_linformer.reporting.files import atomic_path
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.task import Task


@contextmanager
def open_output(path: Path | None) -> Iterator[TextIO]:
    """A file to write lines to, which appears only when all are written without an error; or standard output."""
    if path is None:
        yield sys.stdout
        return
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        yield stream


def predict_files(
    predictor: "Predictor",
    files: Sequence[str],
    stream: TextIO,
    *,
    named: NamedColumns = NOT_NAMED,
    question: str | None = None,
    on_document: Callable[[int], object],
) -> str:
    """Write a JSON line for every document of some files ("-" is standard input), in their order.

    ``question`` is asked of every document, and ``on_document`` is called after each line, with how many there are.
    Returns a sentence: how many documents there were, and how many of them were cut, skipped or damaged.
    """
    if (question or named.question) and not predictor.record.usual.question:
        raise InputError("questions are for models trained with --task qa; this one answers without")
    report = ReadReport()
    written = cut = 0
    for record in predictor.predict(documents_of(files, predictor.record, named, report, question)):
        # A file's name may hold bytes that are not UTF-8 (lone surrogates), which JSON can escape.
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
        stream.write(line + "\n")
        written, cut = written + 1, cut + record["cut"]
        on_document(written)
    if not written:
        raise InputError(f"{', '.join(files)}: no document with any text")
    stream.flush()
    return what_was_read(written, "read", cut, predictor.encode.max_length, report)


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

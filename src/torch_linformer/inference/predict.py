"""A trained model on new documents, streaming: a line in, a line out, whatever the size of the input."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO, cast

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.columns import NOT_NAMED, NamedColumns
from torch_linformer.data.reading.readers import ReadReport, iter_rows, iter_stream
from torch_linformer.data.reading.records import TEXT, Record
from torch_linformer.data.reading.streamed import Document, documents
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.devices import autocast
from torch_linformer.opening.model_folder import reader_config
from torch_linformer.reporting.files import atomic_path
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.task import Task

BATCHES_AHEAD = 16  # documents of this many batches are read ahead, to be put into batches by length
GROUP_CHARACTERS = 10_000_000  # read ahead at most, but for the last document


@contextmanager
def open_output(path: Path) -> Iterator[TextIO]:
    """A file to write lines to, which appears under its name once all are written, and not at all on an error."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        yield stream


def predict_files(
    predictor: "Predictor",
    files: Sequence[str],
    stream: TextIO,
    *,
    named: NamedColumns = NOT_NAMED,
    question: str | None = None,
    on_document: Callable[[], object],
) -> str:
    """Write a JSON line for every document of some files ("-" is standard input), in their order.

    Args:
        predictor: what answers them.
        files: text files, JSON lines, CSV, Parquet, or folders of such.
        stream: takes the lines.
        named: the columns that are known.
        question: asked of every document.
        on_document: called after each line.

    Returns:
        How many documents there were, and how many of them were cut, skipped or damaged, as a sentence.
    """
    if (question or named.question) and not predictor.record.usual.question:
        raise InputError("questions are for models trained with --task qa; this one answers without")
    report = ReadReport()

    def everything() -> Iterator[Document]:
        for file in files:
            rows = iter_stream(sys.stdin.buffer, report) if file == "-" else iter_rows(file, report)
            yield from documents(rows, file, predictor.record, named, report, question)

    written = cut = 0
    for record in predictor.predict(everything()):
        # A file's name may hold what is no text (a lone surrogate): JSON has an escape for it.
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
        stream.write(line + "\n")
        on_document()
        written, cut = written + 1, cut + record["cut"]
    if not written:
        raise InputError(f"{', '.join(files)}: no document with any text")
    stream.flush()
    counts = (
        (f"cut at {predictor.encode.max_length:,} tokens", cut),
        ("skipped, without text", report.empty),
        ("with bytes that are not UTF-8", report.replaced),
    )
    notes = "".join(f", {number:,} {what}" for what, number in counts if number)
    return f"{written:,} document{'' if written == 1 else 's'} read{notes}"


class Predictor:
    """A model, its tokenizer and task, and where and how they compute.

    Args:
        model: a trained model.
        tokenizer: its tokenizer.
        overflow: "cut", or "windows" to read all of a long document.
        stride: tokens that neighbouring windows share.
        device: where it computes.
        precision: in which precision.
        batch_size: windows at once.
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
        self.task = task_of(model, tokenizer)
        if type(self.task).describe is Task.describe:
            raise InputError(f"{type(model).__name__} predicts nothing of a document: {self.task.instead}")
        self.model = cast(nn.Module, model).to(device).eval()
        self.encode = self.task.encoder(
            reader_config(model.config).max_position_embeddings, overflow=overflow, stride=stride
        )
        self.batch_size, self.device, self.precision = batch_size, device, precision

    @property
    def record(self) -> Record:
        """What is read of a row: nothing that the task would only learn from."""
        usual = self.task.record.usual
        return self.task.record if usual.question or usual.called != TEXT.usual.called else TEXT

    def predict(self, documents: Iterable[Document]) -> Iterator[dict[str, Any]]:
        """A record for each document, in their order; batches are put together by length."""
        for group in _groups(documents, self.batch_size * BATCHES_AHEAD):
            texts = [document.text for document in group]
            questions = [str(document.question) for document in group] if group[0].question is not None else None
            windows = self.encode(texts, questions)
            answers = self.task.answers(self._read(windows), windows, self.task.documents(texts, questions))
            tokens = dict(zip(windows["document"], windows["num_tokens"], strict=True))
            read = dict(zip(windows["document"], windows["length"], strict=True))
            for number, document in enumerate(group):
                cut = self.encode.overflow == "cut" and tokens[number] > read[number]
                question = {} if document.question is None else {"question": document.question}
                answer = self.task.describe(answers[number], document.text)
                yield {"document": document.where, **question, **answer, "tokens": tokens[number], "cut": cut}

    @torch.inference_mode()
    def _read(self, windows: dict[str, list]) -> list[Any]:
        """What the task keeps of the logits of each window."""
        order = sorted(range(len(windows["length"])), key=windows["length"].__getitem__)
        reduced: list[Any] = [None] * len(order)
        names = ("input_ids", "text_from")
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            batch = self.task.collate([{name: windows[name][i] for name in names} for i in numbers])
            with autocast(self.device, self.precision):
                kept = self.task.respond(self.model, {name: tensor.to(self.device) for name, tensor in batch.items()})
            for i, row in zip(numbers, kept.cpu().numpy(), strict=True):
                reduced[i] = row
        return reduced


def _groups(documents: Iterable[Document], size: int) -> Iterator[list[Document]]:
    """Documents in groups of ``size``, or of fewer where they are long."""
    group: list[Document] = []
    characters = 0
    for document in documents:
        group.append(document)
        characters += len(document.text)
        if len(group) == size or characters > GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group

"""A trained classifier on new documents, streaming: a line in, a line out, whatever the size of the input."""

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any, TextIO, cast

import torch
from torch import nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.models import LinformerForSequenceClassification, LinformerPreTrainedModel
from torch_linformer.reporting.files import atomic_path
from torch_linformer.training.columns import find_columns, read_text
from torch_linformer.training.devices import autocast
from torch_linformer.training.errors import InputError
from torch_linformer.training.readers import ReadReport, Row, iter_rows, iter_stream
from torch_linformer.training.tokenizer import DocumentEncoder

BATCHES_AHEAD = 16  # documents of this many batches are read ahead, to be put into batches by length
SAMPLE_ROWS = 100  # rows looked at to tell which column holds the text


@dataclass
class Skipped:
    """Documents without text: they get no line."""

    empty: int = 0


def documents(rows: Iterable[Row], source: str, text_column: str | None, skipped: Skipped) -> Iterator[tuple[str, str]]:
    """(where, text) of every row that has text; the text column is recognised as in training.

    Raises:
        InputError: the text column is missing or cannot be told.
    """
    rows = iter(rows)
    sample = list(islice(rows, SAMPLE_ROWS))
    if not sample:
        return
    columns = find_columns(sample, source, text=text_column, label=None, needs_label=False)
    for row in chain(sample, rows):
        text = read_text(row, columns.text)
        if text:
            yield row.where, text
        else:
            skipped.empty += 1


@contextmanager
def open_output(path: Path) -> Iterator[TextIO]:
    """A file to write lines to, which appears under its name once all are written, and not at all on an error."""
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8") as stream:
        yield stream


def label_files(
    classifier: "Classifier",
    files: Sequence[str],
    stream: TextIO,
    *,
    text_column: str | None = None,
    on_document: Callable[[], object],
) -> str:
    """Write a JSON line for every document of some files ("-" is standard input), in their order.

    Args:
        classifier: what labels them.
        files: text files, JSON lines, CSV, Parquet, or folders of such.
        stream: takes the lines.
        text_column: the column of the texts; recognised if None.
        on_document: called after each line.

    Returns:
        How many documents were labelled, and how many of them were cut, skipped or damaged, as a sentence.

    Raises:
        InputError: a file is missing or malformed, or none holds a document with text.
    """
    report, skipped = ReadReport(), Skipped()

    def everything() -> Iterator[tuple[str, str]]:
        for file in files:
            rows = iter_stream(sys.stdin.buffer, report) if file == "-" else iter_rows(file, report)
            yield from documents(rows, file, text_column, skipped)

    written = cut = 0
    for record in classifier.predict(everything()):
        # A file's name may hold what is no text (a lone surrogate): JSON has an escape for it.
        line = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
        stream.write(line + "\n")
        on_document()
        written, cut = written + 1, cut + record["cut"]
    if not written:
        raise InputError(f"{', '.join(files)}: no document with any text")
    stream.flush()
    counts = (
        (f"cut at {classifier.encode.max_length:,} tokens", cut),
        ("skipped, without text", skipped.empty),
        ("with bytes that are not UTF-8", report.replaced),
    )
    notes = "".join(f", {number:,} {what}" for what, number in counts if number)
    return f"{written:,} documents labelled{notes}"


class Classifier:
    """A model, its tokenizer, and where and how they compute.

    Raises:
        InputError: the model is no classifier.
    """

    def __init__(
        self,
        model: LinformerPreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        device: str,
        precision: str,
        batch_size: int,
    ) -> None:
        if not isinstance(model, LinformerForSequenceClassification):
            raise InputError(f"{type(model).__name__} predicts no labels: give a model trained with --task classify")
        self.model = cast(nn.Module, model).to(device).eval()
        self.encode = DocumentEncoder(tokenizer, model.config.max_position_embeddings)
        self.tokenizer, self.batch_size = tokenizer, batch_size
        self.device, self.precision = device, precision
        self.names = model.config.label_names

    def predict(self, documents: Iterable[tuple[str, str]]) -> Iterator[dict[str, Any]]:
        """A record for each (where, text), in their order; batches are put together by length."""
        for group in _groups(documents, self.batch_size * BATCHES_AHEAD):
            encoded = self.encode([text for _, text in group])
            order = sorted(range(len(group)), key=lambda i: encoded["length"][i])
            probabilities: dict[int, list[float]] = {}
            for start in range(0, len(order), self.batch_size):
                batch = order[start : start + self.batch_size]
                rows = self._probabilities([encoded["input_ids"][i] for i in batch])
                probabilities.update(zip(batch, rows, strict=True))
            for i, (where, _) in enumerate(group):
                yield self._record(where, probabilities[i], encoded["num_tokens"][i], encoded["length"][i])

    @torch.inference_mode()
    def _probabilities(self, ids: list[list[int]]) -> list[list[float]]:
        batch = self.tokenizer.pad({"input_ids": ids}, return_tensors="pt").to(self.device)
        with autocast(self.device, self.precision):
            logits = self.model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return torch.softmax(logits.float(), dim=-1).tolist()

    def _record(self, where: str, probabilities: list[float], num_tokens: int, length: int) -> dict[str, Any]:
        best = max(range(len(probabilities)), key=probabilities.__getitem__)
        return {
            "document": where,
            "label": self.names[best],
            "probabilities": {name: round(p, 6) for name, p in zip(self.names, probabilities, strict=True)},
            "tokens": num_tokens,
            "cut": num_tokens > length,
        }


def _groups(documents: Iterable[tuple[str, str]], size: int) -> Iterator[list[tuple[str, str]]]:
    iterator = iter(documents)
    while group := list(islice(iterator, size)):
        yield group

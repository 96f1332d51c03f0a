"""A trained model as a function of documents: their windows, batches of these, and an answer to each document."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerFast

from torch_linformer.data.reading.records import TEXT, Record
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import DocumentEncoder, document_means
from torch_linformer.encoders.classes import LinearConfig
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig, LinformerForConditionalGeneration
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.models.pooling import pool
from torch_linformer.opening.devices import autocast, resolve_device, resolve_precision
from torch_linformer.opening.load import AnyModel, longest_input, read_length, reader_config, reading_options
from torch_linformer.opening.sentence_transformers import document_vectors, sentence_settings
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.task import Batch, Task, pad_windows
from torch_linformer.tasks.whole_documents import Classification, MultiLabel

Windows = dict[str, list[Any]]  # the columns of a `DocumentEncoder`
Answer = dict[str, Any]

WINDOW = 256  # tokens that an encoder reads at once that is not linear: those of a passage that answers a question
BATCHES_AHEAD = 16  # batches of documents read ahead, to batch those of similar lengths
GROUP_CHARACTERS = 10_000_000  # read ahead at most, apart from the last document


class DocumentModel(ABC):
    """Documents → windows → batches → answers.

    An answer is a record with the ``document``'s place, its ``id`` and ``question`` if it has any, what the model says
    of it, its number of ``tokens``, and ``cut``, whether some of them were not read.

    ``encode`` makes windows of texts, of which ``batch_size`` are computed at once, as a padded batch by ``collate``.
    """

    record: Record = TEXT  # what is read of a row
    several = False  # vectors of a document
    width = 0  # numbers of a vector

    def __init__(
        self,
        encode: DocumentEncoder,
        collate: Callable[[list[dict[str, Any]]], Batch],
        *,
        device: str = "auto",
        precision: str = "auto",
        batch_size: int = 16,
    ) -> None:
        self.encode, self.collate, self.batch_size = encode, collate, batch_size
        self.device = resolve_device(device)
        self.precision = resolve_precision(precision, self.device)

    @abstractmethod
    def prepare(self, documents: Sequence[Document]) -> Windows:
        """The windows of some documents."""

    @abstractmethod
    def respond(self, batch: Batch) -> Tensor:
        """What is kept of a batch, a row for each window."""

    @abstractmethod
    def contents(self, documents: Sequence[Document], windows: Windows, values: Sequence[Any]) -> Iterable[Answer]:
        """What the model says of each document."""

    def answers(self, documents: Iterable[Document]) -> Iterator[Answer]:
        """An answer to each document, in their order; batches hold documents of similar lengths."""
        for group in in_groups(documents, self.batch_size):
            yield from self.answer(group, self.prepare(group))

    def answer(
        self, documents: Sequence[Document], windows: Windows, values: Sequence[Any] | None = None
    ) -> Iterator[Answer]:
        """An answer to each document, from its windows and what :meth:`read` gives of these, which are read if None."""
        values = self.read(windows) if values is None else values
        sizes = zip(windows["document"], windows["num_tokens"], windows["length"], strict=True)
        tokens_and_read = {number: (tokens, read) for number, tokens, read in sizes}
        for number, content in enumerate(self.contents(documents, windows, values)):
            tokens, read = tokens_and_read[number]
            cut = self.encode.overflow == "cut" and tokens > read
            yield {**identity(documents[number]), **content, "tokens": tokens, "cut": cut}

    @torch.inference_mode()
    def read(self, windows: Windows) -> list[Any]:
        """What is kept of each window, in their order, computed in batches of similar lengths."""
        order = sorted(range(len(windows["length"])), key=windows["length"].__getitem__)
        values: list[Any] = [None] * len(order)
        names = [name for name in ("input_ids", "text_from", "whole_ids") if name in windows]
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            batch = self.collate([{name: windows[name][number] for name in names} for number in numbers])
            with autocast(self.device, self.precision):
                rows = self.respond({name: tensor.to(self.device) for name, tensor in batch.items()})
            for number, row in zip(numbers, rows.cpu().numpy(), strict=True):
                values[number] = row
        return values


class TaskPredictor(DocumentModel):
    """What the task of a trained model predicts of a document; options as of `DocumentEmbedder` and `Predictor`.

    Raises:
        InputError: the task predicts nothing of a document, or no labels, which ``threshold`` and ``top_k`` are for.
    """

    def __init__(
        self,
        model: AnyModel | PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        overflow: str | None = None,
        stride: int | None = None,
        threshold: float | None = None,
        top_k: int | None = None,
        **computing: Any,
    ) -> None:
        self.task = task = task_of(model, tokenizer)
        if type(task).describe is Task.describe:
            raise InputError(f"{type(model).__name__} predicts nothing of a document: {task.instead}")
        if threshold is not None and not 0 < threshold < 1:
            raise InputError(f"--threshold must lie between 0 and 1, got {threshold:g}")
        if top_k is not None and top_k < 1:
            raise InputError(f"--top-k must be at least 1, got {top_k}")
        if isinstance(task, Classification | MultiLabel):
            task.threshold, task.top_k = task.threshold if threshold is None else threshold, top_k
        elif threshold is not None or top_k is not None:
            raise InputError("--threshold and --top-k are for models that predict labels, and this one does not")
        length = read_length(cast(AnyModel, model).config)
        super().__init__(task.encoder(length, overflow=overflow or "cut", stride=stride), task.collate, **computing)
        self.model: Any = cast(nn.Module, model).to(self.device).eval()
        if task.record.usual.text != TEXT.usual.text:  # else what the task needs only for training is not read
            self.record = task.record

    def prepare(self, documents: Sequence[Document]) -> Windows:
        """The windows of some documents, all of which have a question or none of which has."""
        columns = self.task.documents(documents)
        return self.encode(columns["text"], columns.get("question"))

    def respond(self, batch: Batch) -> Tensor:
        return self.task.respond(self.model, batch)

    def contents(self, documents: Sequence[Document], windows: Windows, values: Sequence[Any]) -> Iterator[Answer]:
        answers = self.task.answers(values, windows, self.task.documents(documents))
        return (self.task.describe(answers[number], document) for number, document in enumerate(documents))


class DocumentEmbedder(DocumentModel):
    """Vectors of documents, by any encoder.

    A vector is what the encoder's last hidden states pool to, as the folder says, divided by its length if it is to be
    normalized; its words may be a part of it, those of the whole document where it is cut. That of a document of
    several windows is their mean, each weighted by its tokens, before it is normalized. A model may make several
    vectors of a document; it reads one window of it. An encoder of transformers that is not linear reads documents in
    windows, which it was made for: the vectors are exactly its own.

    Args:
        folder: of the model, with or without a head, and its tokenizer; of an encoder-decoder its encoder reads.
        prompt_name: one of the folder's prompts, for documents whose prompt is not named; its default one if None.
        overflow: how long documents are read, see `DocumentEncoder`. If None, in windows by an encoder that is not
            linear, and where several vectors are wanted, unless they are pieces of one pass or have the words of a
            whole document; otherwise cut.
        stride: see `DocumentEncoder`; if None, windows of an encoder that is not linear, or with ``spans``, lie side by
            side.
        most: vectors of a document of windows, each the mean of neighboring ones; None for one a window.
        spans: whether an answer says, as ``spans``, where in the text what each vector stands for begins and ends.
        normalize: whether vectors have length 1.
        computing: the device, the precision and the batch size.
    """

    def __init__(
        self,
        folder: str,
        model: AnyModel | PreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        prompt_name: str | None = None,
        overflow: str | None = None,
        stride: int | None = None,
        most: int | None = 1,
        spans: bool = False,
        normalize: bool = True,
        **computing: Any,
    ) -> None:
        reader: Any = model.encoder if isinstance(model, LinformerForConditionalGeneration) else model.base_model
        config: Any = model.config
        vectors, settings = document_vectors(folder, reader_config(config)), sentence_settings(folder)
        self.reads_words = vectors.lexical is not None
        if not normalize and self.reads_words:
            raise InputError(
                "--no-normalize: a part of these vectors is made of words, and its share is that of vectors of length 1"
            )
        if vectors.most > 1 and (overflow == "windows" or not normalize):
            option = "--no-normalize" if overflow != "windows" else "--overflow windows"
            raise InputError(
                f"{option}: this model makes {vectors.most} vectors of length 1 of one window: leave it out"
            )
        self.is_linear = isinstance(reader.config, LinformerConfig | LinearConfig)
        if overflow is None:
            of_one_row = vectors.most > 1 or self.reads_words
            overflow = "windows" if not self.is_linear or (most != 1 and not of_one_row) else "cut"
        if stride is None and overflow == "windows" and (spans or not self.is_linear):
            stride = 0
        self.most = most if overflow == "windows" else 1
        self.several = vectors.most > 1 or self.most != 1
        self.settings, self.normalize = settings, normalize
        if self.is_linear:
            longest = settings.longest(read_length(reader.config))
        else:
            longest = settings.longest(longest_input(reader) or WINDOW)
            longest = min(longest, WINDOW) if overflow == "windows" else longest
        options: dict[str, Any] = {"overflow": overflow, "stride": stride, "whole": self.reads_words, "offsets": spans}
        self._encoder = cache(partial(DocumentEncoder, tokenizer, longest, **options))
        pad = partial(pad_windows, DataCollatorWithPadding(tokenizer), whole=self.reads_words)
        super().__init__(self._encoder(prompt=settings.prompt(prompt_name)), pad, **computing)
        self.encoder: Any = reader.to(self.device).eval()
        self.vectors = vectors.to(self.device)
        self.width = vectors.width(int(reader.config.hidden_size))

    @property
    def reading(self) -> str:
        """How it reads, in words that follow the model's name."""
        tokens = f"{self.encode.max_length:,} tokens"
        if self.encode.overflow == "cut":
            made = f"makes up to {self.vectors.most} vectors" if self.vectors.most > 1 else "makes a vector"
            return f"reads up to {tokens} of a document in one pass and {made} of them"
        made = {1: "makes a vector of their mean", None: "makes a vector of each"}.get(
            self.most, f"makes up to {self.most} vectors of their means"
        )
        return f"reads a document in windows of {tokens} and {made}"

    def prepare(self, documents: Sequence[Document], prompt_name: str | None = None) -> Windows:
        """The windows of some documents, perhaps with another prompt."""
        encode = self.encode if prompt_name is None else self._encoder(prompt=self.settings.prompt(prompt_name))
        return encode([document.text for document in documents])

    def respond(self, batch: Batch) -> Tensor:
        whole = batch.pop("whole_ids", None)
        options = reading_options(self.encoder.config)
        if self.reads_words or self.vectors.pieces is not None:
            vectors: Tensor = self.vectors(self.encoder, **batch, whole_ids=whole, **options)
            return vectors
        hidden = self.encoder(**batch, **options).last_hidden_state
        return pool(hidden.float(), batch["attention_mask"], self.vectors.pooling)

    def contents(self, documents: Sequence[Document], windows: Windows, values: Sequence[Any]) -> Iterator[Answer]:
        first = np.flatnonzero(np.diff(windows["document"], prepend=-1))
        count = np.diff(first, append=len(windows["document"]))  # windows of each document
        if self.vectors.most > 1:
            vectors_of = cast(PieceVectors, self.vectors.pieces).number(torch.tensor(windows["length"])).numpy()
            vectors = np.concatenate([rows[:kept] for rows, kept in zip(values, vectors_of, strict=True)])
        else:
            vectors_of = count if self.most is None else np.minimum(count, self.most)
            place = np.arange(len(values)) - np.repeat(first, count)
            piece = place * np.repeat(vectors_of, count) // np.repeat(count, count)
            piece += np.repeat(np.cumsum(vectors_of) - vectors_of, count)
            vectors = document_means(values, {"document": piece, "length": windows["length"]})
            if self.normalize:
                vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        for number, of_document in enumerate(np.split(vectors.astype(np.float32), np.cumsum(vectors_of)[:-1])):
            answer = {"embedding": of_document if self.several else of_document[0]}
            if self.encode.offsets:
                answer["spans"] = self._spans(windows, first[number], count[number], vectors_of[number])
            yield answer

    def _spans(self, windows: Windows, first: int, count: int, vectors: int) -> np.ndarray:
        """Begin and end, in characters, of what each vector of a document with these windows stands for."""
        if self.vectors.most > 1:  # of pieces of its only window
            tokens = np.arange(len(windows["starts"][first])) + windows["text_from"][first]
            piece = tokens * vectors // windows["length"][first]
            begins, ends = np.array(windows["starts"][first]), np.array(windows["ends"][first])
        else:
            piece = np.arange(count) * vectors // count
            begins, ends = (
                np.array([places[side] for places in windows[name][first : first + count]])
                for name, side in (("starts", 0), ("ends", -1))
            )
        numbers = np.arange(vectors)
        return np.stack(
            [begins[np.searchsorted(piece, numbers)], ends[np.searchsorted(piece, numbers, "right") - 1]], axis=1
        )


def identity(document: Document) -> Answer:
    """What an answer begins with: which document it is about."""
    names = {"document": document.where, "id": document.id, "question": document.question}
    return {name: value for name, value in names.items() if value is not None}


def in_groups(documents: Iterable[Document], batch_size: int) -> Iterator[list[Document]]:
    """Documents in groups of some batches, or of fewer where they are long."""
    group: list[Document] = []
    characters = 0
    for document in documents:
        group.append(document)
        characters += len(document.text)
        if len(group) == batch_size * BATCHES_AHEAD or characters > GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group

"""A trained model as a function of documents: their windows, batches of these, and an answer to each document."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.data.reading.records import TEXT, Record
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import DocumentEncoder, document_means
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForConditionalGeneration
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.models.pooling import DocumentVectors, pool
from torch_linformer.opening.devices import autocast
from torch_linformer.opening.model_folder import AnyModel, read_length, reader_config, reading_options
from torch_linformer.opening.sentence_transformers import (
    AS_THEY_ARE,
    SentenceSettings,
    document_vectors,
    sentence_settings,
)
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.task import Batch, Task, pad_windows
from torch_linformer.tasks.whole_documents import Classification, MultiLabel

Windows = dict[str, list[Any]]  # the columns of a `DocumentEncoder`
Answer = dict[str, Any]

BATCHES_AHEAD = 16  # batches of documents read ahead, to batch those of similar lengths
GROUP_CHARACTERS = 10_000_000  # read ahead at most, apart from the last document


class DocumentModel(ABC):
    """Documents → windows → batches → answers.

    An answer is a record with the ``document``'s place, its ``id`` and ``question`` if it has any, what the model says
    of it, its number of ``tokens``, and ``cut``, whether some of them were not read.

    Args:
        encode: makes windows of texts.
        device: where the model computes, and
        precision: in what.
        batch_size: windows computed at once.
    """

    record: Record = TEXT  # what is read of a row

    def __init__(self, encode: DocumentEncoder, *, device: str, precision: str, batch_size: int) -> None:
        self.encode, self.device, self.precision, self.batch_size = encode, device, precision, batch_size

    @abstractmethod
    def prepare(self, documents: Sequence[Document]) -> Windows:
        """The windows of some documents."""

    @abstractmethod
    def collate(self, windows: list[dict[str, Any]]) -> Batch:
        """A padded batch."""

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
        """An answer to each document, from the windows that :meth:`prepare` made of them.

        ``values`` are what :meth:`read` gives of these windows, which are read here if None.
        """
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
    """What the task of a trained model predicts; it must be one that predicts something of a document.

    ``overflow`` and ``stride`` are those of `DocumentEncoder`. ``threshold`` and ``top_k`` are for models that predict
    labels: see :class:`torch_linformer.inference.Predictor`.
    """

    def __init__(
        self,
        model: AnyModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        overflow: str = "cut",
        stride: int | None = None,
        threshold: float | None = None,
        top_k: int | None = None,
        **computing: Any,
    ) -> None:
        self.task = predicting_task(model, tokenizer)
        _choose_labels(self.task, threshold, top_k)
        super().__init__(self.task.encoder(read_length(model.config), overflow=overflow, stride=stride), **computing)
        self.model = cast(nn.Module, model).to(self.device).eval()
        if self.task.record.usual.text != TEXT.usual.text:  # else what the task needs only for training is not read
            self.record = self.task.record

    def prepare(self, documents: Sequence[Document]) -> Windows:
        """The windows of some documents, all of which have a question or none of which has."""
        columns = self.task.documents(documents)
        return self.encode(columns["text"], columns.get("question"))

    def collate(self, windows: list[dict[str, Any]]) -> Batch:
        return self.task.collate(windows)

    def respond(self, batch: Batch) -> Tensor:
        return self.task.respond(self.model, batch)

    def contents(self, documents: Sequence[Document], windows: Windows, values: Sequence[Any]) -> Iterator[Answer]:
        answers = self.task.answers(values, windows, self.task.documents(documents))
        return (self.task.describe(answers[number], document) for number, document in enumerate(documents))


class DocumentEmbedder(DocumentModel):
    """Vectors of documents, by any trained model.

    The vector is what the encoder's last hidden states pool to, as the folder of sentence-transformers or the
    configuration says, divided by its length if it is to be normalized. Where the folder says so, its words are a part
    of it, those of the whole document where it is cut. That of a document of several windows is their mean, each
    weighted by its tokens, before it is normalized. A model may make several vectors of a document; it reads one window
    of it.

    Args:
        model: with or without a head; of an encoder-decoder its encoder.
        tokenizer: of the model.
        vectors: what makes vectors of hidden states and words; by the configuration's pooling if None.
        settings: how texts are read, as a folder of sentence-transformers says.
        prompt_name: one of its prompts, for documents whose prompt is not named; its default one if None.
        overflow: how long documents are read, see `DocumentEncoder`, as for
        stride.
        normalize: whether vectors have length 1.
        computing: the device, the precision and the batch size.
    """

    def __init__(
        self,
        model: AnyModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        vectors: DocumentVectors | None = None,
        settings: SentenceSettings = AS_THEY_ARE,
        prompt_name: str | None = None,
        overflow: str = "cut",
        stride: int | None = None,
        normalize: bool = True,
        **computing: Any,
    ) -> None:
        reader: Any = model.encoder if isinstance(model, LinformerForConditionalGeneration) else model.base_model
        vectors = vectors or DocumentVectors(reader.config.pooling)
        self.reads_words = vectors.lexical is not None
        if not normalize and self.reads_words:
            raise InputError(
                "--no-normalize: a part of these vectors is made of words, and its share is that of vectors of length 1"
            )
        self.several = vectors.most > 1
        if self.several and (overflow == "windows" or not normalize):
            option = "--no-normalize" if overflow == "cut" else "--overflow windows"
            raise InputError(
                f"{option}: this model makes {vectors.most} vectors of length 1 of one window: leave it out"
            )
        self.settings, self.normalize = settings, normalize
        longest = settings.longest(read_length(reader.config))
        options: dict[str, Any] = {"overflow": overflow, "stride": stride, "whole": self.reads_words}
        self._encoder = cache(partial(DocumentEncoder, tokenizer, longest, **options))
        super().__init__(self._encoder(prompt=settings.prompt(prompt_name)), **computing)
        self.encoder: Any = reader.to(self.device).eval()
        self.vectors = vectors.to(self.device)
        self._pad = DataCollatorWithPadding(tokenizer)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.vectors.width(int(self.encoder.config.hidden_size))

    def prepare(self, documents: Sequence[Document], prompt_name: str | None = None) -> Windows:
        """The windows of some documents, perhaps with another prompt."""
        encode = self.encode if prompt_name is None else self._encoder(prompt=self.settings.prompt(prompt_name))
        return encode([document.text for document in documents])

    def collate(self, windows: list[dict[str, Any]]) -> Batch:
        return pad_windows(self._pad, windows, whole=self.reads_words)

    def respond(self, batch: Batch) -> Tensor:
        whole = batch.pop("whole_ids", None)
        options = reading_options(self.encoder.config)
        if self.reads_words or self.vectors.pieces is not None:
            return self.vectors.of_rows(self.encoder, **batch, whole_ids=whole, **options)
        hidden = self.encoder(**batch, **options).last_hidden_state
        return pool(hidden.float(), batch["attention_mask"], self.vectors.pooling)

    def contents(self, documents: Sequence[Document], windows: Windows, values: Sequence[Any]) -> Iterator[Answer]:
        if self.several:
            counts = cast(PieceVectors, self.vectors.pieces).number(torch.tensor(windows["length"])).tolist()
            return ({"embedding": vectors[:count]} for vectors, count in zip(values, counts, strict=True))
        vectors = document_means(values, windows)
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return ({"embedding": vector} for vector in vectors.astype(np.float32))


def embedder_of(folder: str, model: AnyModel, tokenizer: PreTrainedTokenizerFast, **options: Any) -> DocumentEmbedder:
    """What makes the vectors of a model folder; ``options`` are those of :class:`DocumentEmbedder`."""
    vectors = document_vectors(folder, reader_config(model.config))
    return DocumentEmbedder(model, tokenizer, vectors=vectors, settings=sentence_settings(folder), **options)


def predicting_task(model: AnyModel, tokenizer: PreTrainedTokenizerFast) -> Task:
    """The task of a model; an ``InputError`` where it predicts nothing of a document."""
    task = task_of(model, tokenizer)
    if type(task).describe is Task.describe:
        raise InputError(f"{type(model).__name__} predicts nothing of a document: {task.instead}")
    return task


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


def _choose_labels(task: Task, threshold: float | None, top_k: int | None) -> None:
    """Let a task predict labels above a probability, and tell the highest probabilities."""
    if threshold is None and top_k is None:
        return
    if not isinstance(task, Classification | MultiLabel):
        raise InputError("--threshold and --top-k are for models that predict labels, and this one does not")
    if threshold is not None and not 0 < threshold < 1:
        raise InputError(f"--threshold must lie between 0 and 1, got {threshold:g}")
    if top_k is not None and top_k < 1:
        raise InputError(f"--top-k must be at least 1, got {top_k}")
    task.threshold = task.threshold if threshold is None else threshold
    task.top_k = top_k

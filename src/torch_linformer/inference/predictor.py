"""A model folder as a function of texts, columns or documents, which can be sent to wherever it is to run."""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, overload

import numpy as np
from transformers import PreTrainedModel

from torch_linformer.data.reading.records import TAGGED
from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import (
    Answer,
    DocumentEmbedder,
    DocumentModel,
    TaskPredictor,
    identity,
)
from torch_linformer.opening.devices import compile_backbone
from torch_linformer.opening.load import AnyModel, load_model, load_reader, load_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder

Columns = dict[str, Any]


@dataclass(kw_only=True, eq=False)
class FolderModel(ABC):
    """What `Predictor` and `Embedder` share: made of a name and numbers, each can be built where it runs."""

    model: str | os.PathLike[str] = field(kw_only=False)
    text_column: str = "text"
    overflow: str | None = None
    stride: int | None = None
    device: str = "auto"
    precision: str = "auto"
    batch_size: int = 16
    compile: bool = False

    def __post_init__(self) -> None:
        names = ("overflow", "stride", "device", "precision", "batch_size")
        options = {name: getattr(self, name) for name in names}
        model, self.document_model = self._open(options)
        self.notices = [compile_backbone(model, self.document_model.device)] if self.compile else []
        self.overflow = self.document_model.encode.overflow
        self._read_columns = [self.text_column]

    @abstractmethod
    def _open(self, options: Mapping[str, Any]) -> tuple[PreTrainedModel, DocumentModel]:
        """The model of the folder, and what it is of documents, with these options and its own."""

    @property
    def folder(self) -> str:
        """Where the model lies."""
        return encoder_folder(os.fspath(self.model))

    @property
    def options(self) -> dict[str, Any]:
        """All arguments but the model."""
        return {item.name: getattr(self, item.name) for item in fields(self) if item.name != "model"}

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy opens the folder where it is: weights are not sent."""
        return partial(type(self), self.folder, **self.options), ()

    @property
    def max_length(self) -> int:
        """Tokens of a text that are read at once."""
        return self.document_model.encode.max_length

    def answers(self, documents: Sequence[Document]) -> list[Answer]:
        """The answers to some documents."""
        return list(self.document_model.answer(documents, self.document_model.prepare(documents))) if documents else []

    def _answer_columns(self, batch: Mapping[str, Any], *, keep_empty: bool = False) -> Columns:
        """The columns of a batch but its texts, and a column for each that the answers have."""
        others = {name: values for name, values in batch.items() if name != self.text_column}
        answers = self.answers([*self._documents(batch, keep_empty)])
        names = dict.fromkeys(name for answer in answers for name in answer if name not in ("document", "question"))
        return {**others, **{name: [answer.get(name) for answer in answers] for name in names}}

    def _documents(self, batch: Mapping[str, Any], keep_empty: bool) -> Iterator[Document]:
        for column in self._read_columns:
            if column not in batch:
                names = ", ".join(map(repr, batch.keys()))
                raise InputError(
                    f"no column {column!r} in a batch with {names}; name it with text_column, question_column"
                )
        rows = zip(*(batch[column] for column in self._read_columns), strict=True)
        for number, (text, *question) in enumerate(rows):
            words = None
            if self.document_model.record is TAGGED and isinstance(text, list | tuple | np.ndarray):
                words = tuple(text)
                text = " ".join(words) if all(isinstance(word, str) and word for word in words) else None
            cells = text, *question
            are_read = self.document_model.encode.reads([cell if isinstance(cell, str) else "" for cell in cells])
            if keep_empty and not are_read[0] and (text is None or isinstance(text, str)):
                yield Document("", "")
                continue
            for column, cell, is_read in zip(self._read_columns, cells, are_read, strict=True):
                if not is_read:
                    raise InputError(
                        f"row {number} of a batch: no text in column {column!r}, but {cell!r:.40}; filter it"
                    )
            yield Document("", text, question[0] if question else None, words)


@dataclass(kw_only=True, eq=False)
class Predictor(FolderModel):
    """What ``linformer predict`` computes, as a function of texts or of columns.

    It pickles as the name of its folder and its options, so ``map_batches`` of Ray Data can build it in its workers.

    Args:
        model: folder of a trained model, or a run of ``torch_linformer.train``.
        text_column: column of the texts; for a model of ``token-classify`` also of words, a list or array per row.
        question_column: column of the questions, for a model that answers them; ``question`` if None.
        overflow: how long documents are read, ``cut`` or ``windows``; ``cut`` if None.
        stride: tokens that neighboring windows share; a quarter of a window if None.
        threshold: of a model that predicts one label: below this probability ``label`` is None, nothing is predicted.
            Of several labels: the probability above which each is predicted; the one that training has found if None.
        top_k: number of ``probabilities`` in each answer, the highest first; all if None.
        device: ``auto`` takes a GPU if there is one; ``precision``: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        batch_size: windows computed at once; a batch of columns may have any number of rows.
        compile: use ``torch.compile``; the first batches are then slow.

    Raises:
        InputError: the folder holds no model that predicts anything, or an option is not for it.

    Example:
        >>> from torch_linformer import Predictor
        >>> predictor = Predictor("runs/posts")  # doctest: +SKIP
        >>> predictor({"id": [7], "text": ["The parcel never came."]})  # doctest: +SKIP
        {'id': [7], 'label': ['complaint'], 'probabilities': [{...}], 'tokens': [7], 'cut': [False]}
        >>> predictor(["The parcel never came."])  # doctest: +SKIP
        [{'label': 'complaint', 'probabilities': {...}, 'tokens': 7, 'cut': False}]
    """

    question_column: str | None = None
    threshold: float | None = None
    top_k: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.document_model.record.usual.question:
            self._read_columns.append(self.question_column or "question")
        elif self.question_column is not None:
            raise InputError("questions are for models trained with --task qa; this one answers without")

    def _open(self, options: Mapping[str, Any]) -> tuple[AnyModel, DocumentModel]:
        model, tokenizer = load_model(self.folder), load_tokenizer(self.folder)
        return model, TaskPredictor(model, tokenizer, threshold=self.threshold, top_k=self.top_k, **options)

    @overload
    def __call__(self, batch: Mapping[str, Any]) -> Columns: ...

    @overload
    def __call__(self, batch: Sequence[str]) -> list[Answer]: ...

    def __call__(self, batch: Mapping[str, Any] | Sequence[str]) -> Columns | list[Answer]:
        """The answers to some texts; or the columns of a batch without its texts, and the answers beside them.

        Args:
            batch: a list of texts; or columns by name, each with a value a row: lists, or arrays of NumPy.

        Returns:
            Of texts a record for each, as ``linformer predict`` writes it. Of columns the other ones as they came, then
            what such a record has, a column each, in place of columns of the same name.

        Raises:
            InputError: a column is missing, a row has no text or no question, or ``batch`` is one text and no list.
        """
        if isinstance(batch, Mapping):
            return self._answer_columns(batch)
        check_texts(batch)
        columns = self._answer_columns({self.text_column: batch})
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


@dataclass(kw_only=True, eq=False)
class Embedder(FolderModel):
    """What ``linformer embed`` computes, as a function of texts or of columns; it can be sent as a `Predictor` can.

    Args:
        model: any encoder: folder of a trained or adapted model, with or without a head, a run of
            ``torch_linformer.train``, an encoder of transformers or sentence-transformers, a name on the hub, or
            ``minilm``.
        overflow: as of `Predictor`; but if None, an encoder that is not linear reads in windows of 256 tokens.
        stride: as of `Predictor`; but if None, the windows of such an encoder share no tokens.
        normalize: whether vectors have length 1.
        prompt_name: which of the prompts of a folder of sentence-transformers is put before texts; its default one if
            None.
        keep_empty: whether a row of columns without text is no error and gets a vector of NaN.
        text_column: it, ``device``, ``precision``, ``batch_size`` and ``compile`` are those of `Predictor`.

    Raises:
        InputError: the folder holds no model, or an option is not for it.

    Example:
        >>> from torch_linformer import Embedder
        >>> embedder = Embedder("minilm")  # doctest: +SKIP
        >>> embedder(["The parcel never came.", "Where is my order?"]).shape  # doctest: +SKIP
        (2, 384)
    """

    normalize: bool = True
    prompt_name: str | None = None
    keep_empty: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.document_model, DocumentEmbedder) and not self.document_model.is_linear:
            self.notices.append(f"{os.fspath(self.model)} {self.document_model.reading}")

    def _open(self, options: Mapping[str, Any]) -> tuple[PreTrainedModel, DocumentModel]:
        model, tokenizer = load_reader(self.folder), load_tokenizer(self.folder)
        own: dict[str, Any] = {"normalize": self.normalize, "prompt_name": self.prompt_name}
        return model, DocumentEmbedder(self.folder, model, tokenizer, **own, **options)

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.document_model.width

    def answers(self, documents: Sequence[Document]) -> list[Answer]:
        """The answers to some documents; the vector of one without text is NaN."""
        answers = iter(super().answers([document for document in documents if document.text]))
        nothing = np.full((1, self.width) if self.document_model.several else self.width, np.nan, dtype=np.float32)
        return [
            next(answers) if document.text else {**identity(document), "embedding": nothing, "tokens": 0, "cut": False}
            for document in documents
        ]

    @overload
    def __call__(self, batch: Mapping[str, Any]) -> Columns: ...

    @overload
    def __call__(self, batch: Sequence[str]) -> np.ndarray | Any: ...  # Any: for most models it is an array

    def __call__(self, batch: Mapping[str, Any] | Sequence[str]) -> Any:
        """The vectors of some texts, an array ``(texts, width)`` in float32; of a model that makes several a list.

        That has an array ``(vectors, width)`` for each text: up to ``--vectors`` of the training, one of a text of 64
        tokens or fewer. A query finds the document with the largest product of any two. Of columns by name, as a
        `Predictor` takes them, the others as they came, then ``embedding``, ``tokens`` and ``cut``.

        Raises:
            InputError: a text is empty, a column is missing, or this is one text and no list.
        """
        if not isinstance(batch, Mapping):
            check_texts(batch)
            if not len(batch):
                return [] if self.document_model.several else np.zeros((0, self.width), dtype=np.float32)
            return self({self.text_column: batch})["embedding"]
        columns = self._answer_columns(batch, keep_empty=self.keep_empty)
        if "embedding" in columns and not self.document_model.several:
            columns["embedding"] = np.stack(columns["embedding"])
        return columns


def check_texts(texts: Any) -> None:
    """Raise ``InputError`` for one text where a list of them is expected."""
    if isinstance(texts, str | bytes):
        raise InputError(f"a list of texts is needed, got one text: give [{texts!r:.40}]")

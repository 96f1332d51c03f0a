"""A model folder as a function of texts, columns or documents, which can be sent to wherever it is to run."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import partial
from typing import Any, overload

import numpy as np

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
from torch_linformer.opening.load import load_model, load_reader, load_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder

Columns = dict[str, Any]


@dataclass(kw_only=True, eq=False)
class _Options:
    """What `Predictor` and `Embedder` share."""

    model: str | os.PathLike[str] = field(kw_only=False)
    overflow: str | None = None
    stride: int | None = None
    normalize: bool = True
    prompt_name: str | None = None
    device: str = "auto"
    precision: str = "auto"
    batch_size: int = 16
    compile: bool = False


@dataclass(kw_only=True, eq=False)
class Predictor(_Options):
    """What ``linformer predict`` and ``linformer embed`` compute, as a function of texts or of columns.

    It pickles as the name of its folder and its options, so ``map_batches`` of Ray Data can build it in its workers.

    Args:
        model: folder of a trained model, or a run of ``torch_linformer.train``; with ``vectors`` any encoder.
        vectors: make a vector of each document, as ``linformer embed``, instead of what the model's task predicts.
        text_column: column of the texts; for a model of ``token-classify`` also of words, a list or array per row.
        question_column: column of the questions, for a model that answers them; ``question`` if None.
        overflow: how long documents are read, ``cut`` or ``windows``. If None they are cut, unless vectors are made by
            an encoder that is not linear, which reads them in windows of 256 tokens, side by side.
        stride: tokens that neighboring windows share; a quarter of a window if None, but 0 for such an encoder.
        threshold: of a model that predicts one label: below this probability ``label`` is None, nothing is predicted.
            Of several labels: the probability above which each is predicted; the one that training has found if None.
        top_k: number of ``probabilities`` in each answer, the highest first; all if None.
        normalize: whether vectors have length 1.
        keep_empty: give a row without text a vector of NaN instead of an error.
        prompt_name: prompt of a sentence-transformers folder to put before the texts; its default one if None.
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

    vectors: bool = False
    text_column: str = "text"
    question_column: str | None = None
    threshold: float | None = None
    top_k: int | None = None
    keep_empty: bool = False

    def __post_init__(self) -> None:
        if self.vectors and (self.threshold is not None or self.top_k is not None):
            raise InputError("threshold and top_k are for predictions of labels: leave out vectors=True")
        if not self.vectors and not self.normalize:
            raise InputError("normalize=False is for vectors=True: a prediction has no length")
        if not self.vectors and self.keep_empty:
            raise InputError("keep_empty=True is for vectors=True: there is no prediction without text")
        if not self.vectors and self.prompt_name is not None:
            raise InputError("prompt_name is for vectors=True: what a task reads has no prompts")
        own = ("normalize", "prompt_name") if self.vectors else ("threshold", "top_k")
        names = ("overflow", "stride", "device", "precision", "batch_size", *own)
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        model: Any = load_reader(self.folder) if self.vectors else load_model(self.folder)
        tokenizer, self.notices = load_tokenizer(self.folder), list[str]()
        if self.vectors:
            self.document_model: DocumentModel = DocumentEmbedder(self.folder, model, tokenizer, **options)
        else:
            self.document_model = TaskPredictor(model, tokenizer, **options)
        if self.compile:
            self.notices.append(compile_backbone(model, self.document_model.device))
        if isinstance(self.document_model, DocumentEmbedder) and not self.document_model.is_linear:
            self.notices.append(f"{os.fspath(self.model)} {self.document_model.reading}")
        self.overflow = self.document_model.encode.overflow
        self._asks = bool(self.document_model.record.usual.question)
        if self.question_column is not None and not self._asks:
            raise InputError("questions are for models trained with --task qa; this one answers without")

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
        return partial(Predictor, self.folder, **self.options), ()

    @property
    def max_length(self) -> int:
        """Tokens of a text that are read at once."""
        return self.document_model.encode.max_length

    def answers(self, documents: Sequence[Document]) -> list[Answer]:
        """The answers to some documents; the vector of one without text is NaN."""
        model, texts = self.document_model, [document for document in documents if document.text]
        answers = model.answer(texts, model.prepare(texts)) if texts else iter(())
        nothing = np.full((1, model.width) if model.several else model.width, np.nan, dtype=np.float32)
        return [
            next(answers) if document.text else {**identity(document), "embedding": nothing, "tokens": 0, "cut": False}
            for document in documents
        ]

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
            what such a record has, a column each, in place of columns of the same name; or ``embedding``, an array
            ``(rows, C)`` in float32, or a list of ``(vectors, C)`` from a model that makes several vectors of a text.

        Raises:
            InputError: a column is missing, a row has no text or no question, unless it is to be kept, or ``batch`` is
                one text and no list.
        """
        if not isinstance(batch, Mapping):
            check_texts(batch)
            columns = self({self.text_column: batch})
            return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
        others = {name: values for name, values in batch.items() if name != self.text_column}
        answers = self.answers(self._documents(batch))
        names = dict.fromkeys(name for answer in answers for name in answer if name not in ("document", "question"))
        columns = {name: [answer.get(name) for answer in answers] for name in names}
        if "embedding" in columns and not self.document_model.several:
            columns["embedding"] = np.stack(columns["embedding"])
        return {**others, **columns}

    def _documents(self, batch: Mapping[str, Any]) -> list[Document]:
        """The rows of a batch of columns."""
        chosen = [self.text_column, *([self.question_column or "question"] if self._asks else [])]
        for column in chosen:
            if column not in batch:
                names = ", ".join(map(repr, batch.keys()))
                raise InputError(
                    f"no column {column!r} in a batch with {names}; name it with text_column, question_column"
                )
        documents = []
        for number, (text, *question) in enumerate(zip(*(batch[column] for column in chosen), strict=True)):
            words = None
            if self.document_model.record is TAGGED and isinstance(text, list | tuple | np.ndarray):
                words = tuple(text)
                text = " ".join(words) if all(isinstance(word, str) and word for word in words) else None
            cells = text, *question
            has_text = self.document_model.encode.reads([cell if isinstance(cell, str) else "" for cell in cells])
            if self.keep_empty and not has_text[0] and (text is None or isinstance(text, str)):
                documents.append(Document("", ""))
                continue
            for column, cell, is_read in zip(chosen, cells, has_text, strict=True):
                if not is_read:
                    raise InputError(
                        f"row {number} of a batch: no text in column {column!r}, but {cell!r:.40}; filter it"
                    )
            documents.append(Document("", text, question[0] if question else None, words))
        return documents


@dataclass(kw_only=True, eq=False)
class Embedder(_Options):
    """What ``linformer embed`` computes, as a function from texts to an array.

    Args:
        model: any encoder: folder of a trained or adapted model, with or without a head, a run of
            ``torch_linformer.train``, an encoder of transformers or sentence-transformers, a name on the hub, or
            ``minilm``. The others are those of :class:`Predictor`; a call may have any number of texts.

    Raises:
        InputError: the folder holds no model, or an option is not for it.

    Example:
        >>> from torch_linformer import Embedder
        >>> embedder = Embedder("minilm")  # doctest: +SKIP
        >>> embedder(["The parcel never came.", "Where is my order?"]).shape  # doctest: +SKIP
        (2, 384)
    """

    def __post_init__(self) -> None:
        self._predictor = Predictor(**{item.name: getattr(self, item.name) for item in fields(self)}, vectors=True)

    @property
    def max_length(self) -> int:
        """Tokens of a text that are read at once."""
        return self._predictor.max_length

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self._predictor.document_model.width

    def __call__(self, texts: Sequence[str]) -> np.ndarray | Any:  # Any: for most models it is an array
        """The vectors of some texts, an array ``(texts, width)`` in float32; of a model that makes several a list.

        That has an array ``(vectors, width)`` for each text: up to ``--vectors`` of the training, one of a text of 64
        tokens or fewer. A query finds the document with the largest product of any two.

        Raises:
            InputError: a text is empty, or this is one text and no list.
        """
        check_texts(texts)
        if not len(texts):
            return [] if self._predictor.document_model.several else np.zeros((0, self.width), dtype=np.float32)
        return self._predictor({"text": texts})["embedding"]


def check_texts(texts: Any) -> None:
    """Raise ``InputError`` for one text where a list of them is expected."""
    if isinstance(texts, str | bytes):
        raise InputError(f"a list of texts is needed, got one text: give [{texts!r:.40}]")

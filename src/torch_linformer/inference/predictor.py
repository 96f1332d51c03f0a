"""A model folder as a function of columns, which can be sent to wherever it is to run."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np

from torch_linformer.data.reading.records import TAGGED, TEXT, Record
from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference.embedder import DocumentEmbedder, Embedded, embedder_of
from torch_linformer.inference.task_predictor import TaskPredictor
from torch_linformer.opening.devices import compile_backbone, resolve_device, resolve_precision
from torch_linformer.opening.model_folder import load_model, load_tokenizer

Columns = dict[str, Any]


class Predictor:
    """What ``linformer predict`` and ``linformer embed`` compute, as a function of texts or of columns.

    It is made of a name and numbers, so it can be built where it runs: it is what ``map_batches`` of Ray Data takes,
    one model a worker, and what ``--workers`` and ``--engine ray`` of the commands run.

    Args:
        model: folder of a trained model, or a run of ``torch_linformer.train``.
        vectors: make a vector of each document, as ``linformer embed``, instead of what the model's task predicts.
        text_column: column of the texts; for a model of ``token-classify`` also of words, a list or array a row.
        question_column: column of the questions, for a model that answers them; ``question`` if None.
        overflow: how long documents are read, ``cut`` or ``windows``, as for
        stride: tokens that neighboring windows share; a quarter of a window if None.
        threshold: of a model that predicts one label: below this probability ``label`` is None, nothing is predicted.
            Of several labels: the probability above which each is predicted; the one that training has found if None.
        top_k: how many ``probabilities`` of labels are told, the highest first; all if None.
        normalize: whether vectors have length 1.
        keep_empty: whether a row without text is no error and gets a vector of NaN.
        prompt_name: which of the prompts of a folder of sentence-transformers is put before texts; its default one if
            None.
        device: ``auto`` takes a GPU if there is one.
        precision: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        batch_size: windows computed at once; a batch of columns may have any number of rows.
        compile: whether torch.compile makes the kernels, which the first batches wait for.

    Raises:
        InputError: the folder holds no model that predicts anything, or an option is not for it.

    Example:
        >>> predictor = Predictor("runs/posts")  # doctest: +SKIP
        >>> predictor({"id": [7], "text": ["The parcel never came."]})  # doctest: +SKIP
        {'id': [7], 'label': ['complaint'], 'probabilities': [{...}], 'tokens': [7], 'cut': [False]}
        >>> predictor(["The parcel never came."])  # doctest: +SKIP
        [{'label': 'complaint', 'probabilities': {...}, 'tokens': 7, 'cut': False}]
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        vectors: bool = False,
        text_column: str = "text",
        question_column: str | None = None,
        overflow: str = "cut",
        stride: int | None = None,
        threshold: float | None = None,
        top_k: int | None = None,
        normalize: bool = True,
        keep_empty: bool = False,
        prompt_name: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        batch_size: int = 16,
        compile: bool = False,
    ) -> None:
        if not vectors:
            _check_no_vectors(normalize, keep_empty, prompt_name)
        elif threshold is not None or top_k is not None:
            raise InputError("threshold and top_k are for predictions of labels: leave out vectors=True")
        model = self.model = os.fspath(model)
        self.options: dict[str, Any] = {
            "vectors": vectors,
            "text_column": text_column,
            "question_column": question_column,
            "overflow": overflow,
            "stride": stride,
            "threshold": threshold,
            "top_k": top_k,
            "normalize": normalize,
            "keep_empty": keep_empty,
            "prompt_name": prompt_name,
            "device": device,
            "precision": precision,
            "batch_size": batch_size,
            "compile": compile,
        }
        device = resolve_device(device)
        shared: dict[str, Any] = {"overflow": overflow, "stride": stride, "batch_size": batch_size}
        shared |= {"device": device, "precision": resolve_precision(precision, device)}
        loaded, tokenizer = load_model(model), load_tokenizer(model)
        self.notice = compile_backbone(loaded, device) if compile else ""
        self._answers: DocumentEmbedder | TaskPredictor = (
            embedder_of(model, loaded, tokenizer, normalize=normalize, prompt_name=prompt_name, **shared)
            if vectors
            else TaskPredictor(loaded, tokenizer, threshold=threshold, top_k=top_k, **shared)
        )
        self.text_column = text_column
        self.question_column = (question_column or "question") if self.record.usual.question else None
        if question_column is not None and self.question_column is None:
            raise InputError("questions are for models trained with --task qa; this one answers without")

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy opens the folder where it is: weights are not sent."""
        return partial(Predictor, self.model, **self.options), ()

    @property
    def record(self) -> Record:
        """What is read of a row of a user's table."""
        return TEXT if isinstance(self._answers, DocumentEmbedder) else self._answers.record

    @property
    def max_length(self) -> int:
        """Tokens of a text that are read at once."""
        return self._answers.encode.max_length

    @property
    def width(self) -> int:
        """Numbers of a vector, with ``vectors=True``."""
        if not isinstance(self._answers, DocumentEmbedder):
            raise InputError("width is that of vectors=True: a prediction has none")
        return self._answers.width

    @overload
    def __call__(self, batch: Mapping[str, Any]) -> Columns: ...

    @overload
    def __call__(self, batch: Sequence[str]) -> list[dict[str, Any]]: ...

    def __call__(self, batch: Mapping[str, Any] | Sequence[str]) -> Columns | list[dict[str, Any]]:
        """The answers to some texts; or the columns of a batch without its texts, and the answers beside them.

        Args:
            batch: a list of texts; or columns by name, each with a value a row: lists, or arrays of NumPy.

        Returns:
            Of texts a record for each, as ``linformer predict`` writes it. Of columns:
            The other columns as they came, then ``tokens`` of the whole document and ``cut``, whether some of them were
            not read, and before these: ``embedding``, an array ``(rows, C)`` in float32; or what a line of ``linformer
            predict`` has, such as ``label`` and ``probabilities``. An answer takes the place of a column of its name.

        Raises:
            InputError: a column is missing, a row has no text or no question, unless it is to be kept, or ``batch`` is
                one text and no list.
        """
        if not isinstance(batch, Mapping):
            check_texts(batch)
            answers = self({self.text_column: batch})
            return [dict(zip(answers, row, strict=True)) for row in zip(*answers.values(), strict=True)]
        columns = {name: values for name, values in batch.items() if name != self.text_column}
        texts = self._cells(batch, self.text_column)
        asked = self._cells(batch, self.question_column) if self.question_column else [None] * len(texts)
        documents = [self._document(*cells) for cells in enumerate(zip(texts, asked, strict=True))]
        if not documents:
            return columns
        if isinstance(self._answers, TaskPredictor):
            windows = self._answers.prepare(documents)
            records = list(self._answers.answer(documents, windows))
            names = dict.fromkeys(name for record in records for name in record if name not in ("document", "question"))
            return {**columns, **{name: [record.get(name) for record in records] for name in names}}
        return {**columns, **_vectors(self._answers, documents)}

    def _cells(self, batch: Mapping[str, Any], column: str) -> list[Any]:
        if column not in batch:
            names = ", ".join(map(repr, batch.keys()))
            raise InputError(f"no column {column!r} in a batch with {names}; name it with text_column, question_column")
        return list(batch[column])

    def _document(self, number: int, cells: tuple[Any, Any]) -> Document:
        text, question = cells
        if self.record is TAGGED and isinstance(text, list | tuple | np.ndarray):
            words = tuple(text)
            text = " ".join(words) if all(isinstance(word, str) and word for word in words) else None
        else:
            words = None
        if self.options["keep_empty"] and (text is None or (isinstance(text, str) and not text.strip())):
            return Document("", "")
        for column, cell in ((self.text_column, text), (self.question_column, question)):
            if column is not None and (not isinstance(cell, str) or not cell.strip()):
                raise InputError(f"row {number} of a batch: no text in column {column!r}, but {cell!r:.40}; filter it")
        return Document("", text, question, words)


def check_texts(texts: Any) -> None:
    """Raise ``InputError`` for one text where a list of them is expected."""
    if isinstance(texts, str | bytes):
        raise InputError(f"a list of texts is needed, got one text: give [{texts!r:.40}]")


def _check_no_vectors(normalize: bool, keep_empty: bool, prompt_name: str | None) -> None:
    """Raise an `InputError` for what only vectors have."""
    if not normalize:
        raise InputError("normalize=False is for vectors=True: a prediction has no length")
    if keep_empty:
        raise InputError("keep_empty=True is for vectors=True: there is no prediction without text")
    if prompt_name is not None:
        raise InputError("prompt_name is for vectors=True: what a task reads has no prompts")


def _vectors(embedder: DocumentEmbedder, documents: Sequence[Document]) -> Columns:
    """The vectors of some documents as columns; one without text has NaN."""
    texts = [document for document in documents if document.text]
    rows = iter(embedder.answer(texts, embedder.prepare(texts)) if texts else ())
    nothing = Embedded("", np.full(embedder.width, np.nan, dtype=np.float32), 0, False)
    answers = [next(rows) if document.text else nothing for document in documents]
    return {
        "embedding": np.stack([answer.embedding for answer in answers]),
        "tokens": [answer.tokens for answer in answers],
        "cut": [answer.cut for answer in answers],
    }

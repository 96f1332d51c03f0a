"""A model folder as a function of columns, which can be sent to wherever it is to run."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from torch_linformer.data.reading.records import TEXT, Record
from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference.embedder import Embedder, embedder_of
from torch_linformer.inference.task_predictor import TaskPredictor
from torch_linformer.opening.compiling import compile_backbone
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.model_folder import load_model, load_tokenizer

Columns = dict[str, Any]


class Predictor:
    """What ``linformer predict`` and ``linformer embed`` compute, as a function from columns to columns.

    It is made of a name and numbers, so it can be built where it runs: it is what ``map_batches`` of Ray Data takes,
    one model a worker, and what ``--workers`` and ``--engine ray`` of the commands run.

    Args:
        model: folder of a trained model.
        vectors: make a vector of each document, as ``linformer embed``, instead of what the model's task predicts.
        text_column: column of the texts.
        question_column: column of the questions, for a model that answers them; ``question`` if None.
        overflow: how long documents are read, ``cut`` or ``windows``, as for
        stride: tokens that neighboring windows share; a quarter of a window if None.
        normalize: whether vectors have length 1.
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
    """

    def __init__(
        self,
        model: str,
        *,
        vectors: bool = False,
        text_column: str = "text",
        question_column: str | None = None,
        overflow: str = "cut",
        stride: int | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        batch_size: int = 16,
        compile: bool = False,
    ) -> None:
        if not (vectors or normalize):
            raise InputError("normalize=False is for vectors=True: a prediction has no length")
        if prompt_name is not None and not vectors:
            raise InputError("prompt_name is for vectors=True: what a task reads has no prompts")
        self.model = model
        self.options: dict[str, Any] = {
            "vectors": vectors,
            "text_column": text_column,
            "question_column": question_column,
            "overflow": overflow,
            "stride": stride,
            "normalize": normalize,
            "prompt_name": prompt_name,
            "device": device,
            "precision": precision,
            "batch_size": batch_size,
            "compile": compile,
        }
        device = resolve_device(device)
        shared: dict[str, Any] = {
            "overflow": overflow,
            "stride": stride,
            "device": device,
            "precision": resolve_precision(precision, device),
            "batch_size": batch_size,
        }
        loaded, tokenizer = load_model(model), load_tokenizer(model)
        self.notice = compile_backbone(loaded, device) if compile else ""
        self._answers: Embedder | TaskPredictor = (
            embedder_of(model, loaded, tokenizer, normalize=normalize, prompt_name=prompt_name, **shared)
            if vectors
            else TaskPredictor(loaded, tokenizer, **shared)
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
        return TEXT if isinstance(self._answers, Embedder) else self._answers.record

    @property
    def max_length(self) -> int:
        """Tokens of a text that are read at once."""
        return self._answers.encode.max_length

    def __call__(self, batch: Mapping[str, Any]) -> Columns:
        """The columns of a batch without its texts, and the answers beside them.

        Args:
            batch: columns by name, each with a value a row: lists, or arrays of NumPy.

        Returns:
            The other columns as they came, then ``tokens`` of the whole document and ``cut``, whether some of them were
            not read, and before these: ``embedding``, an array ``(rows, C)`` in float32; or what a line of ``linformer
            predict`` has, such as ``label`` and ``probabilities``. An answer takes the place of a column of its name.

        Raises:
            InputError: a column is missing, or a row has no text or no question.
        """
        columns = {name: values for name, values in batch.items() if name != self.text_column}
        texts = self._texts(batch, self.text_column)
        asked = self._texts(batch, self.question_column) if self.question_column else [None] * len(texts)
        documents = [Document("", *each) for each in zip(texts, asked, strict=True)]
        if not documents:
            return columns
        windows = self._answers.prepare(documents)
        if isinstance(self._answers, TaskPredictor):
            records = list(self._answers.answer(documents, windows))
            names = [name for name in records[0] if name not in ("document", "question")]
            return {**columns, **{name: [record[name] for record in records] for name in names}}
        found = list(self._answers.answer(documents, windows))
        return {
            **columns,
            "embedding": np.stack([row.embedding for row in found]),
            "tokens": [row.tokens for row in found],
            "cut": [row.cut for row in found],
        }

    def _texts(self, batch: Mapping[str, Any], column: str) -> list[str]:
        if column not in batch:
            there = ", ".join(map(repr, batch.keys()))
            raise InputError(f"no column {column!r} in a batch with {there}; name it with text_column, question_column")
        texts = list(batch[column])
        for number, text in enumerate(texts):
            if not isinstance(text, str) or not text.strip():
                raise InputError(f"row {number} of a batch: no text in column {column!r}, but {text!r:.40}; filter it")
        return texts

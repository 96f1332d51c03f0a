"""What a task adds to a run: how its documents are read, its model, its batches, its answers and its scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.data.packing import PackedText
from torch_linformer.data.parts import GROUP
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import Documents, load_documents
from torch_linformer.data.reading.records import Record
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import DocumentEncoder, tokenize_documents
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerPreTrainedModel

ColumnLists = Mapping[str, Sequence[Any]]  # a Dataset, or the same as plain lists
Batch = dict[str, Tensor]

IGNORED = -100  # a target that takes no part in the loss


@dataclass(frozen=True)
class Examples:
    """Documents, the windows of them that a model reads, and the tokens of each document before anything is cut."""

    documents: Dataset
    windows: Dataset | PackedText
    num_tokens: np.ndarray


class Task(ABC):
    """What a run needs to know of a task.

    Documents become windows of token ids (:mod:`torch_linformer.data.windows`), a model answers each window, and the
    answers to a document's windows become that to the document, which is scored. Training, ``linformer evaluate`` and
    ``linformer predict`` all do so.

    Args:
        tokenizer: pads batches.
        names: the labels, if the task has any.
        lexical: whether the model has a lexical head, which reads the words of whole documents.
    """

    record: ClassVar[Record]  # how a document is read from a row
    model_class: ClassVar[type[LinformerPreTrainedModel]]
    best_metric: ClassVar[str]  # the score that picks the checkpoint
    larger_is_better: ClassVar[bool] = True  # of that score
    headline: ClassVar[tuple[str, ...]]  # the scores that head the report
    validated: ClassVar[tuple[str, ...]] = ()  # those shown during training; the headline if empty
    offsets: ClassVar[bool] = False  # whether the windows must tell which characters a token stands for
    least_labels: ClassVar[int] = 0  # how many different labels the documents must have; 0 where they have none
    together: ClassVar[str] = GROUP  # the column whose equal values stay in one part of the data, by default
    pipeline_tag: ClassVar[str] = "text-classification"  # what the hub calls the task
    instead: ClassVar[str] = "train a model on another --task"  # what to do where ``linformer predict`` has no use
    counted: ClassVar[str] = "documents"  # what is scored, in words
    # Lines of Python for the model card that use ``tokenizer`` and ``model``.
    usage: str = """\
inputs = tokenizer("a document", truncation=True, return_tensors="pt")
outputs = model(**inputs)"""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, names: Sequence[str] = (), *, lexical: bool = False) -> None:
        self.tokenizer, self.names, self.lexical = tokenizer, list(names), lexical
        self.prompt = ""  # before each document; an embedder's folder may have another default
        self.pad = DataCollatorWithPadding(tokenizer)

    @classmethod
    def load(
        cls, source: str, documents: str | None, options: DataOptions, *, part: str = "train", max_errors: int = 0
    ) -> Documents:
        """The documents of a source; ``documents`` names a second table, which only a search has."""
        if documents is not None:
            raise InputError("--documents is for --task embed, whose queries may have documents in another table")
        return load_documents(source, cls.record, options=options, part=part, max_errors=max_errors)

    @property
    def config(self) -> dict[str, Any]:
        """What the task sets in the configuration of a new model."""
        return {}

    def encoder(
        self, max_length: int, *, overflow: str = "cut", stride: int | None = None, whole: bool = False
    ) -> DocumentEncoder:
        """What makes the task's windows, by the arguments of :class:`DocumentEncoder`; whole where words are read."""
        options: dict[str, Any] = {"overflow": overflow, "stride": stride, "offsets": self.offsets}
        options |= {"prompt": self.prompt, "whole": whole or self.lexical}
        return DocumentEncoder(self.tokenizer, max_length, **options)

    def examples(self, documents: Dataset, encoder: DocumentEncoder, most: int | None = None) -> Examples:
        """Documents tokenized, with the targets of each window; ``most`` windows, where a task can leave some out."""
        windows = tokenize_documents(documents, encoder)
        _, first = np.unique(windows["document"][:], return_index=True)
        return Examples(documents, self.label(windows, documents), np.asarray(windows["num_tokens"][:])[first])

    def learn(self, train: Examples) -> None:  # noqa: B027 - most tasks have nothing to learn of them
        """What the task itself takes from the documents to train on, before a model is built."""

    def training_rows(self, examples: Examples) -> Any:
        """What the Trainer draws its batches from, a row each."""
        return examples.windows

    def label(self, windows: Dataset, documents: Dataset) -> Dataset:
        """The windows with the targets that :meth:`collate` reads."""
        raise NotImplementedError

    def collator(self, training: bool) -> Callable[[list[dict[str, Any]]], Batch]:
        """What makes a batch of windows."""
        return self.collate

    def collate(self, windows: list[dict[str, Any]]) -> Batch:
        """A padded batch; with its targets if the windows have them."""
        batch = pad_windows(self.pad, windows, whole=self.lexical)
        if "labels" in windows[0]:
            batch["labels"] = self.targets([window["labels"] for window in windows], batch["attention_mask"])
        return batch

    def targets(self, labels: list[Any], attention_mask: Tensor) -> Tensor:
        """The column "labels" of a batch's windows as one tensor."""
        return torch.tensor(labels)

    @abstractmethod
    def reduce(self, logits: Any, labels: Any) -> Tensor:
        """The small part of a batch's logits that the answers need."""

    def respond(self, model: nn.Module, batch: Batch) -> Tensor:
        """What a model makes of a batch without targets, as :meth:`answers` reads it."""
        outputs = model(**batch)
        return self.reduce(outputs.to_tuple() if "logits" not in outputs else outputs.logits, None)

    @abstractmethod
    def answers(self, reduced: Any, windows: ColumnLists, documents: ColumnLists) -> Any:
        """One answer a document, from what :meth:`reduce` left of its windows."""

    @abstractmethod
    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        """Every score of the answers."""

    def heading(self, scores: Mapping[str, Any]) -> dict[str, float]:
        """Those of the scores that head the report."""
        return {name: scores[name] for name in self.headline if name in scores}

    def tune(self, answers: Any, documents: Dataset) -> None:  # noqa: B027 - most tasks have nothing to tune
        """Judge answers from now on as is best for these, the answers to the documents for validation."""

    def written_scores(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, Any]:
        """Scores of what a model writes, for tasks whose answers are texts; ``model`` computes in its precision."""
        return {}

    def baselines(self, train: Dataset, test: Dataset) -> dict[str, dict[str, Any]]:
        """What a model must beat, by its name in the report, and its headline scores."""
        return {}

    def documents(self, documents: Sequence[Document]) -> dict[str, list[Any]]:
        """Documents without labels, as the columns that :meth:`answers` reads; "text" is what the model reads."""
        return {"text": [document.text for document in documents]}

    def describe(self, answer: Any, document: Document) -> dict[str, Any]:
        """The answer to a document as ``linformer predict`` writes it, if the task predicts anything of one."""
        raise NotImplementedError

    def finish(self, model: Any) -> None:  # noqa: B027 - most tasks have none
        """The last change to the trained model."""


def pad_windows(pad: DataCollatorWithPadding, windows: Sequence[Mapping[str, Any]], *, whole: bool) -> Batch:
    """A padded batch of windows; with ``whole`` and documents that were cut ``whole_ids`` too, all ids of each."""
    batch = dict(pad([{"input_ids": window["input_ids"]} for window in windows]))
    if whole and any(window.get("whole_ids") for window in windows):
        documents = [{"input_ids": window["whole_ids"] or window["input_ids"]} for window in windows]
        batch["whole_ids"] = pad(documents)["input_ids"]
    return batch


def pad_targets(targets: list[list[int]], attention_mask: Tensor) -> Tensor:
    """Targets of every token as one tensor, −100 wherever the batch is padded, on whichever side."""
    padded = torch.full_like(attention_mask, IGNORED)
    padded[attention_mask.bool()] = torch.tensor([target for row in targets for target in row])
    return padded


def each_window(reduced: Any, windows: ColumnLists) -> Iterator[tuple[dict[str, Any], Any]]:
    """Each window with the places of its tokens in the document, and what is left of its logits."""
    names = ("document", "text_from", "starts", "ends")
    for kept, *places in zip(reduced, *(windows[name] for name in names), strict=True):
        yield dict(zip(names, places, strict=True)), kept


def label_config(names: Sequence[str]) -> dict[str, Any]:
    """The names of a model's outputs, as a configuration has them."""
    return {"id2label": dict(enumerate(names)), "label2id": {name: number for number, name in enumerate(names)}}

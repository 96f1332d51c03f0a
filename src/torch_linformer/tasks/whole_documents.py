"""Tasks that predict something of a document as a whole: its label, its labels, or a number."""

import math
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from sklearn.dummy import DummyClassifier, DummyRegressor
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.records import LABELED, SCORED, SEVERAL
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import document_means
from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.tasks.linear_classifiers import best_threshold
from torch_linformer.tasks.metrics import (
    calibration_metrics,
    classification_metrics,
    multilabel_metrics,
    regression_metrics,
    tally,
)
from torch_linformer.tasks.task import ColumnLists, Task, label_config


class WholeDocuments(Task):
    """The answers to a document's windows are averaged, each weighted by its tokens."""

    model_class = LinformerForSequenceClassification
    top_k: int | None = None  # probabilities of labels that are told, the highest; all if None

    def label(self, windows: Dataset, documents: Dataset) -> Dataset:
        known = self.known(documents)
        return windows.add_column("labels", [known[number] for number in windows["document"]])

    def known(self, documents: Dataset) -> list[Any]:
        """The true answer to each document, as the loss compares with it."""
        raise NotImplementedError

    def answers(self, reduced: Any, windows: ColumnLists, documents: ColumnLists) -> np.ndarray:
        return document_means(reduced, windows)

    def told(self, probabilities: np.ndarray) -> dict[str, float]:
        """Probabilities by label in the order of the labels; or only ``top_k``, the highest first."""
        order = list(range(len(self.names)))
        if self.top_k is not None:
            order = np.argsort(-probabilities, kind="stable")[: self.top_k].tolist()
        return {self.names[number]: round(float(probabilities[number]), 6) for number in order}


class Classification(WholeDocuments):
    """One label a document."""

    record = LABELED
    # Accuracy tells little of the rare labels, and on a few hundred documents it hardly moves.
    best_metric, headline = "macro_f1", HEADLINES["classify"]
    least_labels = 2
    threshold: float | None = None  # below which no label is predicted
    usage = """\
inputs = tokenizer("a document", truncation=True, return_tensors="pt")
label = model.config.id2label[model(**inputs).logits[0].argmax().item()]"""

    @property
    def config(self) -> dict[str, Any]:
        return {**label_config(self.names), "problem_type": "single_label_classification"}

    def known(self, documents: Dataset) -> list[int]:
        index = {name: number for number, name in enumerate(self.names)}
        return [index[label] for label in documents["label"]]

    def reduce(self, logits: Tensor, labels: Any) -> Tensor:
        return logits.float().softmax(dim=-1)

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        known, predicted = self.known(documents), np.argmax(answers, axis=-1)
        return {**self.scores_of_labels(predicted, documents), **calibration_metrics(known, answers)}

    def scores_of_labels(self, predicted: np.ndarray, documents: Dataset) -> dict[str, Any]:
        """The scores of the numbers of labels, which tell nothing of probabilities."""
        known = self.known(documents)
        tallies = {score: tally(score, known, predicted) for score in self.headline}
        return {**classification_metrics(known, predicted.tolist(), self.names), "tallies": tallies}

    def baselines(self, train: Dataset, test: Dataset) -> dict[str, dict[str, Any]]:
        majority = DummyClassifier().fit(np.zeros(len(train)), train["label"][:])
        return {"majority": {"accuracy": majority.score(np.zeros(len(test)), test["label"][:])}}

    def describe(self, answer: np.ndarray, document: Document) -> dict[str, Any]:
        best = int(np.argmax(answer))
        sure = self.threshold is None or answer[best] >= self.threshold
        return {"label": self.names[best] if sure else None, "probabilities": self.told(answer)}


class MultiLabel(WholeDocuments):
    """Any number of labels a document: those whose probability is above ``threshold``."""

    record = SEVERAL
    best_metric, headline = "micro_f1", HEADLINES["multilabel"]
    least_labels = 1
    threshold = 0.5
    usage = """\
inputs = tokenizer("a document", truncation=True, return_tensors="pt")
probabilities = model(**inputs).logits[0].sigmoid().tolist()
labels = [model.config.id2label[i] for i, p in enumerate(probabilities) if p > model.config.threshold]"""

    @property
    def config(self) -> dict[str, Any]:
        return {**label_config(self.names), "problem_type": "multi_label_classification"}

    def known(self, documents: Dataset) -> list[list[float]]:
        """1 for each label that a document has, 0 for others, NaN where nobody knows."""
        rows = zip(map(set, documents["label"]), map(set, documents["unknown"]), strict=True)
        return [
            [math.nan if name in unknown else float(name in labels) for name in self.names] for labels, unknown in rows
        ]

    def reduce(self, logits: Tensor, labels: Any) -> Tensor:
        return logits.float().sigmoid()

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        known, predicted = np.asarray(self.known(documents)), np.asarray(answers) > self.threshold
        return {
            **multilabel_metrics(known, predicted, self.names),
            "tallies": {"micro_f1": tally("micro_f1", known, predicted)},
        }

    def describe(self, answer: np.ndarray, document: Document) -> dict[str, Any]:
        labels = [name for name, probability in zip(self.names, answer, strict=True) if probability > self.threshold]
        return {"labels": labels, "probabilities": self.told(answer)}

    def tune(self, answers: Any, documents: Dataset) -> None:
        self.threshold = best_threshold(np.asarray(self.known(documents)), np.asarray(answers))

    def finish(self, model: Any) -> None:
        model.config.threshold = self.threshold


class Regression(WholeDocuments):
    """A number a document.

    It is learned less ``center`` and divided by ``scale``, the mean and the standard deviation of the training
    documents, so that the learning rate suits any unit; :meth:`finish` writes both into the model's last layer.
    """

    record = SCORED
    best_metric, larger_is_better, headline = "mse", False, HEADLINES["regress"]

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, center: float = 0.0, scale: float = 1.0, *, lexical: bool = False
    ) -> None:
        super().__init__(tokenizer, lexical=lexical)
        self.center, self.scale = center, scale

    @property
    def config(self) -> dict[str, Any]:
        return {**label_config(["value"]), "problem_type": "regression"}

    def known(self, documents: Dataset) -> list[float]:
        values: list[float] = ((np.asarray(documents["label"][:]) - self.center) / self.scale).tolist()
        return values

    def reduce(self, logits: Tensor, labels: Any) -> Tensor:
        return logits.float().squeeze(-1)

    def answers(self, reduced: Any, windows: ColumnLists, documents: ColumnLists) -> np.ndarray:
        return super().answers(reduced, windows, documents) * self.scale + self.center

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        known = documents["label"][:]
        return {**regression_metrics(known, answers.tolist()), "tallies": {"mse": tally("mse", known, answers)}}

    def baselines(self, train: Dataset, test: Dataset) -> dict[str, dict[str, Any]]:
        mean = DummyRegressor().fit(np.zeros(len(train)), train["label"][:])
        return {"mean": regression_metrics(test["label"][:], mean.predict(np.zeros(len(test))))}

    def describe(self, answer: np.ndarray, document: Document) -> dict[str, Any]:
        return {"value": float(answer)}

    @torch.no_grad()
    def finish(self, model: Any) -> None:
        last, lexical = cast(nn.Linear, model.classifier), cast(LexicalHead | None, model.lexical)
        multiply(last, self.scale)
        if lexical is not None:
            multiply(lexical, self.scale)
        last.bias.add_(self.center)
        self.center, self.scale = 0.0, 1.0


@torch.no_grad()
def multiply(head: nn.Linear | LexicalHead, factor: float) -> None:
    """Make the logits of a head ``factor`` times as large."""
    head.weight.mul_(factor)
    head.bias.mul_(factor)

"""A lexical head for a trained classifier: fitted, weighed against the rest of the model, and kept where it helps."""

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.reporting.tables import format_score
from torch_linformer.tasks.floors import MAX_DECISIONS, pairs_tell
from torch_linformer.tasks.lexical_fit import buckets_for, fit_head
from torch_linformer.tasks.task import Examples
from torch_linformer.tasks.whole_documents import WholeDocuments, multiply
from torch_linformer.training.document_trainer import DocumentTrainer, LogitParts

MAX_TOKENS = 30_000_000  # of the documents that a head is fitted to; as many as are drawn
TOGETHER = 100  # documents tokenized at once


@dataclass(frozen=True)
class Weighing:
    """A lexical head beside the rest of a model.

    Attributes:
        lexical, rest: factors of their logits, 0 or more.
        validation, test: the scores of the documents by ``lexical`` (the head alone), ``rest`` and ``both``.
        kept: whether the model has the head.
    """

    lexical: float
    rest: float
    validation: dict[str, dict[str, Any]]
    test: dict[str, dict[str, Any]]
    kept: bool

    @property
    def scores(self) -> dict[str, Any]:
        """Those of the model on the test documents."""
        return self.test["both" if self.kept else "rest"]

    def describe(self, score: str) -> str:
        """The decision and its reason, as a line."""
        fate = "kept" if self.kept else "left out"
        alone, rest, both = (format_score(self.validation[part][score]) for part in ("lexical", "rest", "both"))
        return (
            f"lexical head {fate}: validation {score.replace('_', '-')} of the head alone {alone}, of the model "
            f"without it {rest}, of both {both} (weights {self.lexical:.2f} and {self.rest:.2f})"
        )


def add_lexical_head(
    model: LinformerForSequenceClassification,
    task: WholeDocuments,
    train: Dataset,
    encoder: DocumentEncoder,
    *,
    seed: int,
    balanced: bool,
) -> None:
    """Give a trained classifier a lexical head that is fitted to its training documents, whole."""
    config, problem = model.config, str(model.config.problem_type)
    labels = len(config.label_names)
    order = np.random.default_rng(seed).permutation(len(train))
    most = MAX_DECISIONS // labels if problem == "multi_label_classification" else len(train)
    texts: list[str] = []
    documents: list[list[int]] = []
    tokens = 0
    for start in range(0, len(order), TOGETHER):
        texts += train.select(order[start : start + TOGETHER])["text"][:]
        documents += encoder.ids(texts[start:])
        tokens += sum(map(len, documents[start:]))
        if tokens > MAX_TOKENS or len(documents) > most:
            break
    config.lexical_buckets = buckets_for(config.vocab_size, labels) if pairs_tell(texts) else 0
    model.lexical = LexicalHead(config.vocab_size, config.lexical_buckets, labels)
    known = np.asarray(task.known(train))[order[: len(documents)]]
    fit_head(model.lexical, task.tokenizer, documents, known, problem, balanced=balanced)
    model.lexical.to(device=model.device, dtype=model.dtype)
    task.lexical = True


def weigh(trainer: DocumentTrainer, validation: Examples, test: Examples, *, always: bool) -> Weighing:
    """Weigh a model's lexical head against the rest of it on the validation documents, and write the weights into both.

    The weights a of the head's logits z and b of the others u have the least :math:`L(a z + b u)`, the loss of the
    task, plus :math:`((a - 1)^2 + (b - 1)^2) / n` for n windows, which keeps few of them from saying much. A head that
    has no weight or lowers the score of the validation documents is taken away, unless it is ``always`` kept.
    """
    model, task = cast(LinformerForSequenceClassification, trainer.model), cast(WholeDocuments, trainer.task)
    found = [trainer.parts_of(examples) for examples in (validation, test)]
    a, b = _weights(model, found[0], torch.tensor(validation.windows["labels"][:]))
    scores = [
        {
            "lexical": trainer.scores_of_logits(parts.lexical, examples),
            "rest": trainer.scores_of_logits(parts.rest, examples),
            "both": trainer.scores_of_logits(a * parts.lexical + b * parts.rest, examples),
        }
        for examples, parts in zip((validation, test), found, strict=True)
    ]
    both, rest = (scores[0][part][task.best_metric] for part in ("both", "rest"))
    kept = always or (a > 0 and not (both < rest if task.larger_is_better else both > rest))
    if kept:
        multiply(cast(LexicalHead, model.lexical), a)
        multiply(model.classifier, b)
    else:
        model.lexical, model.config.lexical_buckets, task.lexical = None, None, False
    return Weighing(a, b, scores[0], scores[1], kept)


def _weights(model: LinformerForSequenceClassification, parts: LogitParts, labels: Tensor) -> tuple[float, float]:
    factors = torch.ones(2, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([factors], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        logits = factors[0] * parts.lexical.double() + factors[1] * parts.rest.double()
        total = model.loss_of(logits, labels) + (factors - 1).square().sum() / len(labels)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    lexical, rest = factors.detach().clamp(min=0).tolist()
    return lexical, rest

"""Probabilities that are shares: one temperature for all logits of a classifier, fitted to the validation documents."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.reporting.tables import format_score
from torch_linformer.tasks.task import Examples
from torch_linformer.tasks.whole_documents import multiply
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.verdict import ENOUGH, fit_factors


@dataclass(frozen=True)
class Calibration:
    """What a temperature T is worth; 1 changes nothing.

    Attributes:
        temperature: T, by which the model's logits are divided.
        gained: how much the log-likelihood of the validation documents gains by it, or would have gained, in nats.
        before: every score of the test documents with T = 1.
        scores: every score of the test documents with T.
    """

    temperature: float
    gained: float
    before: dict[str, Any]
    scores: dict[str, Any]

    @property
    def record(self) -> dict[str, float]:
        """What ``metrics.json`` holds beside the scores."""
        return {"temperature": self.temperature, "uncalibrated_ece": self.before["ece"]}

    def describe(self) -> str:
        """The decision and its reason, as a line."""
        ece = f"expected calibration error of the test documents {format_score(self.scores['ece'])}"
        if self.temperature == 1:
            return (
                f"probabilities left as they are, as a temperature adds {self.gained:.2f} to the log-likelihood on "
                f"validation and has to add more than {ENOUGH:g} (Akaike's criterion): {ece}"
            )
        return (
            f"probabilities calibrated: logits divided by {self.temperature:.2f}, fitted to the validation documents; "
            f"{ece}, before {format_score(self.before['ece'])}"
        )


def calibrate(
    trainer: DocumentTrainer, logits: tuple[Tensor, Tensor] | None, validation: Examples, test: Examples
) -> Calibration:
    r"""Divide the logits of a trained classifier by a temperature, as a part of its last layers, where that helps.

    .. math:: T = \arg\min_T \; -\frac{1}{n} \sum_i \ln \mathrm{softmax}(z_i / T)_{y_i} + \frac{(1 / T - 1)^2}{n}

    over the n windows of the validation documents (Guo et al. 2017, arXiv 1706.04599, section 4.2, and a term that
    keeps few documents, all of them right, from asking for T = 0). A row keeps its label, because every logit has the
    same T. It stays where it raises the log-likelihood of the validation documents by enough. Since
    :math:`(W x + b) / T = (W / T) x + b / T`, whatever reads the weights has it.

    Args:
        trainer: of the model.
        logits: of the windows of the validation documents, by a model that has not learned them, and of the test
            documents; what the model gives if None.
        validation: documents with one label each, and
        test: those that are scored.
    """
    model, task = cast(LinformerForSequenceClassification, trainer.model), trainer.task
    known, unseen = logits or (
        torch.from_numpy(trainer.logits_of(cast(Any, examples.windows))).float() for examples in (validation, test)
    )
    labels = torch.tensor(cast(Any, validation.windows)["labels"][:])
    (factor,), _ = fit_factors([known], [1.0], lambda z: F.cross_entropy(z, labels), len(labels))

    def scores(z: Tensor, examples: Examples) -> dict[str, Any]:
        return task.scores(trainer.answers_of_logits(z, examples), examples.documents)

    losses = [scores(by * known, validation)["nll"] for by in (1.0, factor)]
    gained, before = len(validation.documents) * (losses[0] - losses[1]), scores(unseen, test)
    if gained <= ENOUGH or not factor:
        return Calibration(1.0, gained, before, before)
    for head in (model.classifier, model.lexical):
        if head is not None:
            multiply(head, factor)
    return Calibration(1 / factor, gained, before, scores(factor * unseen, test))

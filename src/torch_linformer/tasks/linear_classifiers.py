"""Linear models of sparse features."""

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.parallel import Parallel, delayed

from torch_linformer.tasks.kept_fits import kept

MANY_DOCUMENTS = 100  # so many, and what only one of them has tells nothing
MAX_COEFFICIENTS = 10_000_000  # features times labels
_SEARCH_DOCUMENTS = 5_000  # to learn from while a model is chosen
_SEARCH_DECISIONS = 40_000  # documents times labels, where a document may have several: it is fitted about ten times
SELDOM = 1e-4  # the share of documents that a label without any, or that all have, is taken to have
SMOOTHING = 0.3  # what is added to a feature's sum under each label; 1 was worse on film reviews


def best_threshold(true: np.ndarray, probabilities: np.ndarray) -> float:
    """The threshold above which labels are predicted with the highest ``micro_f1``; a half where none is better.

    With many labels, each of them rare, few probabilities are above a half even where their order is right.

    Args:
        true: 1 where the document has the label, 0 where not, NaN where that is unknown, of any shape.
        probabilities: those of the labels, of the same shape.

    Returns:
        a number between 0 and 1, halfway between the two probabilities that it separates.
    """
    known = ~np.isnan(true)
    labels, scores = np.asarray(true)[known], np.asarray(probabilities, dtype=np.float64)[known]
    order = np.argsort(-scores, kind="stable")
    falling = np.append(scores[order], 0.0)
    f1 = 2 * labels[order].cumsum() / (np.arange(1, len(scores) + 1) + max(1, labels.sum()))
    f1[falling[:-1] == falling[1:]] = 0.0  # equal probabilities are not separated
    usual = int(np.count_nonzero(scores > 0.5))
    if not len(f1) or f1.max() <= (f1[usual - 1] if usual else 0.0):
        return 0.5
    best = int(np.argmax(f1))
    return float((falling[best] + falling[best + 1]) / 2)


class Weights(NamedTuple):
    """Decisions of documents are ``features @ weight.T + bias``: W ``(labels, features)`` and b ``(labels,)``."""

    weight: np.ndarray
    bias: np.ndarray

    def decisions(self, features: Any) -> np.ndarray:
        """Of each document for each label, ``(documents, labels)``; above 0 it rather has the label."""
        return np.asarray(features @ self.weight.T + self.bias)


@dataclass(frozen=True)
class LinearClassifier:
    """How a classifier is fitted: one-vs-rest, with a penalty on the squares of its weights.

    Attributes:
        loss: ``squared hinge`` (a linear support vector machine) or ``logistic``.
        cost: of the loss beside the penalty, C of scikit-learn.
        ratios: count each feature by the logarithm of the ratio of its shares under the label and under the others, as
            in Wang and Manning, Baselines and Bigrams (ACL 2012). That factor becomes a part of W.
    """

    loss: str = "squared hinge"
    cost: float = 1.0
    ratios: bool = False

    def __str__(self) -> str:
        return f"{self.loss}{' on log-count ratios' * self.ratios}, C = {self.cost:g}"

    def fit(self, features: Any, targets: np.ndarray, *, balanced: bool = False) -> Weights:
        """Fit to targets ``(documents, labels)``, 1 where a document has the label, 0 where not, NaN where unknown.

        Each label is learned from the documents of which it is known. Of two labels of which each document has one,
        each gets half of the difference. ``balanced`` weighs documents so that each label has as much weight as any
        other, where each document has one label.
        """
        weights = compute_sample_weight("balanced", targets.argmax(axis=1)) if balanced else None
        if targets.shape[1] == 2 and targets.any(axis=0).all() and (targets.sum(axis=1) == 1).all():
            weight, bias = self._one(features, targets[:, 1], weights)
            return Weights(np.stack([-weight / 2, weight / 2]), np.array([-bias / 2, bias / 2]))

        def one(column: np.ndarray) -> tuple[np.ndarray, float]:
            known = ~np.isnan(column)
            return self._one(features if known.all() else features[known], column[known], weights)

        # liblinear lets other threads run.
        fitted = Parallel(n_jobs=-1, prefer="threads")(delayed(one)(column) for column in targets.T)
        return Weights(np.stack([weight for weight, _ in fitted]), np.array([bias for _, bias in fitted]))

    def _one(self, features: Any, target: np.ndarray, weights: np.ndarray | None) -> tuple[np.ndarray, float]:
        if len(np.unique(target)) < 2:
            return np.zeros(features.shape[1]), float(np.log(SELDOM) * (1 - 2 * target[:1].sum()))
        if self.loss == "logistic":
            model: Any = LogisticRegression(C=self.cost, solver="liblinear", random_state=0)
        else:
            model = LinearSVC(C=self.cost, dual="auto", random_state=0)
        factors: Any = 1.0
        if self.ratios:
            occurs = features.getnnz(axis=0) > 0
            sums = (np.asarray(features[target == label].sum(axis=0)).ravel()[occurs] + SMOOTHING for label in (0, 1))
            without, having = (counts / counts.sum() for counts in sums)
            factors = np.zeros(features.shape[1], dtype=features.dtype)
            factors[occurs] = np.log(having / without)
            features = features.multiply(factors).tocsr()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # stopped early it still is a measured classifier
            model.fit(features, target, weights)
        return model.coef_[0] * factors, float(model.intercept_[0])


@dataclass(frozen=True)
class RidgeRegression:
    """How a number is learned from features: with ``penalty`` on the squares of the weights."""

    penalty: float = 1.0

    def __str__(self) -> str:
        return f"ridge regression, penalty {self.penalty:g}"

    def fit(self, features: Any, targets: np.ndarray, *, balanced: bool = False) -> Weights:
        """Fit to targets ``(documents, 1)``; rare numbers have no more weight."""
        model = Ridge(alpha=self.penalty).fit(features, targets[:, 0])
        return Weights(model.coef_[None], np.atleast_1d(model.intercept_))


LinearModel = LinearClassifier | RidgeRegression

# The first of each compares kinds of features, and all of them are then compared on the best kind.
CLASSIFIERS = (
    LinearClassifier(),
    LinearClassifier(cost=0.1),
    LinearClassifier(cost=10.0),
    LinearClassifier("logistic", 10.0),
    LinearClassifier(cost=0.1, ratios=True),
    LinearClassifier("logistic", 30.0, ratios=True),
)
REGRESSIONS = (RidgeRegression(), RidgeRegression(0.1), RidgeRegression(10.0))


def searched(labels: int = 1) -> int:
    """How many documents to learn from a model is chosen with, where each has a decision for so many labels."""
    return max(MANY_DOCUMENTS, min(_SEARCH_DOCUMENTS, _SEARCH_DECISIONS // labels))


@kept
def fit(model: LinearModel, features: Any, targets: np.ndarray, *, balanced: bool) -> Weights:
    """:meth:`LinearModel.fit`."""
    return model.fit(features, targets, balanced=balanced)


@kept
def out_of_fold(
    model: LinearModel,
    features: Any,
    targets: np.ndarray,
    folds: Sequence[tuple[np.ndarray, np.ndarray]],
    *,
    balanced: bool,
) -> np.ndarray:
    """Decisions of documents ``(documents, labels)``, each by a fit to the folds that do not have it."""
    decisions = np.zeros(targets.shape)
    for learned, judged in folds:
        weights = model.fit(features[learned], targets[learned], balanced=balanced)
        decisions[judged] = weights.decisions(features[judged])
    return decisions

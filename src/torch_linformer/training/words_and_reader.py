r"""A model for whole documents as the sum of two linear parts: words, and the states of an encoder that stays as it is.

.. math:: z = a \, (W_w x + b_w) + c \, (W_r p + b_r) + b

x are the TF-IDF features of a document's words (:class:`~torch_linformer.models.lexical_head.LexicalHead`), p is the
pooled state of the reader. How each part is fitted is chosen by cross-validation over all documents that are not held
out, and so are the weights a and c, and b: those with which the decisions of the folds, each by a fit that has not seen
the document, make the labels most likely. Then both parts are fitted to all of these documents (stacked generalization,
Wolpert 1992, with a linear combination of weights that are not negative, Breiman 1996).
"""

import copy
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.model_selection import GroupKFold, KFold, StratifiedGroupKFold, StratifiedKFold
from torch import Tensor

from torch_linformer.tasks.linear_classifiers import CLASSIFIERS, REGRESSIONS, LinearModel, fit, out_of_fold, searched
from torch_linformer.tasks.word_features import GRAMS, PAIRS, WORDS, WordCounts, WordFeatures

FOLDS = 5
OF_WORDS = "words"  # the name of their part
RIDGES = (1.0, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3)  # of the reader's classifier; each begins as the one before
ITERATIONS = 200  # for each of them
CONSTANT = 1e-3  # of the usual standard deviation; what deviates less tells only rounding errors apart
LEAST = 0.01  # the factor of the only part
LossOf = Callable[[Tensor, Tensor], Tensor]  # of logits and labels, a mean


@dataclass(frozen=True)
class LinearPart:
    """One of the parts whose logits are added.

    Attributes:
        name: what it is called in a report.
        chosen: how it is fitted, in words.
        judged: logits of documents by fits that have not seen them, ``(n, labels)``.
        unseen: logits of the test documents by the fit to all others, ``(m, labels)``.
        layer: what gives a model these logits: a lexical head, or the weight and the bias of a linear layer; None where
            its classifier does.
        factor: of what ``layer`` gives.
        bias: added to that, ``(labels,)``.
    """

    name: str
    chosen: str
    judged: Tensor
    unseen: Tensor
    layer: Any
    factor: float = 1.0
    bias: Tensor = field(default_factory=lambda: torch.zeros(()))


class Targets:
    """What is known of the documents that are not held out, and the folds in which parts are judged.

    Args:
        labels: what the loss compares logits with.
        outputs: logits of a document.
        loss_of: the loss of the task.
        groups: documents of one group are never in two folds; None where each is its own.
        balanced: whether rare labels have more weight.
        seed: of the order of documents.

    Attributes:
        judged: numbers of the documents that choose, all but in large sets.
        folds: which of these a fit learns from, and which it is judged by.
    """

    def __init__(
        self,
        labels: Tensor,
        outputs: int,
        loss_of: LossOf,
        *,
        groups: Sequence[Any] | None = None,
        balanced: bool = False,
        seed: int = 0,
    ) -> None:
        self.labels, self.outputs, self.loss_of, self.balanced = labels, outputs, loss_of, balanced
        self.one_label = not labels.is_floating_point()
        most = searched(outputs if labels.dim() == 2 else 1)
        self.judged = np.random.default_rng(seed).permutation(len(labels))[:most]
        if groups is not None:
            groups = np.unique([str(group) for group in groups], return_inverse=True)[1].tolist()
        strata = labels.numpy()[self.judged] if self.one_label else None
        self.folds = _folds(len(self.judged), strata, None if groups is None else np.asarray(groups)[self.judged], seed)
        self.known = labels[torch.from_numpy(self.judged)]

    def some(self, rows: np.ndarray) -> "Targets":
        """The same with only some of the judged documents, and without folds."""
        fewer = copy.copy(self)
        fewer.judged, fewer.folds, fewer.known = self.judged[rows], [], self.known[torch.from_numpy(rows)]
        return fewer

    @property
    def columns(self) -> np.ndarray:
        """Of all documents ``(n, labels)``: 1 for a label that it has, or a number."""
        if self.one_label:
            return np.asarray(np.eye(self.outputs, dtype=np.int64)[self.labels.numpy()])
        return np.asarray(self.labels.reshape(len(self.labels), -1).double())

    def loss(self, *judged: Tensor) -> float:
        """The loss of logits of the judged documents, or of a sum of several, with the best factors."""
        return fit_factors(judged, self.loss_of, self.known).loss


def _folds(
    number: int, strata: np.ndarray | None, groups: np.ndarray | None, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Five folds, or fewer where there are fewer documents or groups; by groups, and with each label's share."""
    if groups is not None and len(np.unique(groups)) == number:
        groups = None
    folds = min(FOLDS, number if groups is None else len(np.unique(groups)))
    if strata is not None and np.unique(strata, return_counts=True)[1].max() < folds:
        strata = None
    shuffled: dict[str, Any] = {"n_splits": folds, "shuffle": True, "random_state": seed}
    if strata is None:
        splitter: Any = KFold(**shuffled) if groups is None else GroupKFold(**shuffled)
    else:
        splitter = StratifiedKFold(**shuffled) if groups is None else StratifiedGroupKFold(**shuffled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a label of fewer documents than folds is missing in some
        return list(splitter.split(np.zeros(number), strata, groups))


def fit_words(counts: WordCounts, targets: Targets) -> LinearPart:
    """The words' part: the kind of features with the best cross-validation of the first linear model, and the best of
    all linear models of these features.
    """
    models: Sequence[LinearModel] = REGRESSIONS if not targets.one_label and targets.outputs == 1 else CLASSIFIERS
    columns, balanced = targets.columns, targets.balanced
    known = columns[targets.judged]

    def trial(kind: str, features: WordFeatures, model: LinearModel) -> Trial:
        decisions = out_of_fold(model, features.x[targets.judged], known, targets.folds, balanced=balanced)
        judged = torch.from_numpy(decisions)
        return Trial(kind, features, model, judged, targets.loss(judged))

    kinds = [WORDS, PAIRS, *[GRAMS] * (counts.spelled.letters is not None)]
    best = min((trial(kind, counts.features(kind, targets.outputs), models[0]) for kind in kinds), key=_loss)
    best = min([best, *(trial(best.kind, best.features, model) for model in models[1:])], key=_loss)
    x = best.features.x
    fitted = fit(best.model, x[: counts.known], columns, balanced=balanced)
    unseen = torch.from_numpy(fitted.decisions(x[counts.known :]))
    head = counts.head(best.features, *fitted)
    return LinearPart(OF_WORDS, f"{best.kind}: {best.model}", best.judged, unseen, head)


class Trial(NamedTuple):
    """A way to read words, its logits of the judged documents, and their loss."""

    kind: str
    features: WordFeatures
    model: LinearModel
    judged: Tensor
    loss: float


_loss = attrgetter("loss")


def fit_reader(states: Tensor, unseen: Tensor, targets: Targets) -> LinearPart:
    r"""The reader's part: a linear layer of standardized states, with the ridge of the best cross-validation.

    .. math:: W, b = \arg\min \; L(z W^\top + b) + \frac{\lambda}{2} \lVert W \rVert^2,
        \qquad z = \frac{p - \mathrm{mean}(p)}{\mathrm{std}(p)}

    The more documents, the less the ridge counts: of n documents, :math:`\lambda` times the share of them that a fold
    learns from, as with scikit-learn's C. Mean and standard deviation become a part of the layer. A channel that is all
    but constant has no weight, which would be a huge one.

    Args:
        states: p of the documents that are not held out, ``(n, C)``.
        unseen: p of the test documents.
        targets: what is known of the former.
    """
    mean, std = states.mean(dim=0), states.std(dim=0, correction=0)
    std = std.where(std > CONSTANT * std.median(), torch.inf)
    z = (states - mean) / std
    judged = z[torch.from_numpy(targets.judged)]
    decisions = {ridge: judged.new_zeros(len(judged), targets.outputs) for ridge in RIDGES}
    for learned, rows in targets.folds:
        for ridge, weight, bias in _ridge_path(judged[learned], targets.known[learned], targets, 1.0):
            decisions[ridge][rows] = judged[rows] @ weight.T + bias
    chosen = min(RIDGES, key=lambda ridge: targets.loss(decisions[ridge]))
    share = len(targets.folds[0][0]) / len(z)
    path = _ridge_path(z, targets.labels, targets, share)
    weight, bias = next((weight, bias) for ridge, weight, bias in path if ridge == chosen)
    weight = weight / std
    bias = bias - weight @ mean
    return LinearPart("the reader", f"ridge {chosen:g}", decisions[chosen], unseen @ weight.T + bias, (weight, bias))


def _ridge_path(
    states: Tensor, labels: Tensor, targets: Targets, share: float
) -> Iterable[tuple[float, Tensor, Tensor]]:
    """The linear layers of the least loss, with each of the ridges, of which a share counts."""
    weight = states.new_zeros(targets.outputs, states.shape[1]).requires_grad_()
    bias = states.new_zeros(targets.outputs).requires_grad_()
    for ridge in RIDGES:
        optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

        def loss(optimizer: Any = optimizer, ridge: float = ridge) -> Tensor:
            optimizer.zero_grad()
            total = targets.loss_of(states @ weight.T + bias, labels) + share * ridge / 2 * weight.square().sum()
            total.backward()  # type: ignore[no-untyped-call]
            return total

        optimizer.step(loss)  # type: ignore[no-untyped-call]
        yield ridge, weight.detach().clone(), bias.detach().clone()


def weigh(parts: Sequence[LinearPart], targets: Targets) -> list[LinearPart]:
    """The parts times the weights with which their sum is best for the judged documents, the first with the bias."""
    factors, bias, _ = fit_factors([part.judged for part in parts], targets.loss_of, targets.known)
    weighed = [
        replace(part, judged=part.judged * factor, unseen=part.unseen * factor, factor=part.factor * factor)
        for part, factor in zip(parts, factors, strict=True)
    ]
    first = weighed[0]
    return [replace(first, judged=first.judged + bias, unseen=first.unseen + bias, bias=bias), *weighed[1:]]


class Factors(NamedTuple):
    """What makes a sum of logits best: a factor of each, a bias of each label, and the loss with them."""

    each: list[float]
    bias: Tensor
    loss: float


def fit_factors(parts: Sequence[Tensor], loss_of: LossOf, labels: Tensor) -> Factors:
    r"""The factors, 0 or more, and the bias with the least loss of the sum of some logits ``(n, labels)``.

    .. math:: \arg\min_{s \ge 0,\, b} \; L\Big(\sum_i \frac{s_i}{\sigma_i} z_i + b\Big)
        + \frac{\lVert s - 1 \rVert^2 + \lVert b \rVert^2}{n}

    where :math:`\sigma_i` is the spread of the logits :math:`z_i` of n documents. The second term keeps few documents,
    all of them right, from asking for infinite factors. Each part has a bias of its own for rare labels: in a sum, and
    in the decisions of a support vector machine, which are no likelihoods, it needs to be fitted anew.
    """
    spreads = [max(float(part.double().std()), 1e-12) for part in parts]
    stacked = torch.stack([part.double() / spread for part, spread in zip(parts, spreads, strict=True)], dim=-1)
    used, best = list(range(len(parts))), torch.zeros(len(parts), dtype=torch.float64)
    while True:
        outputs = stacked.shape[1]
        factors, bias = least_factors(stacked[..., used], [1.0] * len(used), lambda z: loss_of(z, labels), outputs)
        if len(used) == 1 or bool((factors > 0).all()):
            best[used] = factors.clamp(min=LEAST)  # logits that say nothing keep their order
            break
        used = [number for number, factor in zip(used, factors.tolist(), strict=True) if factor > 0] or used[:1]
    with torch.no_grad():
        least = float(loss_of(stacked @ best + bias, labels))
    return Factors([factor / spread for factor, spread in zip(best.tolist(), spreads, strict=True)], bias, least)


def least_factors(
    stacked: Tensor, expected: Sequence[float], loss_of: Callable[[Tensor], Tensor], outputs: int = 0
) -> tuple[Tensor, Tensor]:
    r"""The factors s of what is stacked along the last axis, near those expected, and a bias b near 0, in float64.

    .. math:: \arg\min_{s, b} \; L(X s + b) + \frac{1}{n} \left( \frac{\lVert s - c \rVert^2}{\max(1, c_1, \dots)^2}
        + \lVert b \rVert^2 \right)

    for the n rows of X ``(n, outputs, parts)`` and the expected factors c; without ``outputs`` X has any shape
    ``(n, …, parts)`` and b is none.
    """
    center = torch.tensor(expected, dtype=torch.float64)
    factors, stacked = center.clone().requires_grad_(), stacked.double()
    bias = torch.zeros(outputs, dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.LBFGS([factors, bias], max_iter=100, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        apart = (factors - center) / max(1.0, *expected)
        sums = stacked @ factors
        total = loss_of(sums + bias if outputs else sums) + (apart.square().sum() + bias.square().sum()) / len(stacked)
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return factors.detach(), bias.detach()

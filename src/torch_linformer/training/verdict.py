"""What the scores say: parts of a model weighed on the validation documents, and the model against the baselines."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from torch_linformer.reporting.tables import format_count, score_title
from torch_linformer.tasks.tallies import is_more_than_chance, paired_difference

ENOUGH = 1.0  # nats of log-likelihood that one more weight has to gain (Akaike's criterion)


@dataclass(frozen=True)
class Weighing:
    """A lexical head, or the lexical part of vectors, beside the rest of a model.

    Attributes:
        part: what it is, in words.
        factors: of the logits of the head and of the rest, 0 or more.
        losses: of the validation documents, by ``lexical`` (the head alone), ``rest`` and ``both``.
        test: every score of the test documents, likewise.
        gained: how much the log-likelihood of the validation documents gains by the head, in nats.
        score: what picks the checkpoint, and must not be worse with the head.
        kept: whether the model has the head.
        logits: of a classifier as it is weighed: those of the validation windows, which the head has not learned here,
            and those of the test windows.
    """

    part: str
    factors: tuple[float, float]
    losses: dict[str, float]
    test: dict[str, dict[str, Any]]
    gained: float
    score: str
    kept: bool
    logits: tuple[Tensor, Tensor] | None = None

    @property
    def helps(self) -> bool:
        """Whether the head lowers the loss by enough."""
        return self.gained > ENOUGH

    @property
    def alone(self) -> bool:
        """Whether the head is kept and the rest of the model has no weight beside it."""
        return self.kept and not self.factors[1]

    @property
    def scores(self) -> dict[str, Any]:
        """Those of the model on the test documents."""
        return self.test["both" if self.kept else "rest"]

    def name(self, model: str) -> str:
        """What a model is called that has gone through this, and was called ``model`` before."""
        if self.alone:
            return f"{self.part.replace('lexical head', 'TF-IDF head')} only"
        return f"{model} with its {self.part}" if self.kept else model

    def describe(self) -> str:
        """The decision and its reason, as a line."""
        losses = self.losses
        fate = "kept" if self.kept else "left out"
        if self.alone:
            fate += f", and nothing else, as the rest of the model adds too little ({self.name('')})"
        elif not self.kept and self.helps:
            worse = f"{score_title(self.score)} on validation, which picks the checkpoint, is worse with it"
            fate += f", as {worse} by more than chance"
        elif not self.kept:
            fate += (
                f", as it adds {self.gained:.2f} to the log-likelihood on validation and has to add more than "
                f"{ENOUGH:g} (Akaike's criterion)"
            )
        return (
            f"{self.part} {fate}: validation loss of the {self.part.split()[-1]} alone "
            f"{losses['lexical']:.4f}, of the model without it {losses['rest']:.4f}, of both {losses['both']:.4f} "
            f"(weights {self.factors[0]:.2f} and {self.factors[1]:.2f})"
        )


def weigh_parts(
    parts: tuple[Tensor, Tensor],
    expected: tuple[float, float],
    loss_of: Callable[[Tensor], Tensor],
    gain: Callable[[float, float], float],
    number: int,
) -> tuple[tuple[float, float], dict[str, float], float]:
    """The factors of words and of the rest, their losses alone and together, and the log-likelihood gained by words.

    Words alone, or none, are safer where the validation documents resemble those of the training more than others
    will. So where the log-likelihood gains no more than ``ENOUGH`` by the rest, its factor is 0; and words help where
    it gains more by them.

    Args:
        parts: what words say and what the rest says, tensors of the same shape.
        expected: their factors; the larger one is also that of a part by itself.
        loss_of: the mean loss of such a tensor.
        gain: how much the logarithm of the likelihood gains where the loss falls from one number to another.
        number: how many rows the loss is a mean over.
    """
    by_itself = [max(expected)]
    ((of_words,), alone), (_, without) = (fit_factors([part], by_itself, loss_of, number) for part in parts)
    (a, b), together = fit_factors(list(parts), list(expected), loss_of, number)
    if gain(alone, together) <= ENOUGH and alone < without:
        a, b, together = of_words, 0.0, alone
    losses = {"lexical": alone, "rest": without, "both": together}
    return (a, b), losses, gain(without, together) if a > 0 else 0.0


def fit_factors(
    parts: list[Tensor], expected: list[float], loss_of: Callable[[Tensor], Tensor], number: int
) -> tuple[list[float], float]:
    """The best factors, 0 or more, of some logits, near those expected, and the loss of their sum.

    Args:
        parts: tensors of the same shape.
        expected: factors, one a part; how far one is from it counts in units of the largest, or of 1.
        loss_of: the mean loss of such a tensor.
        number: how many rows the loss is a mean over.
    """
    unit = max(*expected, 1.0)
    center = torch.tensor(expected, dtype=torch.float64)
    factors = center.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([factors], max_iter=100, line_search_fn="strong_wolfe")
    stacked = torch.stack(parts, dim=-1).double()

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = loss_of(stacked @ factors) + ((factors - center) / unit).square().sum() / number
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    positive = factors.detach().clamp(min=0)
    return positive.tolist(), loss_of(stacked @ positive).item()


def verdict(
    headline: Sequence[str],
    larger_is_better: bool,
    model: Mapping[str, Any],
    baselines: Mapping[str, Mapping[str, Any]],
    advice: str,
    counted: str = "documents",
    method: str = "",
) -> str:
    """Whether a model is better than what it must beat, by how much, and whether that is more than chance.

    The first score of the headline that a baseline has is compared with the baseline that is best by it, and so is
    every other score of which it is known what each document adds to it.

    Args:
        headline: the scores that head the report.
        larger_is_better: of each of them.
        model: its scores; with ``tallies``, what each document adds to some of them.
        baselines: the same by the name of each method; with ``numbers``, those of the documents that it was scored on.
        advice: what to try where the model is not clearly better by each of these scores.
        counted: what a tally has a row of, in words.
        method: what the model is called, where the sentence should begin with that.
    """
    known = [name for name in headline if any(name in scores for scores in baselines.values())]
    tallied = [name for name in known[1:] if name in model.get("tallies", {})]
    clauses: list[str] = []
    clear = True
    for score in [*known[:1], *tallied]:
        clause, is_clear = _clause(score, larger_is_better, model, baselines, "" if clauses else counted)
        clauses.append(clause)
        clear = clear and is_clear
    if not clauses:
        return ""
    sentence = "; ".join(clauses)
    sentence = f"{method}: {sentence}." if method else f"{sentence[0].upper()}{sentence[1:]}."
    return sentence if clear else sentence + advice


def _clause(
    score: str,
    larger_is_better: bool,
    model: Mapping[str, Any],
    baselines: Mapping[str, Mapping[str, Any]],
    counted: str,
) -> tuple[str, bool]:
    """How a model compares with the best baseline by a score, in words, and whether it is clearly better."""
    rivals = {name: row for name, row in baselines.items() if score in row}
    name = (max if larger_is_better else min)(rivals, key=lambda rival: rivals[rival][score])
    baseline, title = rivals[name], score_title(score)
    gain, evidence, certain = model[score] - baseline[score], "", True
    if all(score in row.get("tallies", {}) for row in (baseline, model)):
        rows = np.asarray(model["tallies"][score])
        if "numbers" in baseline:  # of the documents that the baseline has drawn
            rows = rows[np.asarray(baseline["numbers"], dtype=np.int64)]
        gain, error = paired_difference(rows, baseline["tallies"][score])
        certain = is_more_than_chance(gain, error)
        chance = "more than chance" if certain else "which may be chance"
        errors = f" ({abs(gain) / error:.1f} standard errors)" if error else ""
        evidence = f"{f' on {format_count(len(rows))} {counted}' if counted else ''}, {chance}{errors}"
    if not gain:
        return f"as good as {name} by {title}", False
    better = (gain > 0) == larger_is_better
    sentence = f"{'better' if better else 'worse'} than {name} by {abs(gain):.4f} of {title}{evidence}"
    return sentence, better and certain

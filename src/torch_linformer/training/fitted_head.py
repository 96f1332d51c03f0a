"""A head fitted to what a model makes of documents, all its other weights as they are: before a training, or instead.

A new head of random weights sends the model below it gradients that spoil what it knows, before the head has learned to
read that (Kumar et al. 2022, arXiv 2202.10054).
"""

import math
import time
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainerCallback

from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.opening.run_folder import Spent
from torch_linformer.reporting.tables import format_duration
from torch_linformer.tasks.task import Examples
from torch_linformer.training.document_trainer import DocumentTrainer, longest_first
from torch_linformer.training.training_screen import TrainingScreen

RIDGES = (1.0, 0.1, 1e-2, 1e-3, 1e-4)  # each head begins as the one before
ITERATIONS = 200  # for each of them
CONSTANT = 1e-3  # of the usual standard deviation; what deviates less tells only rounding errors apart
OF_THE_TIME = 0.25  # of --minutes, at most, that documents are read for a first head
ENOUGH = 50_000  # documents for a first head
READ_TOGETHER = 2**16  # tokens, between two looks at the clock


def fit_head(
    trainer: DocumentTrainer,
    train: Examples,
    validation: Examples,
    screen: TrainingScreen,
    *,
    most: int | None = None,
    seconds: float = math.inf,
) -> Spent:
    """Make the last layer of a classifier the :func:`best_head` for its pooled states of training documents.

    They are read once each, in random order: all, or ``most``, or as many as ``seconds`` are enough for after the
    validation documents. Returns what the reading and the fit took.
    """
    model, begin = cast(LinformerForSequenceClassification, trainer.model), time.monotonic()
    windows = cast(Dataset, train.windows)
    order = np.random.default_rng(trainer.args.seed).permutation(len(windows))[:most]
    unseen = pooled_states(trainer, cast(Dataset, validation.windows))
    read = _read(trainer, windows, order, screen, begin + seconds)
    rows = order[: len(read)]
    labels, unseen_labels = (
        torch.tensor(cast(Dataset, part)["labels"][:]) for part in (windows.select(rows), validation.windows)
    )
    weight, bias, ridge, loss = best_head(read, labels, unseen, unseen_labels, model.num_labels, model.loss_of)
    with torch.no_grad():
        model.classifier.weight.copy_(weight)
        model.classifier.bias.copy_(bias)
    spent = Spent(time.monotonic() - begin, int(np.sum(np.asarray(windows["length"][:])[rows])))
    took = f"ridge {ridge:g}, in {format_duration(spent.seconds)}"
    total = "" if len(read) == len(windows) else f" of {len(windows):,}"
    screen.say(f"head fitted to {len(read):,}{total} rows, {took}: validation loss {loss:.4f}")
    return spent


def fit_first_head(
    trainer: DocumentTrainer, train: Examples, validation: Examples, screen: TrainingScreen, a_row: float
) -> None:
    """:func:`fit_head` before a training, to no more documents than its steps will read, and in its time.

    Reading a row takes about ``a_row`` seconds.
    """
    rows, allowed = trainer.args.max_steps * trainer.args.train_batch_size, trainer.seconds_allowed
    seconds, most = math.inf if allowed is None else OF_THE_TIME * allowed, min(rows, ENOUGH)
    about = (min(most, len(train.windows)) + len(validation.windows)) * a_row
    screen.say(f"fitting a first head: reading takes about {format_duration(min(seconds, about))}")
    spent = fit_head(trainer, train, validation, screen, most=most, seconds=seconds)
    trainer.before = Spent(head_seconds=spent.seconds)


def _read(
    trainer: DocumentTrainer, windows: Dataset, order: np.ndarray, screen: TrainingScreen, until: float
) -> Tensor:
    """The :func:`pooled_states` of the first rows of ``order``, as many as can be read until then."""
    lengths = np.asarray(windows["length"][:])[order]
    together = np.flatnonzero(np.diff(lengths.cumsum() // READ_TOGETHER)) + 1
    parts = [windows.select(rows) for rows in np.split(order, together)]
    callback = _ReadingCallback(trainer.args.eval_batch_size, parts, screen)
    trainer.add_callback(callback)
    states: list[Tensor] = []
    try:
        while len(states) < len(parts) and (not states or time.monotonic() < until):
            states.append(pooled_states(trainer, parts[len(states)]))
    finally:
        trainer.remove_callback(callback)
        screen.stop()
    return torch.cat(states)


def pooled_states(trainer: DocumentTrainer, windows: Dataset) -> Tensor:
    """What the last layer of a classifier reads of each window, ``(windows, features)``, in float32."""
    model = cast(LinformerForSequenceClassification, trainer.model)
    head, model.classifier = model.classifier, cast(nn.Linear, nn.Identity())
    try:
        return torch.from_numpy(trainer.logits_of(windows.remove_columns("labels"))).float()
    finally:
        model.classifier = head


def best_head(
    known: Tensor,
    labels: Tensor,
    unseen: Tensor,
    unseen_labels: Tensor,
    num_labels: int,
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor, float, float]:
    r"""The linear layer that is best for pooled states p ``(n, C)``, chosen by those of validation documents.

    .. math:: W, b = \arg\min \; L(z W^\top + b) + \frac{\lambda}{2} \lVert W \rVert^2,
        \qquad z = \frac{p - \mathrm{mean}(p)}{\mathrm{std}(p)}

    :math:`\lambda` is the one of :data:`RIDGES` with the least loss L of the validation documents. Mean and standard
    deviation become a part of the layer. A channel that is all but constant has no weight, which would be a huge one.

    Args:
        known: states of the training documents, and
        labels: what ``loss_of`` wants beside logits of them.
        unseen: states of the validation documents, and
        unseen_labels: their labels.
        num_labels: logits of a document.
        loss_of: L of logits ``(n, labels)`` and labels.

    Returns:
        W ``(labels, C)``, b, :math:`\lambda` and the loss of the validation documents.
    """
    mean, std = known.mean(dim=0), known.std(dim=0, correction=0)
    std = std.where(std > CONSTANT * std.median(), math.inf)
    known, unseen = (known - mean) / std, (unseen - mean) / std
    weight = known.new_zeros(num_labels, known.shape[1])
    bias = known.new_zeros(num_labels)
    heads = []
    for ridge in RIDGES:
        weight, bias = fit_linear(known, labels, ridge, loss_of, weight, bias)
        loss = loss_of(unseen @ weight.T + bias, unseen_labels).item()
        heads.append((weight / std, bias - (weight / std) @ mean, ridge, loss))
    return min(heads, key=lambda head: head[-1])


def fit_linear(
    states: Tensor,
    labels: Tensor,
    ridge: float,
    loss_of: Callable[[Tensor, Tensor], Tensor],
    weight: Tensor,
    bias: Tensor,
) -> tuple[Tensor, Tensor]:
    """The W ``(labels, C)`` and b with the least ``loss_of`` logits of states ``(n, C)``, plus ``ridge`` / 2 ‖W‖².

    ``weight`` and ``bias`` are where the search begins.
    """
    weight, bias = (x.clone().requires_grad_() for x in (weight, bias))
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=ITERATIONS, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        total = loss_of(states @ weight.T + bias, labels) + ridge / 2 * weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    return weight.detach(), bias.detach()


class _ReadingCallback(TrainerCallback):
    """Shows progress by tokens, as the windows of each part are read longest first."""

    def __init__(self, at_once: int, parts: list[Dataset], screen: TrainingScreen) -> None:
        tokens = []
        for part in parts:
            lengths = np.asarray(part["length"][:])[longest_first(part)]
            tokens.append(np.add.reduceat(lengths, np.arange(0, len(lengths), at_once)))
        self.tokens = np.concatenate(tokens).cumsum().tolist()
        self.screen, self.batches, self.begin = screen, 0, time.monotonic()
        screen.start(0, self.tokens[-1], "reading")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.batches += 1
        if self.screen.is_due():
            self.screen.read(self.tokens[self.batches - 1], time.monotonic() - self.begin)

"""A head fitted to what a pretrained model makes of documents, while all its other weights stay as they are."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import TrainerCallback

from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.opening.checkpoints import Spent
from torch_linformer.tasks.task import Examples
from torch_linformer.training.document_trainer import DocumentTrainer, longest_first
from torch_linformer.training.training_screen import TrainingScreen

RIDGES = (1.0, 0.1, 1e-2, 1e-3, 1e-4)  # each head begins as the one before
ITERATIONS = 200  # for each of them


def fit_frozen(trainer: DocumentTrainer, train: Examples, validation: Examples, screen: TrainingScreen) -> Spent:
    """Make the last layer of a classifier the :func:`best_head` for its pooled states of the training documents.

    Each document is read once. Returns what the reading took.
    """
    model = cast(LinformerForSequenceClassification, trainer.model)
    begin = time.monotonic()
    with _progress(trainer, train, screen):
        known = pooled_states(trainer, train)
    unseen = pooled_states(trainer, validation)
    labels, wanted = (torch.tensor(cast(Dataset, each.windows)["labels"][:]) for each in (train, validation))
    weight, bias, ridge, loss = best_head(known, labels, unseen, wanted, model.num_labels, model.loss_of)
    screen.say(f"head fitted to {len(known):,} rows, ridge {ridge:g}: validation loss {loss:.4f}")
    with torch.no_grad():
        model.classifier.weight.copy_(weight)
        model.classifier.bias.copy_(bias)
    return Spent(time.monotonic() - begin, int(np.sum(cast(Dataset, train.windows)["length"][:])))


def pooled_states(trainer: DocumentTrainer, examples: Examples) -> Tensor:
    """What the last layer of a classifier reads of each window, ``(windows, features)``, in float32."""
    model = cast(LinformerForSequenceClassification, trainer.model)
    unlabeled = cast(Dataset, examples.windows).remove_columns("labels")
    head, model.classifier = model.classifier, cast(nn.Linear, nn.Identity())
    try:
        return torch.from_numpy(trainer.logits_of(unlabeled)).float()
    finally:
        model.classifier = head


def best_head(
    known: Tensor,
    labels: Tensor,
    unseen: Tensor,
    wanted: Tensor,
    num_labels: int,
    loss_of: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor, float, float]:
    r"""The linear layer that is best for pooled states p ``(n, C)``, chosen by those of validation documents.

    .. math:: W, b = \arg\min \; L(z W^\top + b) + \frac{\lambda}{2} \lVert W \rVert^2,
        \qquad z = \frac{p - \mathrm{mean}(p)}{\mathrm{std}(p)}

    :math:`\lambda` is the one of :data:`RIDGES` with the least loss L of the validation documents. Mean and standard
    deviation become a part of the layer.

    Args:
        known: states of the training documents, and
        labels: what ``loss_of`` wants beside logits of them.
        unseen: states of the validation documents, and
        wanted: their labels.
        num_labels: logits of a document.
        loss_of: L of logits ``(n, labels)`` and labels.

    Returns:
        W ``(labels, C)``, b, :math:`\lambda` and the loss of the validation documents.
    """
    mean, std = known.mean(dim=0), known.std(dim=0, correction=0).clamp(min=1e-6)
    known, unseen = (known - mean) / std, (unseen - mean) / std
    weight = known.new_zeros(num_labels, known.shape[1])
    bias = known.new_zeros(num_labels)
    heads = []
    for ridge in RIDGES:
        weight, bias = fit_linear(known, labels, ridge, loss_of, weight, bias)
        loss = loss_of(unseen @ weight.T + bias, wanted).item()
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


@contextmanager
def _progress(trainer: DocumentTrainer, examples: Examples, screen: TrainingScreen) -> Iterator[None]:
    """Show how far the trainer is with reading some documents."""
    callback = _ReadingCallback(trainer, examples, screen)
    trainer.add_callback(callback)
    try:
        yield
    finally:
        trainer.remove_callback(callback)
        screen.stop()


class _ReadingCallback(TrainerCallback):
    """Shows progress by tokens, as windows are read longest first."""

    def __init__(self, trainer: DocumentTrainer, examples: Examples, screen: TrainingScreen) -> None:
        lengths = np.asarray(cast(Dataset, examples.windows)["length"][:])[longest_first(examples.windows)]
        at_once = trainer.args.eval_batch_size
        self.tokens = np.add.reduceat(lengths, np.arange(0, len(lengths), at_once)).cumsum().tolist()
        self.screen, self.batches, self.begin = screen, 0, time.monotonic()
        screen.start(0, self.tokens[-1], "reading")

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.batches += 1
        if self.screen.is_due():
            self.screen.read(self.tokens[self.batches - 1], time.monotonic() - self.begin)

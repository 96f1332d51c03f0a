"""A Trainer that learns a task and scores documents."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction, PretrainedConfig

from torch_linformer.distributed.context_parallel import arguments_of_piece
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.models.arguments import CACHE_NAMES
from torch_linformer.opening import processes
from torch_linformer.opening.devices import autocast
from torch_linformer.reporting.tables import score_title
from torch_linformer.tasks.tallies import is_more_than_chance, paired_difference
from torch_linformer.tasks.task import IGNORED, Batch, ColumnLists, Examples, Task
from torch_linformer.training.batches import parts_of
from torch_linformer.training.trainer import RunTrainer, precision_of

AHEAD, ERROR = "lexical_head_ahead", "lexical_head_ahead_error"  # columns of the learning curve
COMPARED = 3  # evaluations that tell the pace


class LogitParts(NamedTuple):
    """The logits of each window, ``(windows, labels)``: those of a lexical head, and of the rest of the model."""

    lexical: Tensor
    rest: Tensor


class DocumentTrainer(RunTrainer):
    """A run's Trainer whose loss, batches and scores are those of a task.

    With a ``rival`` it stops where it cannot catch up, unless ``patience`` is None: if the rival would still be ahead
    by more than chance although every step to come brought as much as those between the last three evaluations.

    Attributes:
        rival: what each validation document adds to the score, of a method that the model has to beat.
    """

    def __init__(self, *, task: Task, validation: Examples | None = None, **kwargs: Any) -> None:
        super().__init__(
            eval_dataset=None if validation is None else validation.windows,
            data_collator=task.collator(training=True),
            preprocess_logits_for_metrics=task.reduce,
            compute_metrics=self._headline,
            **kwargs,
        )
        self.task, self.validation = task, validation
        self.rival: np.ndarray | None = None

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        smoother = self.label_smoother
        if smoother is not None and model.training:
            # The Trainer takes the labels away, and the decoder reads them.
            reads = self.accelerator.unwrap_model(model).prepare_decoder_input_ids_from_labels(inputs["labels"])
            inputs = {**inputs, "decoder_input_ids": reads}
        elif smoother is not None:
            self.label_smoother = None  # the validation loss is that of the labels
        try:
            if not model.training:
                return self.loss_of(model, inputs, *args, **kwargs)
            parts = parts_of(inputs, self.tokens_at_once)
            whole = inputs if len(parts) > 1 else None
            return self.sum_in_turn(partial(self._loss_of_part, model, part, whole) for part in parts)
        finally:
            self.label_smoother = smoother

    def _loss_of_part(self, model: nn.Module, part: Batch, whole: Batch | None) -> Tensor:
        """What a part adds to the loss of the batch of all processes; this one's ``whole``, if it has more parts."""
        config = cast(LinformerPreTrainedModel, self.model).config
        items, of = _targets(part, config), None if whole is None else _targets(whole, config)
        if processes.pieces() > 1:
            part = arguments_of_piece(cast(nn.Module, self.model), part, processes.of_row())
        return processes.mean_over_all(cast(Tensor, self.loss_of(model, part)), items, of)

    def loss_of(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        """The loss of a batch in this process."""
        return super().compute_loss(model, inputs, *args, **kwargs)

    def scores_of(self, examples: Examples) -> dict[str, Any]:
        """Every score of the model on some documents; those of what it writes in the main process."""
        scores = self.task.scores(self.answers_to(examples), examples.documents)
        if not processes.is_main():
            return scores
        model = cast(nn.Module, self.model).eval()
        with autocast(self.args.device.type, precision_of(self.args)):
            return {**scores, **self.task.written_scores(model, examples, self.args.eval_batch_size)}

    def answers_to(self, examples: Examples) -> Any:
        """The model's answer to each of some documents."""
        return self._answers(self._found(examples.windows, self.task.reduce), examples)

    def parts_of(self, examples: Examples) -> LogitParts:
        """What a classifier with a lexical head makes of some documents."""

        def parts(logits: Any, labels: Any) -> Tensor:
            both, lexical = (part.float() for part in logits)
            return torch.stack([lexical, both - lexical], dim=1)

        logits_of_parts = self._found(examples.windows, parts, ignore_keys=[*CACHE_NAMES])  # not "lexical_logits"
        lexical, rest = torch.from_numpy(_in_their_order(logits_of_parts, examples.windows)).unbind(dim=1)
        return LogitParts(lexical, rest)

    def logits_of(self, windows: Dataset) -> np.ndarray:
        """The logits of each window, whatever they are."""
        return _in_their_order(self._found(windows, None), windows)

    def _found(self, windows: Any, reduce: Any, ignore_keys: list[str] | None = None) -> Any:
        """What ``reduce`` leaves of the logits of each window, in the order in which they are read."""
        usual = self.compute_metrics, self.preprocess_logits_for_metrics  # those of the validation documents
        self.compute_metrics, self.preprocess_logits_for_metrics = None, reduce
        try:
            return self.predict(windows, ignore_keys=ignore_keys).predictions
        finally:
            self.compute_metrics, self.preprocess_logits_for_metrics = usual

    def answers_of_logits(self, logits: Tensor, examples: Examples) -> Any:
        """The answer to each document, from the logits of each window."""
        windows = cast(ColumnLists, examples.windows)
        return self.task.answers(self.task.reduce(logits, None), windows, examples.documents)

    def _headline(self, prediction: EvalPrediction) -> dict[str, float]:
        """The headline scores of the validation documents, as the Trainer asks for them while it trains."""
        assert self.validation is not None
        answers = self._answers(prediction.predictions, self.validation)
        self.task.tune(answers, self.validation.documents)
        scores = self.task.scores(answers, self.validation.documents)
        headline = {name: scores[name] for name in self.task.validated or self.task.headline}
        if self.rival is not None:
            headline |= self._behind(scores["tallies"][self.task.best_metric])
        return headline

    def _behind(self, counted: np.ndarray) -> dict[str, float]:
        """By how much the rival is ahead, below 0 where it is behind, and the standard error of that."""
        assert self.rival is not None
        gain, error = paired_difference(self.rival, counted)
        return {AHEAD: gain if self.task.larger_is_better else -gain, ERROR: error}

    @property
    def reason_to_stop(self) -> str:
        return super().reason_to_stop or (self._why_it_cannot_win if self.patience is not None else "")

    @property
    def _why_it_cannot_win(self) -> str:
        history = [entry for entry in self.state.log_history if f"eval_{AHEAD}" in entry][-COMPARED:]
        if len(history) < COMPARED:
            return ""
        steps, ahead = [int(entry["step"]) for entry in history], [entry[f"eval_{AHEAD}"] for entry in history]
        left = steps[-1] / self.progress(steps[-1]) - steps[-1]
        pace = max(0.0, ahead[0] - ahead[-1]) / (steps[-1] - steps[0])
        expected = ahead[-1] - pace * left
        if expected <= 0 or not is_more_than_chance(expected, history[-1][f"eval_{ERROR}"]):
            return ""
        score = score_title(self.task.best_metric)
        return (
            f"on the validation documents the lexical head alone is ahead by {ahead[-1]:.4f} of {score}, more than the "
            "rest of the training brings at its pace and more than chance; --from an encoder that knows the language "
            "may help, --patience 0 trains on"
        )

    def _answers(self, predictions: Any, examples: Examples) -> Any:
        reduced = _in_their_order(predictions, examples.windows)
        return self.task.answers(reduced, cast(ColumnLists, examples.windows), examples.documents)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        with self._evaluating():
            return super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        with self._evaluating():
            return super().get_test_dataloader(test_dataset)

    @contextmanager
    def _evaluating(self) -> Iterator[None]:
        training_collator, self.data_collator = self.data_collator, self.task.collator(training=False)
        try:
            yield
        finally:
            self.data_collator = training_collator

    def _get_eval_sampler(self, eval_dataset: Any) -> Any:
        return longest_first(eval_dataset).tolist()


def _targets(batch: Batch, config: PretrainedConfig) -> Tensor:
    """How many targets the loss of a batch is a mean over, or their total weight."""
    labels = batch.get("labels", batch["input_ids"][:, 0])  # an answer's first and last token: one of each a row
    if labels.is_floating_point():
        return (~labels.isnan()).sum()
    weights = getattr(config, "class_weights", None)
    return (labels != IGNORED).sum() if weights is None else torch.tensor(weights, device=labels.device)[labels].sum()


def _in_their_order(predictions: np.ndarray, windows: Any) -> np.ndarray:
    """What the Trainer found of windows, which it read in another order."""
    return predictions[np.argsort(longest_first(windows), kind="stable")]


def longest_first(windows: Any) -> np.ndarray:
    """The order in which windows are evaluated: a batch then holds little padding."""
    return np.argsort(windows["length"][:], kind="stable")[::-1]

"""A Trainer that learns a task and scores documents."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import EvalPrediction, PretrainedConfig

from torch_linformer.distributed import processes
from torch_linformer.distributed.context_parallel import arguments_of_piece
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.devices import autocast
from torch_linformer.tasks.task import IGNORED, Batch, ColumnLists, Examples, Task
from torch_linformer.training.batches import parts_of
from torch_linformer.training.trainer import RunTrainer, precision_of


class DocumentTrainer(RunTrainer):
    """A run's Trainer whose loss, batches and scores are those of a task."""

    def __init__(self, *, task: Task, validation: Examples | None = None, **kwargs: Any) -> None:
        super().__init__(
            eval_dataset=None if validation is None else validation.windows,
            data_collator=task.collator(training=True),
            preprocess_logits_for_metrics=task.reduce,
            compute_metrics=self._headline,
            **kwargs,
        )
        self.task, self.validation = task, validation

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if not model.training:
            return self.loss_of(model, inputs, *args, **kwargs)
        parts = parts_of(inputs, self.tokens_at_once)
        whole = inputs if len(parts) > 1 else None
        return self.sum_in_turn(partial(self._loss_of_part, model, part, whole) for part in parts)

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

    def logits_of(self, windows: Dataset) -> np.ndarray:
        """The logits of each window, whatever they are."""
        return _in_their_order(self._found(windows, None), windows)

    def _found(self, windows: Any, reduce: Any) -> Any:
        """What ``reduce`` leaves of the logits of each window, in the order in which they are read."""
        usual = self.compute_metrics, self.preprocess_logits_for_metrics  # those of the validation documents
        self.compute_metrics, self.preprocess_logits_for_metrics = None, reduce
        try:
            return self.predict(windows).predictions
        finally:
            self.compute_metrics, self.preprocess_logits_for_metrics = usual

    def _headline(self, prediction: EvalPrediction) -> dict[str, float]:
        """The headline scores of the validation documents, as the Trainer asks for them while it trains."""
        assert self.validation is not None
        answers = self._answers(prediction.predictions, self.validation)
        self.task.tune(answers, self.validation.documents)
        scores = self.task.scores(answers, self.validation.documents)
        return {name: scores[name] for name in self.task.validated or self.task.headline}

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

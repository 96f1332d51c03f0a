"""The Trainers that learn a task and score documents."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader
from transformers import EvalPrediction, PretrainedConfig, PreTrainedModel

from torch_linformer.distributed import processes
from torch_linformer.distributed.context_parallel import arguments_of_piece
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.heads import predicts_at
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.models.heads import token_loss
from torch_linformer.models.pieces import largest_products
from torch_linformer.opening.devices import autocast
from torch_linformer.opening.load import AnyModel
from torch_linformer.tasks.language_modeling import MaskedLanguageModeling
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.tasks.retrieval_metrics import SCALE
from torch_linformer.tasks.task import IGNORED, Batch, ColumnLists, Examples, Task
from torch_linformer.training.batches import TOKENS_AT_ONCE, parts_of
from torch_linformer.training.trainer import RunTrainer, precision_of

Embed = Callable[[Tensor, Tensor], Tensor]  # from ids and mask to vectors
SPARSE = "sparse_prediction"  # in batches of a training


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
        return self._answers(self.logits_of(cast(Dataset, examples.windows), self.task.reduce), examples)

    def logits_of(self, windows: Dataset, reduce: Any = None) -> Any:
        """The logits of each window, or what ``reduce`` leaves of them."""
        usual = self.compute_metrics, self.preprocess_logits_for_metrics  # those of the validation documents
        self.compute_metrics, self.preprocess_logits_for_metrics = None, reduce
        try:
            return _in_their_order(self.predict(cast(Any, windows)).predictions, windows)
        finally:
            self.compute_metrics, self.preprocess_logits_for_metrics = usual

    def _headline(self, prediction: EvalPrediction) -> dict[str, float]:
        """The headline scores of the validation documents, as the Trainer asks for them while it trains."""
        assert self.validation is not None
        answers = self._answers(_in_their_order(prediction.predictions, self.validation.windows), self.validation)
        self.task.tune(answers, self.validation.documents)
        scores = self.task.scores(answers, self.validation.documents)
        return {name: scores[name] for name in self.task.validated or self.task.headline}

    def _answers(self, reduced: Any, examples: Examples) -> Any:
        return self.task.answers(reduced, cast(ColumnLists, examples.windows), examples.documents)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        return self.get_test_dataloader(self.eval_dataset if eval_dataset is None else eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> DataLoader[Any]:
        loader: DataLoader[Any] = DataLoader(
            test_dataset,
            self.args.eval_batch_size,
            sampler=longest_first(test_dataset).tolist(),
            collate_fn=self.task.collator(training=False),
            pin_memory=self.args.dataloader_pin_memory,
        )
        return cast("DataLoader[Any]", self.accelerator.prepare(loader))


def _targets(batch: Batch, config: PretrainedConfig) -> Tensor:
    """How many targets the loss of a batch is a mean over, or their total weight."""
    labels = batch.get("labels", batch["input_ids"][:, 0])  # an answer's first and last token: one of each a row
    if labels.is_floating_point():
        return (~labels.isnan()).sum()
    weights = getattr(config, "class_weights", None)
    return (labels != IGNORED).sum() if weights is None else torch.tensor(weights, device=labels.device)[labels].sum()


def _in_their_order(predictions: Any, windows: Any) -> Any:
    """What the Trainer found of windows, which it read in another order."""
    return predictions[np.argsort(longest_first(windows), kind="stable")]


def longest_first(windows: Any) -> np.ndarray:
    """The order in which windows are evaluated: a batch then holds little padding."""
    return np.argsort(windows["length"][:], kind="stable")[::-1]


def contrastive_loss(queries: Tensor, documents: Tensor, query_of: Tensor, query_group: Tensor) -> Tensor:
    r"""How surprising it is that each query finds its document among those of the batch, in nats.

    .. math:: -\frac{1}{Q} \sum_i \ln \frac{e^{s\, q_i \cdot d_{p(i)}}}{\sum_j e^{s\, q_i \cdot d_j}}

    with s = 20, over the query's own document and the documents j that no query of its group has. (van den Oord et al.
    2018, `InfoNCE <https://arxiv.org/abs/1807.03748>`_; Henderson et al. 2017, arXiv 1705.00652, for batches.)

    Args:
        queries: ``(Q, C)`` of length 1; of several vectors each, ``(Q, M, C)``, the largest product counts, as for
        documents: ``(B, C)`` or ``(B, M, C)`` of length 1.
        query_of: ``(Q,)``, the number p of each query's document.
        query_group: ``(Q,)``; queries of the same group, such as equal ones, find the same documents.
    """
    if not len(queries):
        return documents.sum() * 0.0
    scores = SCALE * largest_products(queries, documents)
    own = F.one_hot(query_of, len(documents))
    relevant = (query_group[:, None] == query_group).to(scores.dtype) @ own.to(scores.dtype) > 0
    return F.cross_entropy(scores.masked_fill(relevant & ~own.bool(), float("-inf")), query_of)


def in_turn(embed: Embed, texts: Sequence[tuple[Tensor, Tensor]], tokens: int) -> list[Tensor]:
    """``embed`` of the ids and masks of several kinds of texts, so many tokens at once, longest rows first.

    Only the vectors of a part are kept: what its backward pass needs is computed again, so that memory does not grow
    with the batch (Gao et al. 2021, `gradient cache <https://arxiv.org/abs/2101.06983>`_, by recomputation). All
    processes compute equally many parts of a kind, at least one.
    """
    orders = [torch.argsort(mask.sum(dim=1), descending=True, stable=True) for _, mask in texts]
    parts = [
        torch.split(order, max(1, tokens // ids.shape[1])) if len(ids) else ()
        for (ids, _), order in zip(texts, orders, strict=True)
    ]
    calls = [max(1, *of_all) for of_all in zip(*processes.gathered([len(own) for own in parts]), strict=True)]
    # Reentrant, so that each call has a backward pass of its own, after which weights may go to pieces again; as in
    # training the first time too, since dropout may be another where nothing is learned.
    learning = torch.zeros((), requires_grad=True)
    as_in_training = torch.enable_grad()(lambda ids, mask, _: embed(ids, mask))

    def vectors_of(ids: Tensor, mask: Tensor) -> Tensor:
        if sum(calls) == len(texts):
            return embed(ids, mask)
        return cast(Tensor, checkpoint(as_in_training, ids, mask, learning, use_reentrant=True))

    vectors = []
    for (ids, mask), order, own, needed in zip(texts, orders, parts, calls, strict=True):
        real = [mask[rows].any(dim=0) for rows in own]  # without padding that no row of a part needs
        found = [vectors_of(ids[rows][:, some], mask[rows][:, some]) for rows, some in zip(own, real, strict=True)]
        # In each call processes may put weights together: who has fewer parts reads a token of which nothing is kept.
        found += [vectors_of(order.new_zeros(1, 1), order.new_ones(1, 1)) for _ in range(needed - len(own))]
        vectors.append(torch.cat(found)[torch.argsort(order)])
    return vectors


class RetrievalTrainer(DocumentTrainer):
    """A run's Trainer whose loss is that of queries and documents, and whose answers are vectors."""

    task: Retrieval
    most_at_once = TOKENS_AT_ONCE

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        own = self.accelerator.unwrap_model(model)

        def embed(ids: Tensor, mask: Tensor) -> Tensor:
            self.heed_signals()
            return self.task.respond(own, {"input_ids": ids, "attention_mask": mask})

        texts = [(inputs["input_ids"], inputs["attention_mask"]), (inputs["query_ids"], inputs["query_mask"])]
        documents, queries = in_turn(embed, texts, self.tokens_at_once)
        # The documents of all processes are each other's negatives; each has a part of the same loss's gradient.
        before = sum(processes.gathered(len(documents))[: processes.rank()])
        queries, documents, query_of, query_group = map(
            processes.rows_of_all, (queries, documents, inputs["query_of"] + before, inputs["query_group"])
        )
        return contrastive_loss(queries, documents, query_of, query_group)

    def share_gradients(self) -> None:
        # Torch's wrapper expects the model to be called once a step, and here it is called for each part, twice.
        for weight in cast(nn.Module, self.pieces or self.model).parameters():
            if weight.grad is not None:
                whole = self.pieces is None  # of pieces it is the mean over the processes already
                weight.grad = processes.total(weight.grad) if whole else weight.grad * processes.count()

    def prediction_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        self.heed_signals()
        with torch.no_grad(), self.compute_loss_context_manager():
            vectors = self.task.respond(model, self._prepare_inputs(inputs))
        return None, vectors, torch.zeros(len(vectors))  # without labels a Trainer computes no scores


class MaskedWordsTrainer(DocumentTrainer):
    """A run's Trainer whose model has a head of transformers for masked words."""

    def loss_of(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if SPARSE not in inputs:
            return super().loss_of(model, inputs, *args, **kwargs)
        chosen = inputs["labels"] != IGNORED
        rows = {name: x for name, x in inputs.items() if name not in (SPARSE, "labels")}
        with predicts_at(cast(PreTrainedModel, self.accelerator.unwrap_model(model)), chosen):
            logits = model(**rows).logits.squeeze(0)
        return token_loss(logits, inputs["labels"][chosen])


def trainer_for(task: Task, model: AnyModel) -> type[DocumentTrainer]:
    """The Trainer by which a model learns a task."""
    if isinstance(task, MaskedLanguageModeling) and isinstance(model, LinearEncoder):
        return MaskedWordsTrainer
    return RetrievalTrainer if isinstance(task, Retrieval) else DocumentTrainer

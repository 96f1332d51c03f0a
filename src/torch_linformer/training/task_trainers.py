"""The Trainers of tasks whose batches are special: vectors by contrast, and masked words of packed rows."""

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel

from torch_linformer.distributed import processes
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.heads import predicts_at
from torch_linformer.models.heads import token_loss
from torch_linformer.models.pieces import largest_products
from torch_linformer.opening.load import AnyModel
from torch_linformer.tasks.language_modeling import MaskedLanguageModeling
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.tasks.retrieval_metrics import SCALE
from torch_linformer.tasks.task import IGNORED, Task
from torch_linformer.training.batches import TOKENS_AT_ONCE
from torch_linformer.training.document_trainer import DocumentTrainer

Embed = Callable[[Tensor, Tensor], Tensor]  # from ids and mask to vectors
SPARSE = "sparse_prediction"  # in batches of a training


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
    parts = [_parts(*rows, order, tokens) for rows, order in zip(texts, orders, strict=True)]
    calls = [max(1, *of_all) for of_all in zip(*processes.gathered([len(own) for own in parts]), strict=True)]
    if sum(calls) > len(texts):
        embed = _again_for_gradients(embed)
    vectors = []
    for own, order, needed in zip(parts, orders, calls, strict=True):
        # In each call processes may put weights together: who has fewer parts reads a token of which nothing is kept.
        token = order.new_zeros(1, 1), order.new_ones(1, 1)
        own += [token] * (needed - len(own))
        vectors.append(torch.cat([embed(*part) for part in own])[torch.argsort(order)])
    return vectors


def _parts(ids: Tensor, mask: Tensor, order: Tensor, tokens: int) -> list[tuple[Tensor, Tensor]]:
    """Rows in this order, cut into parts of so many tokens, without padding that no row of a part needs."""
    parts = []
    for rows in torch.split(order, max(1, tokens // ids.shape[1])) if len(ids) else ():
        real = mask[rows].any(dim=0)
        parts.append((ids[rows][:, real], mask[rows][:, real]))
    return parts


def _again_for_gradients(embed: Embed) -> Embed:
    """``embed`` that keeps nothing for the backward pass, which computes it again."""
    # Reentrant, so that each call has a backward pass of its own, after which weights may go to pieces again; as in
    # training the first time too, since dropout may be another where nothing is learned.
    learning = torch.zeros((), requires_grad=True)
    as_in_training = torch.enable_grad()(lambda ids, mask, _: embed(ids, mask))
    return lambda ids, mask: cast(Tensor, checkpoint(as_in_training, ids, mask, learning, use_reentrant=True))


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

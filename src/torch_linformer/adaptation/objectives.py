"""What an encoder is used for: what is distilled besides its hidden states, and how a student's outputs compare."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional as F
from transformers import DataCollatorWithPadding, PreTrainedModel, PreTrainedTokenizerFast

from torch_linformer.encoders.heads import Head, head_logits, predicts_at
from torch_linformer.errors import InputError
from torch_linformer.models.pooling import embed
from torch_linformer.tasks.language_modeling import VALIDATION_EPOCH, MaskingCollator
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.task import IGNORED
from torch_linformer.tasks.whole_documents import Classification, MultiLabel

NEIGHBOURS = 10
Outputs = dict[str, Tensor]  # what is compared of a model, by name, with a row for each text
Batch = dict[str, Tensor]


def embedding_scores(vectors: Tensor, reference: Tensor) -> dict[str, float]:
    """How well embeddings ``(n, C)`` of length 1 replace others of the same texts.

    Returns:
        ``cosine``: mean over the texts. ``rank_correlation``: Spearman's, of the similarities of all pairs.
        ``neighbours``: share of each text's ten nearest that are still among its ten nearest.
    """
    ours, theirs = (vectors @ vectors.T).double(), (reference @ reference.T).double()
    pairs = np.triu_indices(len(vectors), 1)
    kept = _nearest(ours) & _nearest(theirs)
    return {
        "cosine": float((vectors * reference).sum(dim=-1).mean()),
        "rank_correlation": float(spearmanr(ours.numpy()[pairs], theirs.numpy()[pairs]).statistic),
        "neighbours": float(kept.sum(dim=-1).double().mean()) / min(NEIGHBOURS, len(vectors) - 1),
    }


def chance_of_neighbours(texts: int) -> float:
    """What ``neighbours`` is on average where each text's nearest others are drawn at random."""
    return min(NEIGHBOURS, texts - 1) / (texts - 1)


def _nearest(similarities: Tensor) -> Tensor:
    """Bool ``(n, n)``: True at the nearest others of each text."""
    others = similarities.clone().fill_diagonal_(-torch.inf)
    indices = others.topk(min(NEIGHBOURS, len(others) - 1), dim=-1).indices
    return torch.zeros_like(others, dtype=torch.bool).scatter(-1, indices, True)


class Embeddings:
    """Embeddings, which every encoder has.

    ``model`` is the original, for its labels, and ``seed`` that of the masks; ``titles`` of scores are in the order in
    which they are shown.
    """

    name = "embed"  # the --task
    head: Head = "none"  # what the model has for it, and what opens it
    auto_class = "AutoModel"
    best, larger_is_better = "cosine", True  # the score that selects the checkpoint
    lower_is_better = frozenset({"masked_loss", "divergence"})  # of all scores that there are
    several = False  # labels of a text

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, pooling: str = "mean", seed: int = 0
    ) -> None:
        self.pooling = pooling
        self.titles = {
            "cosine": "cosine to the original",
            "rank_correlation": "rank correlation of similarities",
            "neighbours": "ten nearest kept",
        }
        self._pad = DataCollatorWithPadding(tokenizer)

    def collator(self, training: bool) -> Any:
        return lambda windows: dict(self._pad([{"input_ids": window["input_ids"]} for window in windows]))

    def reading(self, student: PreTrainedModel, inputs: Batch) -> AbstractContextManager[None]:
        """Around the student's forward pass, so that its head makes what :meth:`loss` reads."""
        return nullcontext()

    def loss(self, outputs: Any, teacher: PreTrainedModel, hidden: Tensor, inputs: Batch) -> Tensor | float:
        """What is learned besides: from the student's outputs, and the teacher's last hidden states ``(B, N, C)``."""
        return 0.0

    def items(self, inputs: Batch) -> Tensor:
        """How many texts or words :meth:`loss` is a mean over."""
        return torch.tensor(len(inputs["input_ids"]), device=inputs["input_ids"].device)

    def read(self, model: PreTrainedModel, hidden: Tensor, inputs: Batch) -> Outputs:
        """What is compared, from a model's last hidden states."""
        return {"embeddings": embed(hidden, inputs["attention_mask"], self.pooling)}

    def likeness(self, outputs: Outputs, reference: Outputs) -> dict[str, float]:
        """How close the student is to the original."""
        return embedding_scores(outputs["embeddings"], reference["embeddings"])

    def quality(self, outputs: Outputs, documents: Dataset) -> dict[str, float]:
        """How good a model is by itself, the student or the original."""
        return {}


class MaskedWords(Embeddings):
    """Masked tokens, predicted from the rest; embeddings are those of the masked texts.

    Raises:
        InputError: the tokenizer has no mask token.
    """

    name, auto_class = "mlm", "AutoModelForMaskedLM"
    head: Head = "masked words"
    best, larger_is_better = "masked_loss", False

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, pooling: str = "mean", seed: int = 0
    ) -> None:
        super().__init__(model, tokenizer, pooling, seed)
        if tokenizer.mask_token_id is None:
            raise InputError("--task mlm needs a tokenizer with a mask token; --task embed adapts only the encoder")
        self.tokenizer, self.seed = tokenizer, seed
        self.titles = {"masked_loss": "loss of masked words", **self.titles}

    def collator(self, training: bool) -> MaskingCollator:
        return MaskingCollator(self.tokenizer, self.seed, epoch=0 if training else VALIDATION_EPOCH)

    def reading(self, student: PreTrainedModel, inputs: Batch) -> AbstractContextManager[None]:
        return predicts_at(student, inputs["labels"] != IGNORED)

    def loss(self, outputs: Any, teacher: PreTrainedModel, hidden: Tensor, inputs: Batch) -> Tensor:
        logits: Tensor = outputs.logits.squeeze(0)
        if not len(logits):  # as in a short text
            return logits.sum() * 0.0
        return divergence(logits, head_logits(teacher, hidden[inputs["labels"] != IGNORED]))

    def items(self, inputs: Batch) -> Tensor:
        return (inputs["labels"] != IGNORED).sum()

    def read(self, model: PreTrainedModel, hidden: Tensor, inputs: Batch) -> Outputs:
        masked = inputs["labels"] != IGNORED
        nats = torch.zeros(masked.shape, dtype=torch.float, device=hidden.device)
        logits = head_logits(model, hidden[masked]).float()
        nats[masked] = F.cross_entropy(logits, inputs["labels"][masked], reduction="none")
        sums = {"nats": nats.sum(dim=-1), "masked": masked.sum(dim=-1)}
        return {**super().read(model, hidden, inputs), **sums}

    def quality(self, outputs: Outputs, documents: Dataset) -> dict[str, float]:
        return {"masked_loss": float(outputs["nats"].sum() / outputs["masked"].sum())}


class Labels(Embeddings):
    """Labels of a classifier.

    Raises:
        InputError: it predicts a number.
    """

    name = "classify"
    head: Head = "rows"
    auto_class = "AutoModelForSequenceClassification"
    best, larger_is_better = "divergence", False  # agreement on 128 texts changes in coarse steps

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, pooling: str = "mean", seed: int = 0
    ) -> None:
        super().__init__(model, tokenizer, pooling, seed)
        task = task_of(model, tokenizer, seed)
        if not isinstance(task, Classification | MultiLabel):
            raise InputError("--task classify is for labels, and this model predicts a number; --task embed adapts it")
        self.task = task
        self.several = isinstance(task, MultiLabel)
        self.titles = {
            "agreement": "same label as the original",
            "divergence": "KL divergence from the original",
            **{name: name.replace("_f1", " F1") for name in task.headline},
            **self.titles,
        }

    def loss(self, outputs: Any, teacher: PreTrainedModel, hidden: Tensor, inputs: Batch) -> Tensor:
        return self._divergence(outputs.logits, head_logits(teacher, hidden, inputs["attention_mask"]))

    def read(self, model: PreTrainedModel, hidden: Tensor, inputs: Batch) -> Outputs:
        logits = head_logits(model, hidden, inputs["attention_mask"])
        return {**super().read(model, hidden, inputs), "logits": logits.float()}

    def likeness(self, outputs: Outputs, reference: Outputs) -> dict[str, float]:
        ours, theirs = outputs["logits"], reference["logits"]
        same = self._labels(ours) == self._labels(theirs)
        scores = {"agreement": float(same.double().mean()), "divergence": float(self._divergence(ours, theirs))}
        return {**scores, **super().likeness(outputs, reference)}

    def quality(self, outputs: Outputs, documents: Dataset) -> dict[str, float]:
        if "label" not in documents.column_names:
            return {}
        scores = self.task.scores(self.task.reduce(outputs["logits"], None).numpy(), documents)
        return {name: scores[name] for name in self.task.headline}

    def _divergence(self, logits: Tensor, reference: Tensor) -> Tensor:
        if not self.several:
            return divergence(logits, reference)
        # Each label is a choice between its presence and its absence.
        return divergence(*(torch.stack([x, torch.zeros_like(x)], dim=-1) for x in (logits, reference)))

    def _labels(self, logits: Tensor) -> Tensor:
        """The label of each text; or, of several labels, whether it has each."""
        return logits > 0 if self.several else logits.argmax(dim=-1)


def divergence(logits: Tensor, reference: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the choices by ``logits`` ``(…, choices)`` from those wanted, mean, in nats."""
    ours, theirs = (F.log_softmax(x.flatten(0, -2).float(), dim=-1) for x in (logits, reference))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


OBJECTIVES = {objective.name: objective for objective in (Embeddings, MaskedWords, Labels)}

"""What an encoder is used for: what is distilled besides its hidden states, and how a student is compared."""

from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional as F
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.adaptation.similarity import embedding_scores
from torch_linformer.errors import InputError
from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
    LinformerPreTrainedModel,
)
from torch_linformer.models.heads import LabeledModel
from torch_linformer.models.pooling import embed
from torch_linformer.tasks.masking import VALIDATION_EPOCH, MaskingCollator
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.task import IGNORED
from torch_linformer.tasks.whole_documents import Classification, MultiLabel

Outputs = dict[str, Tensor]  # what is compared of a model, by name, with a row for each text
Batch = dict[str, Tensor]


class Embeddings:
    """Embeddings, which every encoder has.

    Attributes:
        name: the ``--task``.
        model_class: what is adapted.
        auto_class: what opens it.
        best: the score that selects the checkpoint, the highest if ``larger_is_better``.
        several: whether a text has several labels.
        titles: of the scores, in the order in which they are shown.

    Args:
        model: the original, for its labels and its pooling.
        tokenizer: its own.
        seed: of the masks.
    """

    name = "embed"
    model_class: type[LinformerPreTrainedModel] = LinformerModel
    auto_class = "AutoModel"
    best, larger_is_better = "cosine", True
    several = False

    def __init__(self, model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        self.pooling = model.config.pooling
        self.titles = {
            "cosine": "cosine to the original",
            "rank_correlation": "rank correlation of similarities",
            "neighbours": "ten nearest kept",
        }
        self._pad = DataCollatorWithPadding(tokenizer)

    def collator(self, training: bool) -> Any:
        """A function from windows to a batch."""
        return lambda windows: dict(self._pad([{"input_ids": window["input_ids"]} for window in windows]))

    def asked(self, inputs: Batch) -> dict[str, Any]:
        """More arguments of the student's forward pass, so that its outputs have what :meth:`loss` reads."""
        return {}

    def loss(self, outputs: Any, teacher: LinformerPreTrainedModel, hidden: Tensor, inputs: Batch) -> Tensor | float:
        """What the student learns besides hidden states and embeddings, from what ``teacher`` makes of ``hidden``.

        ``outputs`` are the student's, ``hidden`` the teacher's last hidden states ``(B, N, C)``, ``inputs`` the batch.
        """
        return 0.0

    def items(self, inputs: Batch) -> Tensor:
        """How many texts or words :meth:`loss` is a mean over."""
        return torch.tensor(len(inputs["input_ids"]), device=inputs["input_ids"].device)

    def read(self, model: LinformerPreTrainedModel, hidden: Tensor, inputs: Batch) -> Outputs:
        """What is compared, from a model's last hidden states."""
        return {"embeddings": embed(hidden, inputs["attention_mask"], self.pooling)}

    def likeness(self, given: Outputs, wanted: Outputs) -> dict[str, float]:
        """How close the student is to the original."""
        return embedding_scores(given["embeddings"], wanted["embeddings"])

    def quality(self, found: Outputs, documents: Dataset) -> dict[str, float]:
        """How good a model is by itself, the student or the original."""
        return {}


class MaskedWords(Embeddings):
    """Masked tokens, predicted from the rest; embeddings are those of the masked texts.

    Raises:
        InputError: the tokenizer has no mask token.
    """

    name, model_class, auto_class = "mlm", LinformerForMaskedLM, "AutoModelForMaskedLM"
    best, larger_is_better = "masked_loss", False

    def __init__(self, model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        super().__init__(model, tokenizer, seed)
        if tokenizer.mask_token_id is None:
            raise InputError("--task mlm needs a tokenizer with a mask token; --task embed adapts only the encoder")
        self.tokenizer, self.seed = tokenizer, seed
        self.titles = {"masked_loss": "loss of masked words", **self.titles}

    def collator(self, training: bool) -> MaskingCollator:
        return MaskingCollator(self.tokenizer, self.seed, epoch=0 if training else VALIDATION_EPOCH)

    def asked(self, inputs: Batch) -> dict[str, Any]:
        return {"labels": inputs["labels"], "sparse_prediction": True}

    def loss(self, outputs: Any, teacher: LinformerPreTrainedModel, hidden: Tensor, inputs: Batch) -> Tensor:
        if not len(outputs.logits):  # as in a short text
            return cast(Tensor, outputs.logits).sum() * 0.0
        return divergence(outputs.logits, _logits(teacher, hidden[inputs["labels"] != IGNORED], None))

    def items(self, inputs: Batch) -> Tensor:
        return (inputs["labels"] != IGNORED).sum()

    def read(self, model: LinformerPreTrainedModel, hidden: Tensor, inputs: Batch) -> Outputs:
        masked = inputs["labels"] != IGNORED
        nats = torch.zeros(masked.shape, dtype=torch.float, device=hidden.device)
        logits = _logits(model, hidden[masked], None).float()
        nats[masked] = F.cross_entropy(logits, inputs["labels"][masked], reduction="none")
        sums = {"nats": nats.sum(dim=-1), "masked": masked.sum(dim=-1)}
        return {**super().read(model, hidden, inputs), **sums}

    def quality(self, found: Outputs, documents: Dataset) -> dict[str, float]:
        return {"masked_loss": float(found["nats"].sum() / found["masked"].sum())}


class Labels(Embeddings):
    """Labels of a classifier.

    Raises:
        InputError: it predicts a number.
    """

    name, model_class = "classify", LinformerForSequenceClassification
    auto_class = "AutoModelForSequenceClassification"
    best, larger_is_better = "divergence", False  # agreement on 128 texts changes in coarse steps

    def __init__(self, model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> None:
        super().__init__(model, tokenizer, seed)
        task = task_of(model, tokenizer, seed)
        if not isinstance(task, Classification | MultiLabel):
            raise InputError("--task classify is for labels, and this model predicts a number; --task embed adapts it")
        self.task = task
        self.several = isinstance(task, MultiLabel)
        self.titles = {
            "agreement": "same label as the original",
            "divergence": "divergence from the original, nats",
            **{name: name.replace("_f1", " F1") for name in task.headline},
            **self.titles,
        }

    def loss(self, outputs: Any, teacher: LinformerPreTrainedModel, hidden: Tensor, inputs: Batch) -> Tensor:
        return self._divergence(outputs.logits, _logits(teacher, hidden, inputs["attention_mask"]))

    def read(self, model: LinformerPreTrainedModel, hidden: Tensor, inputs: Batch) -> Outputs:
        logits = _logits(model, hidden, inputs["attention_mask"])
        return {**super().read(model, hidden, inputs), "logits": logits.float()}

    def likeness(self, given: Outputs, wanted: Outputs) -> dict[str, float]:
        ours, theirs = given["logits"], wanted["logits"]
        same = self._labels(ours) == self._labels(theirs)
        scores = {"agreement": float(same.double().mean()), "divergence": float(self._divergence(ours, theirs))}
        return {**scores, **super().likeness(given, wanted)}

    def quality(self, found: Outputs, documents: Dataset) -> dict[str, float]:
        if "label" not in documents.column_names:
            return {}
        scores = self.task.scores(self.task.reduce(found["logits"], None).numpy(), documents)
        return {name: scores[name] for name in self.task.headline}

    def _divergence(self, given: Tensor, wanted: Tensor) -> Tensor:
        if not self.several:
            return divergence(given, wanted)
        # Each label is a choice between its presence and its absence.
        return divergence(*(torch.stack([x, torch.zeros_like(x)], dim=-1) for x in (given, wanted)))

    def _labels(self, logits: Tensor) -> Tensor:
        """The label of each text; or, of several labels, whether it has each."""
        return logits > 0 if self.several else logits.argmax(dim=-1)


def _logits(model: LinformerPreTrainedModel, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
    """What a model's head makes of its last hidden states."""
    logits: Tensor = cast(LabeledModel, model).logits_of(hidden, attention_mask)
    return logits


def divergence(logits: Tensor, wanted: Tensor) -> Tensor:
    """Kullback-Leibler divergence of the choices by ``logits`` ``(…, choices)`` from those wanted, mean, in nats."""
    ours, theirs = (F.log_softmax(x.flatten(0, -2).float(), dim=-1) for x in (logits, wanted))
    return F.kl_div(ours, theirs, reduction="batchmean", log_target=True)


OBJECTIVES = {objective.name: objective for objective in (Embeddings, MaskedWords, Labels)}

"""What a task adds to a run: its model, its batches and its scores."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers.decoders import ByteLevel
from torch import Tensor
from transformers import DataCollatorWithPadding, EvalPrediction, PreTrainedTokenizerBase

from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerPreTrainedModel,
)
from torch_linformer.training.errors import InputError
from torch_linformer.training.metrics import classification_metrics, masked_lm_metrics

MASK_SHARE = 0.15  # of the tokens of a document are predicted, as in BERT
VALIDATION_EPOCH = -1  # masks drawn for this "epoch" are the same at every evaluation


class Task(ABC):
    """What a run needs to know of a task. ``best_metric`` picks the checkpoint, ``headline`` heads the report."""

    best_metric: str
    larger_is_better: bool
    headline: tuple[str, ...]
    model_class: type[LinformerPreTrainedModel]

    @abstractmethod
    def prepare(self, dataset: Dataset) -> Dataset:
        """Tokenised documents with the columns the collators read."""

    @abstractmethod
    def collator(self, training: bool) -> Callable[[list[dict[str, Any]]], dict[str, Tensor]]:
        """What makes a batch of examples."""

    @abstractmethod
    def preprocess_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The small part of the logits that the scores need."""

    @abstractmethod
    def metrics(self, predictions: Any, labels: Any) -> dict[str, Any]:
        """Every score of one pass over documents, from what :meth:`preprocess_logits` left of each batch."""

    def headline_metrics(self, prediction: EvalPrediction) -> dict[str, float]:
        """The headline scores, as the Trainer asks for them."""
        scores = self.metrics(prediction.predictions, prediction.label_ids)
        return {name: scores[name] for name in self.headline}


class Classification(Task):
    """One label a document."""

    # Accuracy alone says little of the rare labels, and on a few hundred documents it hardly moves.
    best_metric, larger_is_better = "macro_f1", True
    headline = ("accuracy", "macro_f1")
    model_class = LinformerForSequenceClassification

    def __init__(self, tokenizer: PreTrainedTokenizerBase, names: Sequence[str]) -> None:
        self.pad, self.names = DataCollatorWithPadding(tokenizer), list(names)

    def prepare(self, dataset: Dataset) -> Dataset:
        index = {name: number for number, name in enumerate(self.names)}
        labels = [index[label] for label in dataset["label"]]
        return dataset.select_columns(["input_ids", "length"]).add_column("labels", labels)

    def collator(self, training: bool) -> "Classification":
        return self

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = self.pad([{"input_ids": example["input_ids"]} for example in examples])
        return {**batch, "labels": torch.tensor([example["labels"] for example in examples])}

    def preprocess_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        return logits.argmax(dim=-1)

    def metrics(self, predictions: Any, labels: Any) -> dict[str, Any]:
        return classification_metrics(labels, predictions, self.names)


class MaskedLanguageModelling(Task):
    """Masked tokens predicted from the rest of the document."""

    best_metric, larger_is_better = "perplexity", False
    headline = ("perplexity", "bits_per_byte")
    model_class = LinformerForMaskedLM

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int) -> None:
        if tokenizer.mask_token_id is None:
            raise InputError("--task mlm needs a tokenizer with a mask token: give another --tokenizer")
        self.tokenizer, self.seed = tokenizer, seed
        self.bytes_of_token = token_bytes(tokenizer)

    def prepare(self, dataset: Dataset) -> Dataset:
        return dataset.select_columns(["input_ids", "length"]).add_column("document", np.arange(len(dataset)))

    def collator(self, training: bool) -> "MaskingCollator":
        return MaskingCollator(self.tokenizer, self.seed, epoch=0 if training else VALIDATION_EPOCH)

    def preprocess_logits(self, logits: Tensor, labels: Tensor) -> Tensor:
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), reduction="none"
        ).view_as(labels)
        sizes = self.bytes_of_token.to(labels.device)[labels.clamp(min=0)].masked_fill(labels == -100, 0)
        return torch.stack([losses.sum(dim=-1), (labels != -100).sum(dim=-1), sizes.sum(dim=-1)], dim=-1)

    def metrics(self, predictions: Any, labels: Any) -> dict[str, Any]:
        nats, tokens, masked_bytes = np.asarray(predictions, dtype=np.float64).sum(axis=0)
        return masked_lm_metrics(float(nats), int(tokens), int(masked_bytes))


class MaskingCollator:
    """Pads, and masks tokens anew each epoch: which ones follows from (seed, epoch, document) alone.

    A resumed run draws the same masks, whatever its loader had fetched ahead. Of the chosen tokens 80 % become the
    mask token, 10 % a random one and 10 % stay; special tokens are never chosen.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, seed: int, epoch: int) -> None:
        self.pad = DataCollatorWithPadding(tokenizer)
        self.tokenizer, self.seed, self.epoch = tokenizer, seed, epoch
        self.special = torch.zeros(len(tokenizer), dtype=torch.bool)
        self.special[torch.tensor(tokenizer.all_special_ids)] = True
        self.ordinary = (~self.special).nonzero().squeeze(-1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        masked = [self._mask(torch.tensor(example["input_ids"]), example["document"]) for example in examples]
        batch = self.pad([{"input_ids": ids.tolist()} for ids, _ in masked])
        labels = torch.full_like(batch["input_ids"], -100)
        for row, (_, targets) in enumerate(masked):
            start = 0 if self.tokenizer.padding_side == "right" else labels.shape[1] - len(targets)
            labels[row, start : start + len(targets)] = targets
        return {**batch, "labels": labels}

    def _mask(self, ids: Tensor, document: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch, document)) % 2**63)
        chosen = (torch.rand(len(ids), generator=generator) < MASK_SHARE) & ~self.special[ids]
        fate = torch.rand(len(ids), generator=generator)
        others = self.ordinary[torch.randint(len(self.ordinary), (len(ids),), generator=generator)]
        masked = ids.masked_fill(chosen & (fate < 0.8), self.tokenizer.mask_token_id)
        masked = torch.where(chosen & (fate >= 0.9), others, masked)
        return masked, ids.masked_fill(~chosen, -100)


def token_bytes(tokenizer: PreTrainedTokenizerBase) -> Tensor:
    """UTF-8 bytes each token stands for; special tokens stand for none."""
    special = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    sizes = [0 if number in special else _bytes_of(tokenizer, token) for number, token in enumerate(tokens)]
    return torch.tensor(sizes)


def _bytes_of(tokenizer: PreTrainedTokenizerBase, token: str) -> int:
    # A byte-level token spells each byte as one character; elsewhere a token is text, with marks for word parts.
    if isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
        return len(token)
    return len(tokenizer.convert_tokens_to_string([token]).removeprefix("##").encode())

"""What the tasks that learn from plain text share: their rows, and their scores by the token and by the byte."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers.decoders import ByteLevel
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.packing import PackedText
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.tasks.metrics import language_model_metrics
from torch_linformer.tasks.task import IGNORED, ColumnLists, Examples, Task


class LanguageModeling(Task):
    """Tokens of packed rows predicted.

    Args:
        tokenizer: pads batches.
        seed: of the order of the documents, and of what the task draws.
        packing: let documents share rows.
    """

    record = TEXT
    best_metric, larger_is_better = "perplexity", False
    headline = HEADLINES["mlm"]
    whole_words = False

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, *, packing: bool = True) -> None:
        super().__init__(tokenizer)
        self.seed, self.packing = seed, packing
        self.bytes_of_token = token_bytes(tokenizer)

    def examples(self, documents: Dataset, encoder: DocumentEncoder, most: int | None = None) -> Examples:
        options: dict[str, Any] = {"packing": self.packing, "whole_words": self.whole_words, "seed": self.seed}
        rows = PackedText(documents, encoder, most_rows=most, **options)
        return Examples(documents, rows, rows.num_tokens)

    def reduce(self, logits: Tensor, labels: Tensor) -> Tensor:
        """``(B, 3)``: nats, predicted tokens, and the bytes they stand for."""
        sizes = self.bytes_of_token.to(labels.device)[labels.clamp(min=0)].masked_fill(labels == IGNORED, 0)
        return sums_of_tokens(logits, labels, sizes)

    def answers(self, reduced: Any, windows: ColumnLists, documents: ColumnLists) -> np.ndarray:
        return np.asarray(reduced, dtype=np.float64)

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        nats, tokens, num_bytes = np.asarray(answers).sum(axis=0)
        return language_model_metrics(float(nats), int(tokens), int(num_bytes))


def sums_of_tokens(logits: Tensor, labels: Tensor, counted: Tensor) -> Tensor:
    """``(B, 3)``: nats, predicted tokens and the sum of ``counted`` ``(B, N)`` in each row."""
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    each = (losses.view_as(labels), labels != IGNORED, counted)
    return torch.stack([values.sum(dim=-1).float() for values in each], dim=-1)


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """UTF-8 bytes each token stands for; special tokens stand for none."""
    # A byte-level token spells each byte as one character; elsewhere a token is text, with marks for word parts.
    byte_level = isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel)
    size: Callable[[str], int] = len if byte_level else lambda token: _text_bytes(tokenizer, token)
    special = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    return torch.tensor([0 if number in special else size(token) for number, token in enumerate(tokens)])


def _text_bytes(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    return len(tokenizer.convert_tokens_to_string([token]).removeprefix("##").encode())

"""Masked-language modelling: learning from text alone."""

from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers.decoders import ByteLevel
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.models import LinformerForMaskedLM
from torch_linformer.training.errors import InputError
from torch_linformer.training.examples import Examples
from torch_linformer.training.metrics import masked_lm_metrics
from torch_linformer.training.packing import PackedRows
from torch_linformer.training.reading.records import TEXT
from torch_linformer.training.tasks.task import IGNORED, Columns, Task, pad_targets
from torch_linformer.training.windows import DocumentEncoder

MASK_SHARE = 0.15  # of the tokens of a document are predicted, as in BERT
VALIDATION_EPOCH = -1  # masks drawn for this "epoch" are the same at every evaluation


class MaskedLanguageModelling(Task):
    """Masked tokens predicted from the rest of their row.

    Args:
        tokenizer: has a mask token.
        seed: of the order of the documents, and of the masks.
        packing: let documents share rows.
        whole_words: mask all tokens of a word or none.

    Raises:
        InputError: the tokenizer has no mask token.
    """

    record = TEXT
    model_class = LinformerForMaskedLM
    best_metric, larger_is_better = "perplexity", False
    headline = ("perplexity", "bits_per_byte")
    pipeline_tag = "fill-mask"

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int, *, packing: bool = True, whole_words: bool = False
    ) -> None:
        super().__init__(tokenizer)
        if tokenizer.mask_token_id is None:
            raise InputError("--task mlm needs a tokenizer with a mask token: give another --tokenizer")
        self.seed, self.packing, self.whole_words = seed, packing, whole_words
        self.bytes_of_token = token_bytes(tokenizer)

    def examples(self, documents: Dataset, encoder: DocumentEncoder, most: int | None = None) -> Examples:
        rows = PackedRows(
            documents,
            encoder,
            packing=self.packing,
            whole_words=self.whole_words,
            seed=self.seed,
            most_rows=most,
        )
        return Examples(documents, rows, rows.num_tokens)

    def collator(self, training: bool) -> "MaskingCollator":
        return MaskingCollator(self.tokenizer, self.seed, epoch=0 if training else VALIDATION_EPOCH)

    def reduce(self, logits: Tensor, labels: Tensor) -> Tensor:
        """``(B, 3)``: nats, masked tokens, and the bytes they stand for."""
        losses = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1).float(), labels.flatten(), reduction="none"
        ).view_as(labels)
        sizes = self.bytes_of_token.to(labels.device)[labels.clamp(min=0)].masked_fill(labels == IGNORED, 0)
        return torch.stack([losses.sum(dim=-1), (labels != IGNORED).sum(dim=-1), sizes.sum(dim=-1)], dim=-1)

    def answers(self, reduced: Any, windows: Columns, documents: Columns) -> np.ndarray:
        return np.asarray(reduced, dtype=np.float64)

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        nats, tokens, masked_bytes = np.asarray(answers).sum(axis=0)
        return masked_lm_metrics(float(nats), int(tokens), int(masked_bytes))


class MaskingCollator:
    """Pads, and masks tokens anew each epoch: which ones follows from (seed, epoch, document) alone.

    A resumed run draws the same masks, whatever its loader had fetched ahead. Of the chosen tokens 80 % become the
    mask token, 10 % a random one and 10 % stay; special tokens are never chosen. Where the examples say which word each
    token belongs to, words are chosen and all their tokens with them.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, epoch: int) -> None:
        self.pad = DataCollatorWithPadding(tokenizer)
        self.tokenizer, self.seed, self.epoch = tokenizer, seed, epoch
        self.special = torch.zeros(len(tokenizer), dtype=torch.bool)
        self.special[torch.tensor(tokenizer.all_special_ids)] = True
        self.ordinary = (~self.special).nonzero().squeeze(-1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        masked = [self._mask(example) for example in examples]
        batch = self.pad([{"input_ids": ids.tolist()} for ids, _ in masked])
        return {**batch, "labels": pad_targets([targets.tolist() for _, targets in masked], batch["attention_mask"])}

    def _mask(self, example: dict[str, Any]) -> tuple[Tensor, Tensor]:
        ids = torch.tensor(example["input_ids"])
        generator = torch.Generator().manual_seed(hash((self.seed, self.epoch, example["document"])) % 2**63)
        draws = torch.rand(len(ids), generator=generator)
        if "words" in example:  # one draw a word; −1, of special tokens, takes the last
            draws = draws[torch.tensor(example["words"])]
        chosen = (draws < MASK_SHARE) & ~self.special[ids]
        fate = torch.rand(len(ids), generator=generator)
        others = self.ordinary[torch.randint(len(self.ordinary), (len(ids),), generator=generator)]
        masked = ids.masked_fill(chosen & (fate < 0.8), self.tokenizer.mask_token_id)
        masked = torch.where(chosen & (fate >= 0.9), others, masked)
        return masked, ids.masked_fill(~chosen, IGNORED)


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """UTF-8 bytes each token stands for; special tokens stand for none."""
    special = set(tokenizer.all_special_ids)
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    sizes = [0 if number in special else _bytes_of(tokenizer, token) for number, token in enumerate(tokens)]
    return torch.tensor(sizes)


def _bytes_of(tokenizer: PreTrainedTokenizerFast, token: str) -> int:
    # A byte-level token spells each byte as one character; elsewhere a token is text, with marks for word parts.
    if isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
        return len(token)
    return len(tokenizer.convert_tokens_to_string([token]).removeprefix("##").encode())

"""Masked-language modeling: learning from plain text."""

from typing import Any

import torch
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForMaskedLM
from torch_linformer.tasks.language_modeling import LanguageModeling
from torch_linformer.tasks.task import IGNORED, pad_targets

MASK_SHARE = 0.15  # of the tokens of a document are predicted, as in BERT
VALIDATION_EPOCH = -1  # masks drawn for this "epoch" are the same at every evaluation


class MaskedLanguageModeling(LanguageModeling):
    """Masked tokens predicted from the rest of their row.

    Args:
        tokenizer: has a mask token.
        seed: of the order of the documents, and of the masks.
        packing: let documents share rows.
        whole_words: mask all tokens of a word or none.

    Raises:
        InputError: the tokenizer has no mask token.
    """

    model_class = LinformerForMaskedLM
    pipeline_tag = "fill-mask"

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int, *, packing: bool = True, whole_words: bool = False
    ) -> None:
        super().__init__(tokenizer, seed, packing=packing)
        if tokenizer.mask_token_id is None:
            raise InputError("--task mlm needs a tokenizer with a mask token: give another --tokenizer")
        self.whole_words = whole_words

    def collator(self, training: bool) -> "MaskingCollator":
        epoch = 0 if training else VALIDATION_EPOCH
        return MaskingCollator(self.tokenizer, self.seed, epoch, sparse_prediction=training)


class MaskingCollator:
    """Pads, and masks tokens anew each epoch: which ones depends only on (seed, epoch, document).

    A resumed run draws the same masks, whatever its loader had fetched ahead. Of the chosen tokens 80 % become the
    mask token, 10 % a random one and 10 % stay; special tokens are never chosen. Where the examples have the word of
    each token, words are chosen with all their tokens. With ``sparse_prediction`` a batch asks a model for no logits
    but those of the chosen tokens.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, seed: int, epoch: int, *, sparse_prediction: bool = False
    ) -> None:
        self.pad = DataCollatorWithPadding(tokenizer)
        self.tokenizer, self.seed, self.epoch = tokenizer, seed, epoch
        self.more = {"sparse_prediction": True} if sparse_prediction else {}
        self.special = torch.zeros(len(tokenizer), dtype=torch.bool)
        self.special[torch.tensor(tokenizer.all_special_ids)] = True
        self.ordinary = (~self.special).nonzero().squeeze(-1)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Any]:
        masked = [self._mask(example) for example in examples]
        batch = self.pad([{"input_ids": ids.tolist()} for ids, _ in masked])
        labels = pad_targets([targets.tolist() for _, targets in masked], batch["attention_mask"])
        return {**batch, "labels": labels, **self.more}

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

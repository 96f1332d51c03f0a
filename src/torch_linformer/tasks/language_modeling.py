"""The tasks that learn from plain text: masked and causal language modeling, scored by the token and by the byte."""

import bz2
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tokenizers.decoders import ByteLevel
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.data.packing import PackedText
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForCausalLM, LinformerForMaskedLM
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.tasks.metrics import language_model_metrics
from torch_linformer.tasks.task import IGNORED, Batch, ColumnLists, Examples, Task, pad_targets

MASK_SHARE = 0.15  # of the tokens of a document are predicted, as in BERT
VALIDATION_EPOCH = -1  # masks drawn for this "epoch" are the same at every evaluation


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
    columns = (losses.view_as(labels), labels != IGNORED, counted)
    return torch.stack([values.sum(dim=-1).float() for values in columns], dim=-1)


def token_bytes(tokenizer: PreTrainedTokenizerFast) -> Tensor:
    """UTF-8 bytes each token stands for; special tokens stand for none."""
    tokens = tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    # A byte-level token spells each byte as one character; elsewhere a token is text, with marks for word parts.
    if isinstance(tokenizer.backend_tokenizer.decoder, ByteLevel):
        sizes = [len(token) for token in tokens]
    else:
        texts = (tokenizer.convert_tokens_to_string([token]) for token in tokens)
        sizes = [len(text.removeprefix("##").encode()) for text in texts]
    special = set(tokenizer.all_special_ids)
    return torch.tensor([0 if number in special else size for number, size in enumerate(sizes)])


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


class CausalLanguageModeling(LanguageModeling):
    """Every token predicted from those before it in its row.

    The first token of a row has none before it, and a row may end within a text: neither the first token nor such an
    end is predicted.
    """

    model_class = LinformerForCausalLM
    pipeline_tag = "text-generation"
    instead = "linformer generate goes on with a text"
    usage = """\
inputs = tokenizer("Once upon a time", return_tensors="pt")  # begins with the start token, and has no end token
outputs = model.generate(**inputs, max_new_tokens=100, do_sample=True)
print(tokenizer.decode(outputs[0], skip_special_tokens=True))"""

    @property
    def config(self) -> dict[str, Any]:
        return {"bos_token_id": self.tokenizer.bos_token_id, "eos_token_id": self.tokenizer.eos_token_id}

    def collate(self, windows: list[dict[str, Any]]) -> Batch:
        batch = super().collate(windows)
        rows, special = [], set(self.tokenizer.all_special_ids)
        for window in windows:
            targets = list(window["input_ids"])
            targets[0] = IGNORED  # with padding on the left something would seem to stand before it
            if not window["ends"]:
                last = len(targets)
                while targets[last - 1] in special:
                    last -= 1
                targets[last:] = [IGNORED] * (len(targets) - last)
            rows.append(targets)
        return {**batch, "labels": pad_targets(rows, batch["attention_mask"])}

    def reduce(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().reduce(logits[:, :-1], labels[:, 1:])  # as the model shifts them in its loss

    def baselines(self, train: Dataset, test: Dataset) -> dict[str, dict[str, Any]]:
        """Bits per byte that bzip2 takes for test documents after training documents, together one of its blocks."""
        known = _first_bytes(train["text"], 600_000, self.seed, most_of_each=30_000)
        scored = _first_bytes(test["text"], 290_000, self.seed)
        added = len(bz2.compress(known + scored)) - len(bz2.compress(known))
        return {"bzip2": {"bits_per_byte": 8 * max(0, added) / len(scored)}}


def _first_bytes(texts: Sequence[str], most: int, seed: int, most_of_each: int | None = None) -> bytes:
    """Documents one after the other as UTF-8, in the order of :class:`PackedText`, up to ``most`` bytes."""
    beginning = bytearray()
    for index in np.random.default_rng(seed).permutation(len(texts)):
        beginning += texts[int(index)][:most_of_each].encode()
        if len(beginning) >= most:
            break
    return bytes(beginning[:most])

"""Causal language modeling: learning from plain text to continue it."""

from typing import Any

from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from torch_linformer.models import LinformerForCausalLM
from torch_linformer.tasks.floors import compression_floor
from torch_linformer.tasks.language_modeling import LanguageModeling
from torch_linformer.tasks.task import IGNORED, Batch, pad_targets


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

    def __init__(self, tokenizer: PreTrainedTokenizerFast, seed: int, *, packing: bool = True) -> None:
        super().__init__(tokenizer, seed, packing=packing)
        self.special = frozenset(tokenizer.all_special_ids)

    @property
    def config(self) -> dict[str, Any]:
        return {"bos_token_id": self.tokenizer.bos_token_id, "eos_token_id": self.tokenizer.eos_token_id}

    def collate(self, windows: list[dict[str, Any]]) -> Batch:
        batch = super().collate(windows)
        return {**batch, "labels": pad_targets([self._targets(row) for row in windows], batch["attention_mask"])}

    def _targets(self, row: dict[str, Any]) -> list[int]:
        targets = list(row["input_ids"])
        targets[0] = IGNORED  # with padding on the left something would seem to stand before it
        if not row["ends"]:
            last = len(targets)
            while targets[last - 1] in self.special:
                last -= 1
            targets[last:] = [IGNORED] * (len(targets) - last)
        return targets

    def reduce(self, logits: Tensor, labels: Tensor) -> Tensor:
        return super().reduce(logits[:, :-1], labels[:, 1:])  # as the model shifts them in its loss

    def floors(self, train: Dataset, validation: Dataset, test: Dataset, seed: int) -> dict[str, dict[str, Any]]:
        return {"bzip2": {"bits_per_byte": compression_floor(train["text"], test["text"], seed=seed)}}

"""From a long source to a short target: a summary, an answer, a translation."""

from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.documents import quiet
from torch_linformer.data.reading.records import PAIRED
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForConditionalGeneration
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.tasks.language_modeling import sums_of_tokens
from torch_linformer.tasks.metrics import perplexity, target_metrics
from torch_linformer.tasks.task import IGNORED, Batch, ColumnLists, Examples, Task

WRITTEN = 200  # documents at most that a target is written for when a model is scored


class SequenceToSequence(Task):
    """Every token of a target predicted from its source and the tokens before it.

    Those predictions pick the checkpoint. The final scores are of targets that the model writes itself, always with the
    likeliest token.

    Args:
        tokenizer: of sources and targets.
        max_target_length: tokens of a target at most, its end token included.

    Raises:
        InputError: the tokenizer has no end token.
    """

    record = PAIRED
    model_class = LinformerForConditionalGeneration
    best_metric, larger_is_better = "perplexity", False
    headline, validated = HEADLINES["seq2seq"], ("perplexity", "token_accuracy")
    pipeline_tag = "text2text-generation"
    usage = """\
inputs = tokenizer("a document", truncation=True, return_tensors="pt")
outputs = model.generate(inputs["input_ids"], attention_mask=inputs["attention_mask"], max_new_tokens=200)
print(tokenizer.decode(outputs[0], skip_special_tokens=True))"""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, max_target_length: int) -> None:
        super().__init__(tokenizer)
        if tokenizer.eos_token_id is None:
            raise InputError("--task seq2seq needs a tokenizer with an end token; this one has none")
        self.max_target_length = max_target_length
        self.target_encoder = DocumentEncoder(tokenizer, max_target_length)

    @property
    def config(self) -> dict[str, Any]:
        return {"bos_token_id": self.tokenizer.bos_token_id, "eos_token_id": self.tokenizer.eos_token_id}

    def encoder(
        self, max_length: int, *, overflow: str = "cut", stride: int | None = None, whole: bool = False
    ) -> DocumentEncoder:
        if overflow == "windows":
            raise InputError("--overflow windows is not for --task seq2seq, which writes one target for a document")
        return super().encoder(max_length, overflow=overflow, stride=stride, whole=whole)

    def label(self, windows: Dataset, documents: Dataset) -> Dataset:
        def targets(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
            ids = self.target_encoder.ids(documents[batch["document"]]["target"])
            ended = [[*row, self.tokenizer.eos_token_id] for row in ids]
            return {
                "labels": [row[: self.max_target_length] for row in ended],
                "target_tokens": [len(row) for row in ended],
            }

        encoder, end = self.target_encoder.fingerprint, self.tokenizer.eos_token_id
        made_of = [windows._fingerprint, documents._fingerprint, encoder, end]
        with quiet():
            return windows.map(targets, batched=True, batch_size=100, new_fingerprint=Hasher.hash(made_of))

    def targets(self, labels: list[Any], attention_mask: Tensor) -> Tensor:
        rows = [torch.tensor(row) for row in labels]
        return nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED)

    def reduce(self, logits: Any, labels: Tensor) -> Tensor:
        """``(B, 3)``: nats, predicted tokens, and how many of them the likeliest token is."""
        scores = logits[0] if isinstance(logits, tuple) else logits  # the Trainer keeps the encoder's output too
        return sums_of_tokens(scores, labels, scores.argmax(dim=-1) == labels)

    @torch.inference_mode()
    def respond(self, model: nn.Module, batch: Batch) -> Tensor:
        """``(B, T)``: the tokens that a model writes for each source, padding after them."""
        suppressed = [token for token in self.tokenizer.all_special_ids if token != self.tokenizer.eos_token_id]
        written = cast(Any, model).generate(
            batch["input_ids"],
            attention_mask=batch["attention_mask"],
            max_new_tokens=self.max_target_length,
            do_sample=False,
            num_beams=1,
            suppress_tokens=suppressed or None,  # they stand for no text
        )
        return cast(Tensor, written)[:, 1:]

    def answers(self, reduced: Any, windows: ColumnLists, documents: ColumnLists) -> Any:
        return reduced  # a document has one window

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        nats, tokens, right = np.asarray(answers, dtype=np.float64).sum(axis=0).tolist()
        return {"perplexity": perplexity(nats / tokens), "token_accuracy": right / tokens}

    def written_scores(self, model: nn.Module, examples: Examples, batch_size: int) -> dict[str, Any]:
        numbers = _drawn(len(examples.documents))
        windows = cast(Dataset, examples.windows).select(numbers)["input_ids"][:]
        device = next(model.parameters()).device
        written: list[str] = []
        for start in range(0, len(numbers), batch_size):
            batch = self.collate([{"input_ids": ids} for ids in windows[start : start + batch_size]])
            rows = self.respond(model, {name: tensor.to(device) for name, tensor in batch.items()}).cpu()
            written += map(self._text, rows)
        targets = examples.documents.select(numbers)["target"][:]
        return {**target_metrics(targets, written), "written_documents": len(numbers)}

    def baselines(self, train: Dataset, test: Dataset) -> dict[str, dict[str, Any]]:
        """The beginning of each source, as many characters of it as the median target has."""
        characters = int(np.median([len(target) for target in train["target"]]))
        drawn = test.select(_drawn(len(test)))
        return {"beginning": target_metrics(drawn["target"][:], [text[:characters] for text in drawn["text"]])}

    def describe(self, answer: Any, document: Document) -> dict[str, Any]:
        return {"target": self._text(answer)}

    def _text(self, ids: Any) -> str:
        text = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return cast(str, text).strip()


def _drawn(documents: int) -> np.ndarray:
    """Numbers of the documents that a target is written for, always the same: all, or evenly spaced ones."""
    return np.unique(np.linspace(0, documents - 1, min(documents, WRITTEN)).round().astype(np.int64))

"""Extractive question answering: the span of a text that answers a question, or none."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.documents import quiet
from torch_linformer.data.reading.records import ASKED
from torch_linformer.data.reading.streamed import Document
from torch_linformer.models import LinformerForQuestionAnswering
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.tasks.metrics import answer_metrics
from torch_linformer.tasks.task import Batch, ColumnLists, Examples, Task, each_window

_BEST = 20  # first and last tokens looked at in each window
_TARGETS = ("start_positions", "end_positions")


class Answering(Task):
    """The first and the last token of the answer; both are the first token of the window where it holds none.

    The best span of a document's windows counts. No answer is given where every window prefers its first token.

    Args:
        tokenizer: pads batches.
        typed: give the question and the text token types of their own, 0 and 1. Nothing else tells them apart in a new
            model; one with a single type, as RoBERTa, has learned to tell them apart by their separators.
        max_answer_length: tokens of an answer at most; None until :meth:`learn` counts those of the training, and for
            a model of which they are not known: any.
    """

    record = ASKED
    model_class = LinformerForQuestionAnswering
    best_metric, headline = "f1", HEADLINES["qa"]
    offsets, together, pipeline_tag = True, "text", "question-answering"

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, *, typed: bool = True, max_answer_length: int | None = None
    ) -> None:
        super().__init__(tokenizer)
        self.typed, self.max_answer_length = typed, max_answer_length

    @property
    def config(self) -> dict[str, Any]:
        return {"type_vocab_size": 2} if self.typed else {}

    def label(self, windows: Dataset, documents: Dataset) -> Dataset:
        def targets(window: dict[str, Any]) -> dict[str, int]:
            document = documents[window["document"]]
            if not document["answers"]:
                return dict.fromkeys(_TARGETS, 0)
            start = document["starts"][0]
            return dict(zip(_TARGETS, _tokens_of(window, start, start + len(document["answers"][0])), strict=True))

        with quiet():
            return windows.map(targets)

    def learn(self, train: Examples) -> None:
        if self.max_answer_length is None:
            start, end = (np.asarray(cast(Dataset, train.windows)[name][:]) for name in _TARGETS)
            self.max_answer_length = int((end - start).max(initial=0)) + 1

    def collate(self, windows: list[dict[str, Any]]) -> Batch:
        batch = super().collate(windows)
        if self.typed:
            place = batch["attention_mask"].cumsum(dim=-1)
            text_from = torch.tensor([window["text_from"] for window in windows])
            batch["token_type_ids"] = (place > text_from[:, None]).long()  # of padding too, where nothing reads it
        if _TARGETS[0] in windows[0]:
            batch |= {name: torch.tensor([window[name] for window in windows]) for name in _TARGETS}
        return batch

    def reduce(self, logits: Any, labels: Any) -> Tensor:
        """``(B, N, 2)``: the scores of every token for being first and last."""
        return torch.stack([logits[0].float(), logits[1].float()], dim=-1)

    def answers(self, reduced: Any, windows: ColumnLists, documents: ColumnLists) -> list[dict[str, Any]]:
        texts = documents["text"]
        best: list[tuple[float, int, int]] = [(-np.inf, 0, 0)] * len(texts)
        nothing = [np.inf] * len(texts)
        for window, scores in each_window(reduced, windows):
            number = window["document"]
            nothing[number] = min(nothing[number], float(scores[0].sum()))
            best[number] = max(best[number], _best_span(window, np.asarray(scores), self.max_answer_length))
        answers = []
        for text, (score, start, end), no_answer in zip(texts, best, nothing, strict=True):
            span = text[start:end] if score > no_answer else ""
            answer = span.strip()  # a token may begin with the space before its word
            start = start + len(span) - len(span.lstrip()) if answer else 0
            # Of the span against no answer.
            probability = float(1 / (1 + np.exp(np.clip(no_answer - score, -50, 50))))
            answers.append(
                {"answer": answer, "start": start, "end": start + len(answer), "score": round(probability, 6)}
            )
        return answers

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        return answer_metrics(documents["answers"][:], [answer["answer"] for answer in answers])

    def documents(self, documents: Sequence[Document]) -> dict[str, list[Any]]:
        questions = [document.question for document in documents]
        assert None not in questions
        return {**super().documents(documents), "question": questions}

    def finish(self, model: Any) -> None:
        model.config.max_answer_length = self.max_answer_length

    def describe(self, answer: dict[str, Any], document: Document) -> dict[str, Any]:
        return answer


def _tokens_of(window: dict[str, Any], start: int, end: int) -> tuple[int, int]:
    """First and last token of the characters from ``start`` to ``end``; (0, 0) where the window lacks some."""
    starts, ends = np.asarray(window["starts"]), np.asarray(window["ends"])
    if not len(starts) or starts[0] > start or ends[-1] < end:
        return 0, 0
    first = int(np.searchsorted(ends, start, side="right"))
    last = int(np.searchsorted(starts, end, side="left")) - 1
    return window["text_from"] + first, window["text_from"] + max(first, last)


def _best_span(window: dict[str, Any], scores: np.ndarray, longest: int | None) -> tuple[float, int, int]:
    """(score, first character, character after the last) of a window's best span of at most ``longest`` tokens."""
    starts, ends = np.asarray(window["starts"]), np.asarray(window["ends"])
    begin = window["text_from"]
    of_text = scores[begin : begin + len(starts)]
    firsts, lasts = (np.argsort(of_text[:, side])[-_BEST:] for side in (0, 1))
    first, last = (grid.ravel() for grid in np.meshgrid(firsts, lasts))
    fits = (first <= last) & (last - first < (longest or len(starts)))
    if not fits.any():
        return -np.inf, 0, 0
    totals = np.where(fits, of_text[first, 0] + of_text[last, 1], -np.inf)
    top = int(totals.argmax())
    return float(totals[top]), int(starts[first[top]]), int(ends[last[top]])

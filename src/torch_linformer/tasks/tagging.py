"""Token classification: a tag for every word, and the entities that tags spell."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from seqeval.metrics.sequence_labeling import get_entities
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.labels import are_numbers
from torch_linformer.data.reading.documents import quiet
from torch_linformer.data.reading.records import TAGGED, join_words
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.words import word_spans
from torch_linformer.models import LinformerForTokenClassification
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.tasks.metrics import TAG_PREFIX, as_iobes, tagging_metrics
from torch_linformer.tasks.task import IGNORED, ColumnLists, Task, each_window, label_config, pad_targets

NUMBERED = (
    "warning: the tags are numbers, of which nothing says what belongs to an entity: only the accuracy of tags is "
    "scored; train with --label-names O,B-PER,…, the names of the tags 0, 1, …, to score entities"
)
OUTSIDE = "O"  # the tag of a word that belongs to nothing


class Tagging(Task):
    """A tag for every word. The first token of a word carries its tag; the others take no part in the loss.

    A model reads words with a space between them. A text without given words is divided by :func:`word_spans` first.
    A word in several windows gets the tag of the one with most context on both of its sides. Words that no window holds
    (what was cut off) are tagged "O".
    """

    record = TAGGED
    model_class = LinformerForTokenClassification
    best_metric = "f1"
    headline: ClassVar[tuple[str, ...]] = HEADLINES["token-classify"]
    offsets, least_labels, pipeline_tag = True, 2, "token-classification"

    @property
    def config(self) -> dict[str, Any]:
        return label_config(self.names)

    def label(self, windows: Dataset, documents: Dataset) -> Dataset:
        index = {name: number for number, name in enumerate(self.names)}

        def targets(window: dict[str, Any]) -> dict[str, list[int]]:
            document = documents[window["document"]]
            labels = [IGNORED] * window["length"]
            for word, token in _first_tokens(window, document["word_starts"], document["word_ends"]):
                labels[window["text_from"] + token] = index[document["label"][word]]
            return {"labels": labels}

        with quiet():
            return windows.map(targets)

    def targets(self, labels: list[Any], attention_mask: Tensor) -> Tensor:
        return pad_targets(labels, attention_mask)

    def reduce(self, logits: Tensor, labels: Any) -> Tensor:
        """``(B, N, 2)``: the number of the best tag, and its probability."""
        probability, best = logits.float().softmax(dim=-1).max(dim=-1)
        return torch.stack([best.to(probability.dtype), probability], dim=-1)

    def answers(self, reduced: Any, windows: ColumnLists, documents: ColumnLists) -> list[list[tuple[str, float]]]:
        starts, ends = documents["word_starts"], documents["word_ends"]
        answers = [[(OUTSIDE, 0.0)] * len(starts[number]) for number in range(len(starts))]
        context = [[-1] * len(words) for words in answers]
        for window, tags in each_window(reduced, windows):
            number, length = window["document"], len(window["starts"])
            for word, token in _first_tokens(window, starts[number], ends[number]):
                around = min(token, length - 1 - token)
                if around > context[number][word]:
                    context[number][word] = around
                    tag, probability = tags[window["text_from"] + token]
                    answers[number][word] = (self.names[int(tag)], float(probability))
        return answers

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        return tagging_metrics(documents["label"][:], [[tag for tag, _ in words] for words in answers])

    def baselines(self, train: Dataset, test: Dataset) -> dict[str, dict[str, Any]]:
        """The tag that each word had most often in training, the first one met of several; the most frequent if new."""
        seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
        for words, tags in zip(_words(train), train["label"], strict=True):
            for word, tag in zip(words, tags, strict=True):
                seen[word][tag] += 1
        overall = Counter(chain.from_iterable(train["label"])).most_common(1)[0][0]
        best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
        predicted = [[best.get(word, overall) for word in words] for words in _words(test)]
        return {"frequent_tag": self.heading(tagging_metrics(test["label"][:], predicted))}

    def documents(self, documents: Sequence[Document]) -> dict[str, list[Any]]:
        rows = [
            join_words(document.words or [document.text[start:end] for start, end in word_spans(document.text)])
            for document in documents
        ]
        return {name: [row[name] for row in rows] for name in ("text", "word_starts", "word_ends")}

    def describe(self, answer: list[tuple[str, float]], document: Document) -> dict[str, Any]:
        """Entities by their place in the text; of given words also the tag of each, and their text is joined."""
        if document.words is None:
            return {"entities": list(_entities(answer, word_spans(document.text), document.text))}
        joined = join_words(document.words)
        spans = list(zip(joined["word_starts"], joined["word_ends"], strict=True))
        return {"tags": [tag for tag, _ in answer], "entities": list(_entities(answer, spans, joined["text"]))}


class NumberedTagging(Tagging):
    """Tags that are bare numbers: nothing says which belong to entities, so only the share of right ones is scored."""

    best_metric, headline = "accuracy", ("accuracy",)

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        return self.heading(super().scores(answers, documents))


def tagging_of(tokenizer: PreTrainedTokenizerFast, names: Sequence[str]) -> Tagging:
    """The task of tags with these names, in the order of a model's outputs."""
    return (NumberedTagging if are_numbers(names) else Tagging)(tokenizer, names)


def divided_otherwise(documents: Dataset) -> list[str]:
    """A sentence, if there are words of documents that :func:`word_spans` does not find in their texts."""
    number, divided = 0, []
    for batch in documents.select_columns(["text", "word_starts", "word_ends"]).iter(1000):
        for text, *places in zip(batch["text"], batch["word_starts"], batch["word_ends"], strict=True):
            spans, words = set(word_spans(text)), list(zip(*places, strict=True))
            number += len(words)
            divided += [text[slice(*span)] for span in words if span not in spans]
    if not divided:
        return []
    return [
        f"{len(divided):,} of {number:,} training words, such as {divided[0]!r}, are more than one word in running "
        "text, as linformer predict divides it: give it words too, as CoNLL columns, lists, or a column 'tokens' with "
        "spaces between them"
    ]


def _first_tokens(window: dict[str, Any], word_starts: list[int], word_ends: list[int]) -> Iterator[tuple[int, int]]:
    """(number of a word, number of the first token of text that holds some of it) for the words in a window."""
    token_starts, token_ends = np.asarray(window["starts"]), np.asarray(window["ends"])
    # A token may begin before its word, with the space there; its token is the first that ends after its start.
    tokens = np.searchsorted(token_ends, word_starts, side="right").tolist()
    for word, (token, start, end) in enumerate(zip(tokens, word_starts, word_ends, strict=True)):
        has_token = token < len(token_ends) and token_starts[token] < end
        # A window may begin within a word, which has its tag in the window before.
        if has_token and (token > 0 or token_starts[0] <= start):
            yield word, token


def _entities(answer: list[tuple[str, float]], words: list[tuple[int, int]], text: str) -> Iterator[dict[str, Any]]:
    """The entities that tags spell, as in the metrics; of tags without prefixes, neighboring words of one tag."""
    tags = [as_iobes(tag) if tag == OUTSIDE or TAG_PREFIX.match(tag) else f"I-{tag}" for tag, _ in answer]
    for kind, first, last in get_entities(tags):
        start, end = words[first][0], words[last][1]
        score = round(float(np.mean([probability for _, probability in answer[first : last + 1]])), 6)
        yield {"label": kind, "start": start, "end": end, "text": text[start:end], "score": score}


def _words(documents: Dataset) -> list[list[str]]:
    rows = documents.select_columns(["text", "word_starts", "word_ends"])
    return [
        [row["text"][start:end] for start, end in zip(row["word_starts"], row["word_ends"], strict=True)]
        for row in rows
    ]

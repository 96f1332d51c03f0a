"""What a model has to beat: the scores of methods that take seconds and no accelerator."""

import bz2
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.metrics import accuracy_score

from torch_linformer.tasks.metrics import Scores, regression_metrics, tagging_metrics

FLOORS = {  # what they are called in a report
    "tfidf": "TF-IDF + linear classifier",
    "tfidf_ridge": "TF-IDF + ridge regression",
    "majority": "majority class",
    "mean": "mean of the training values",
    "frequent_tag": "most frequent tag of each word",
    "bzip2": "bzip2 after training documents",
    "beginning": "beginning of the source",
    "tfidf_search": "TF-IDF",
    "bm25": "BM25",
    "beginning_vector": "the embedder's first 512 tokens",
    "chunk_mean": "the mean of its chunks",
    "original_beginning": "logistic regression on the original's first window",
    "original_chunk_mean": "logistic regression on the mean of the original's windows",
    "linear_beginning": "logistic regression on the linear encoder's first window",
    "linear_chunk_mean": "logistic regression on the mean of the linear encoder's windows",
    "best_chunk": "its best chunk, a vector each",
}

Split = tuple[Sequence[Any], Any]  # documents, and the answer to each


def majority_floor(train_labels: Sequence[str], test_labels: Sequence[str]) -> float:
    """Accuracy on the test set of always answering the training set's most frequent label."""
    return float(accuracy_score(test_labels, _constant(DummyClassifier(), train_labels, len(test_labels))))


def mean_floor(train_values: Sequence[float], test_values: Sequence[float]) -> Scores:
    """:func:`regression_metrics` of always answering the mean of the training set."""
    return regression_metrics(test_values, _constant(DummyRegressor(), train_values, len(test_values)))


def most_frequent_tag_floor(train: Split, test: Split) -> Scores:
    """:func:`tagging_metrics` of giving each word the tag it had most often in the training set.

    The splits are the words of each document and their tags. A word not met in training is given the tag that was most
    frequent overall; of equally frequent tags the first one met is taken.
    """
    for split, (words, tags) in (("train", train), ("test", test)):
        if list(map(len, words)) != list(map(len, tags)) or not any(map(len, words)):
            numbers = f"{sum(map(len, words))} and {sum(map(len, tags))}"
            raise ValueError(f"{split} needs documents of words and a tag for each word, got {numbers}")
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in zip(*train, strict=True):
        for word, tag in zip(words, tags, strict=True):
            seen[word][tag] += 1
    overall = Counter(chain.from_iterable(train[1])).most_common(1)[0][0]
    best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
    return tagging_metrics(test[1], [[best.get(word, overall) for word in words] for words in test[0]])


def compression_floor(train_texts: Sequence[str], test_texts: Sequence[str], *, seed: int) -> float:
    """Bits per byte that bzip2 takes for test documents after training documents.

    Both lie in one of its blocks of 900,000 bytes, so that it profits from what the training documents repeat.
    The test documents are the first of those that a language model is scored on.

    Args:
        train_texts: documents whose size is not counted; the beginnings of some, drawn at random.
        test_texts: documents whose size is.
        seed: of the draw.
    """
    known = _first_bytes(train_texts, 600_000, seed, most_of_each=30_000)
    wanted = _first_bytes(test_texts, 290_000, seed)
    return 8 * max(0, len(bz2.compress(known + wanted)) - len(bz2.compress(known))) / len(wanted)


def _first_bytes(texts: Sequence[str], most: int, seed: int, most_of_each: int | None = None) -> bytes:
    """Documents one after the other as UTF-8, in the order of :class:`PackedRows`, up to ``most`` bytes."""
    found = bytearray()
    for index in np.random.default_rng(seed).permutation(len(texts)):
        found += texts[int(index)][:most_of_each].encode()
        if len(found) >= most:
            break
    return bytes(found[:most])


def _constant(model: Any, answers: Sequence[Any], scored: int) -> np.ndarray:
    """What a model of scikit-learn that looks at no features answers to ``scored`` documents."""
    if not len(answers) or not scored:
        raise ValueError(f"both splits need answers, got {len(answers)} and {scored}")
    return np.asarray(model.fit(np.zeros((len(answers), 1)), answers).predict(np.zeros((scored, 1))))

"""What a model has to beat: the scores of methods that take seconds and no accelerator."""

import bz2
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence
from itertools import chain
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, f1_score

from torch_linformer.tasks.metrics import multilabel_metrics, regression_metrics, tagging_metrics

# Words and the parts of snake_case names; a Chinese or Japanese character is a word, as nothing divides them.
_CJK = "\u3040-\u30ff\u3400-\u9fff"
_WORD = rf"[{_CJK}]|[^\W_{_CJK}]+"
_BIGRAM_CHARACTERS = 4_000  # documents longer than this on average are told apart by their words alone
_MAX_CHARACTERS = 200_000_000  # of a split: some ten seconds of reading
_MAX_FEATURES = 200_000
_MAX_COEFFICIENTS = 10_000_000  # features times labels: the optimiser keeps some twenty arrays of this size
_MAX_DECISIONS = 400_000  # documents times labels, each label with a model of its own: some minutes of learning


def majority_accuracy(train_labels: Sequence[Hashable], test_labels: Sequence[Hashable]) -> float:
    """Accuracy on the test set of always answering the training set's most frequent label."""
    if not len(train_labels) or not len(test_labels):
        raise ValueError(f"both splits need labels, got {len(train_labels)} and {len(test_labels)}")
    majority = Counter(train_labels).most_common(1)[0][0]
    return sum(label == majority for label in test_labels) / len(test_labels)


def tfidf_floor(
    train_texts: Sequence[str],
    train_labels: Sequence[Hashable],
    test_texts: Sequence[str],
    test_labels: Sequence[Hashable],
    *,
    max_documents: int = 20_000,
    seed: int,
) -> dict:
    """Score of logistic regression on TF-IDF word counts: the floor that a transformer has to beat.

    Words are counted with sublinear weights, and pairs of neighbouring words too when documents are short
    (at most 4,000 characters on average): pairs helped on film reviews, and cost both time and accuracy on
    source files of 20,000 characters.

    Args:
        train_texts: documents to learn from.
        train_labels: one label a document.
        test_texts: documents to be scored on.
        test_labels: one label a document.
        max_documents: the most documents of each split; more are drawn from at random.
        seed: of that draw.

    Returns:
        `accuracy`, `macro_f1`, `documents` (learnt from) and `test_documents` (scored).
    """
    draw = random.Random(seed)
    texts, labels = _drawn(train_texts, train_labels, max_documents, draw, "train")
    scored_texts, scored_labels = _drawn(test_texts, test_labels, max_documents, draw, "test")
    features = _features(texts, scored_texts, len(set(labels)))
    predictions = _logistic(features, labels, len(scored_texts))
    return {
        "accuracy": float(accuracy_score(scored_labels, predictions)),
        "macro_f1": float(f1_score(scored_labels, predictions, average="macro", zero_division=0)),
        "documents": len(texts),
        "test_documents": len(scored_texts),
    }


def tfidf_multilabel_floor(
    train_texts: Sequence[str],
    train_labels: np.ndarray,
    test_texts: Sequence[str],
    test_labels: np.ndarray,
    *,
    max_documents: int = 20_000,
    seed: int,
) -> dict:
    """Score of one logistic regression a label, each for itself, on the features of `tfidf_floor`.

    Args:
        train_texts: documents to learn from.
        train_labels: 1 where the document has the label, else 0, of shape (documents, labels).
        test_texts: documents to be scored on.
        test_labels: the same of these.
        max_documents: the most documents of each split (fewer are learnt from if there are more than 20
            labels); more are drawn from at random.
        seed: of that draw.

    Returns:
        `micro_f1`, `macro_f1`, `documents` (learnt from) and `test_documents` (scored).
    """
    shapes = np.shape(train_labels), np.shape(test_labels)
    if [len(shape) for shape in shapes] != [2, 2] or shapes[0][1] != shapes[1][1] or not shapes[0][1]:
        raise ValueError(f"labels must be of shape (documents, labels), got {shapes[0]} and {shapes[1]}")
    draw = random.Random(seed)
    learnt = min(max_documents, max(1, _MAX_DECISIONS // shapes[0][1]))
    texts, labels = _drawn(train_texts, train_labels, learnt, draw, "train")
    scored_texts, scored_labels = _drawn(test_texts, test_labels, max_documents, draw, "test")
    features = _features(texts, scored_texts, 1)
    predictions = [_logistic(features, column, len(scored_texts)) for column in np.asarray(labels).T.tolist()]
    scores = multilabel_metrics(np.asarray(scored_labels), np.array(predictions).T, [""] * len(predictions))
    return {
        "micro_f1": scores["micro_f1"],
        "macro_f1": scores["macro_f1"],
        "documents": len(texts),
        "test_documents": len(scored_texts),
    }


def mean_floor(train_values: Sequence[float], test_values: Sequence[float]) -> dict:
    """`regression_metrics` of always answering the mean of the training set."""
    if not len(train_values):
        raise ValueError("train needs values, got none")
    return regression_metrics(test_values, [float(np.mean(train_values))] * len(test_values))


def tfidf_regression_floor(
    train_texts: Sequence[str],
    train_values: Sequence[float],
    test_texts: Sequence[str],
    test_values: Sequence[float],
    *,
    max_documents: int = 20_000,
    seed: int,
) -> dict:
    """Score of ridge regression on the features of `tfidf_floor`, which also explains the arguments.

    Returns:
        what `regression_metrics` does, `documents` (learnt from) and `test_documents` (scored).
    """
    draw = random.Random(seed)
    texts, values = _drawn(train_texts, train_values, max_documents, draw, "train")
    scored_texts, scored_values = _drawn(test_texts, test_values, max_documents, draw, "test")
    features = _features(texts, scored_texts, 1)
    if features is None:
        scores = mean_floor(values, scored_values)
    else:
        model = Ridge().fit(features[0], np.asarray(values, dtype=np.float64))
        scores = regression_metrics(scored_values, model.predict(features[1]))
    return {**scores, "documents": len(texts), "test_documents": len(scored_texts)}


def most_frequent_tag_floor(
    train_words: Sequence[Sequence[str]],
    train_tags: Sequence[Sequence[str]],
    test_words: Sequence[Sequence[str]],
    test_tags: Sequence[Sequence[str]],
) -> dict:
    """`tagging_metrics` of giving each word the tag it had most often in the training set.

    A word not met there is given the tag that was most frequent overall; of equally frequent tags the first
    one met is taken.
    """
    for split, words, tags in (("train", train_words, train_tags), ("test", test_words, test_tags)):
        if list(map(len, words)) != list(map(len, tags)) or not any(map(len, words)):
            numbers = f"{sum(map(len, words))} and {sum(map(len, tags))}"
            raise ValueError(f"{split} needs documents of words and a tag for each word, got {numbers}")
    seen: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for words, tags in zip(train_words, train_tags, strict=True):
        for word, tag in zip(words, tags, strict=True):
            seen[word][tag] += 1
    overall = Counter(chain.from_iterable(train_tags)).most_common(1)[0][0]
    best = {word: counts.most_common(1)[0][0] for word, counts in seen.items()}
    return tagging_metrics(test_tags, [[best.get(word, overall) for word in words] for words in test_words])


def compression_floor(train_texts: Sequence[str], test_texts: Sequence[str], *, seed: int) -> float:
    """Bits per byte that bzip2 takes for test documents behind training documents.

    Both stand in one of its blocks of 900,000 bytes, so that it profits from what the training documents repeat.
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
    """Documents one after the other as UTF-8, in the order of :class:`PackedRows`, until there is enough of them."""
    found = bytearray()
    for index in np.random.default_rng(seed).permutation(len(texts)):
        found += texts[int(index)][:most_of_each].encode()
        if len(found) >= most:
            break
    return bytes(found[:most])


def _drawn(
    texts: Sequence[str], answers: Sequence[Any] | np.ndarray, max_documents: int, draw: random.Random, split: str
) -> tuple[list[str], list[Any]]:
    """Documents of a split in random order, until there are enough of them or of their characters."""
    if len(texts) != len(answers) or not len(texts):
        raise ValueError(f"{split} needs documents and an answer for each, got {len(texts)} and {len(answers)}")
    chosen: list[int] = []
    characters = 0
    for index in draw.sample(range(len(texts)), min(max_documents, len(texts))):
        characters += len(texts[index])
        if chosen and characters > _MAX_CHARACTERS:
            break
        chosen.append(index)
    return [texts[index] for index in chosen], [answers[index] for index in chosen]


def _features(texts: Sequence[str], scored: Sequence[str], outputs: int) -> tuple[Any, Any] | None:
    """TF-IDF matrices of `texts` and of `scored`, for one model with so many outputs; None if no word is left."""
    mean_characters = sum(map(len, texts)) / len(texts)
    vectorizer = TfidfVectorizer(
        token_pattern=_WORD,
        ngram_range=(1, 2 if mean_characters <= _BIGRAM_CHARACTERS else 1),
        min_df=2 if len(texts) >= 100 else 1,
        max_features=min(_MAX_FEATURES, _MAX_COEFFICIENTS // outputs),
        sublinear_tf=True,
        dtype=np.float32,
    )
    try:
        features = vectorizer.fit_transform(texts)
    except ValueError:  # no word stands in enough documents
        return None
    return features, vectorizer.transform(scored)


def _logistic(features: tuple[Any, Any] | None, labels: Sequence[Hashable], scored: int) -> Sequence[Hashable]:
    """Labels that logistic regression, fitted on the first matrix, gives to the `scored` rows of the second.

    They are the most frequent label where nothing but that can be learnt.
    """
    kinds = Counter(labels)
    if features is None or len(kinds) == 1:
        return [kinds.most_common(1)[0][0]] * scored
    with warnings.catch_warnings():
        # Stopped at max_iter it is still a measured score on documents it has not seen.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # A weak penalty suits rare, telling words: film reviews (IMDB) gain nothing from a weaker one, source
        # files a little.
        model = LogisticRegression(C=30, max_iter=300).fit(features[0], labels)
    return model.predict(features[1])

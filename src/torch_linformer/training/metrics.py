"""What a model is worth: its scores, and the floors it has to beat."""

import math
import random
import warnings
from collections import Counter
from collections.abc import Hashable, Sequence

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

# Words and the parts of snake_case names; a Chinese or Japanese character is a word, as nothing divides them.
_CJK = "\u3040-\u30ff\u3400-\u9fff"
_WORD = rf"[{_CJK}]|[^\W_{_CJK}]+"
_BIGRAM_CHARACTERS = 4_000  # documents longer than this on average are told apart by their words alone
_MAX_CHARACTERS = 200_000_000  # of a split: some ten seconds of reading
_MAX_FEATURES = 200_000
_MAX_COEFFICIENTS = 10_000_000  # features times labels: the optimiser keeps some twenty arrays of this size


def classification_metrics(labels: Sequence[int], predictions: Sequence[int], names: Sequence[str]) -> dict:
    """Score predicted labels against the true ones.

    A score whose denominator is zero is 0. `macro_f1` is the mean F1 of the labels that occur, as a true
    label or as a prediction; a label that does neither says nothing about the model.

    Args:
        labels: index into `names` of each document's true label.
        predictions: index into `names` of each document's predicted label.
        names: the labels' names.

    Returns:
        `accuracy`, `macro_f1`, `per_label` (a list of `label`, `precision`, `recall`, `f1`, `support`) and
        `confusion_matrix` (rows true, columns predicted), ready for JSON.
    """
    true, predicted = np.asarray(labels, dtype=np.int64), np.asarray(predictions, dtype=np.int64)
    if true.ndim != 1 or true.shape != predicted.shape or not true.size:
        wanted = "two equally long lists with at least one entry"
        raise ValueError(f"labels and predictions must be {wanted}, got {true.shape} and {predicted.shape}")
    both = np.concatenate([true, predicted])
    if both.min() < 0 or both.max() >= len(names):
        raise ValueError(f"labels must be 0 to {len(names) - 1}, got {both.min()} to {both.max()}")
    ids = range(len(names))
    scores = precision_recall_fscore_support(true, predicted, labels=ids, average=None, zero_division=0)
    return {
        "accuracy": float(np.mean(true == predicted)),
        "macro_f1": float(scores[2][np.unique(both)].mean()),
        "per_label": [
            {
                "label": name,
                "precision": float(p),
                "recall": float(r),
                "f1": float(f1),
                "support": int(support),
            }
            for name, p, r, f1, support in zip(names, *scores, strict=True)
        ],
        "confusion_matrix": confusion_matrix(true, predicted, labels=ids).tolist(),
    }


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
    predictions = _fit_predict(texts, labels, scored_texts)
    return {
        "accuracy": float(accuracy_score(scored_labels, predictions)),
        "macro_f1": float(f1_score(scored_labels, predictions, average="macro", zero_division=0)),
        "documents": len(texts),
        "test_documents": len(scored_texts),
    }


def masked_lm_metrics(total_nll_nats: float, masked_tokens: int, masked_bytes: int) -> dict:
    """Perplexity exp(nll / tokens) and bits per byte nll / (ln 2 · bytes) of masked-language modelling.

    Args:
        total_nll_nats: negative log-likelihood, in nats, summed over the masked tokens.
        masked_tokens: how many there were.
        masked_bytes: UTF-8 bytes they stand for, which makes different tokenizers comparable.

    Returns:
        `perplexity` (infinite where a float cannot hold it) and `bits_per_byte`.
    """
    if masked_tokens < 1 or masked_bytes < 1:
        raise ValueError(f"nothing was masked: got {masked_tokens} masked tokens of {masked_bytes} bytes")
    try:
        perplexity = math.exp(total_nll_nats / masked_tokens)
    except OverflowError:
        perplexity = math.inf
    return {"perplexity": perplexity, "bits_per_byte": total_nll_nats / math.log(2) / masked_bytes}


def _drawn(
    texts: Sequence[str], labels: Sequence[Hashable], max_documents: int, draw: random.Random, split: str
) -> tuple[list[str], list[Hashable]]:
    """Documents of a split in random order, until there are enough of them or of their characters."""
    if len(texts) != len(labels) or not len(texts):
        raise ValueError(f"{split} needs documents and a label for each, got {len(texts)} and {len(labels)}")
    chosen: list[int] = []
    characters = 0
    for index in draw.sample(range(len(texts)), min(max_documents, len(texts))):
        characters += len(texts[index])
        if chosen and characters > _MAX_CHARACTERS:
            break
        chosen.append(index)
    return [texts[index] for index in chosen], [labels[index] for index in chosen]


def _fit_predict(texts: Sequence[str], labels: Sequence[Hashable], scored: Sequence[str]) -> Sequence[Hashable]:
    """Labels that TF-IDF and logistic regression, fitted on `texts`, give to `scored`."""
    kinds = Counter(labels)
    mean_characters = sum(map(len, texts)) / len(texts)
    vectorizer = TfidfVectorizer(
        token_pattern=_WORD,
        ngram_range=(1, 2 if mean_characters <= _BIGRAM_CHARACTERS else 1),
        min_df=2 if len(texts) >= 100 else 1,
        max_features=min(_MAX_FEATURES, _MAX_COEFFICIENTS // len(kinds)),
        sublinear_tf=True,
        dtype=np.float32,
    )
    majority = [kinds.most_common(1)[0][0]] * len(scored)
    if len(kinds) == 1:
        return majority
    try:
        features = vectorizer.fit_transform(texts)
    except ValueError:  # no word stands in enough documents: nothing but the majority can be learnt
        return majority
    with warnings.catch_warnings():
        # Stopped at max_iter it is still a measured score on documents it has not seen.
        warnings.simplefilter("ignore", ConvergenceWarning)
        # A weak penalty suits rare, telling words: film reviews (IMDB) gain nothing from a weaker one, source
        # files a little.
        model = LogisticRegression(C=30, max_iter=300).fit(features, labels)
    return model.predict(vectorizer.transform(scored))

"""What a model has to beat: methods that take seconds, linear models of TF-IDF among them, chosen on validation."""

import bz2
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import StackingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score, f1_score
from sklearn.pipeline import FeatureUnion, make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

from torch_linformer.data.words import words_of
from torch_linformer.tasks.linear_classifiers import (
    CLASSIFIERS,
    MANY_DOCUMENTS,
    MAX_COEFFICIENTS,
    MAX_DECISIONS,
    REGRESSIONS,
    Known,
    LinearChoice,
    LinearModel,
    best_threshold,
    choose,
    mean_square_score,
    one_hot,
    one_label_score,
    searched,
    several_labels_score,
    sigmoid,
)
from torch_linformer.tasks.metrics import Scores, multilabel_metrics, regression_metrics, tagging_metrics
from torch_linformer.tasks.tallies import tally
from torch_linformer.tasks.word_features import GRAMS, MOST_FEATURES, PAIRS, SHORT, WORDS

BASELINES = {  # what they are called in a report
    "tfidf": "TF-IDF + linear classifier",
    "tfidf_ridge": "TF-IDF + ridge regression",
    "majority": "majority class",
    "mean": "mean of the training values",
    "frequent_tag": "most frequent tag of each word",
    "bzip2": "bzip2 after training documents",
    "beginning": "beginning of the source",
    "tfidf_search": "TF-IDF",
    "bm25": "BM25",
    "tfidf_bm25": "TF-IDF and BM25, joined",
    "first_window": "the encoder's first window alone",
    "first_window_tfidf": "the encoder's first window and TF-IDF, joined",
    "window_mean": "the mean of its windows",
    "window_mean_tfidf": "the mean of its windows and TF-IDF, joined",
    "best_window": "its best window, a vector each",
    "best_window_tfidf": "its best window and TF-IDF, joined",
    "beginning_vector": "the embedder's first 512 tokens",
    "chunk_mean": "the mean of its chunks",
    "stack": "scikit-learn's stack of TF-IDF and the reader's vectors",
    "best_chunk": "its best chunk, a vector each",
}

Split = tuple[Sequence[Any], Any]  # documents, and the answer to each
_SEARCH_CHARACTERS = 5_000_000  # of the documents that a model is chosen with
_MAX_DOCUMENTS = 20_000  # of a split
_MAX_CHARACTERS = 200_000_000  # of a split: some twenty seconds of reading


def majority_baseline(train_labels: Sequence[str], test_labels: Sequence[str]) -> float:
    """Accuracy on the test set of always answering the training set's most frequent label."""
    return float(accuracy_score(test_labels, _constant(DummyClassifier(), train_labels, len(test_labels))))


def mean_baseline(train_values: Sequence[float], test_values: Sequence[float]) -> Scores:
    """:func:`regression_metrics` of always answering the mean of the training set."""
    return regression_metrics(test_values, _constant(DummyRegressor(), train_values, len(test_values)))


def most_frequent_tag_baseline(train: Split, test: Split) -> Scores:
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


def compression_baseline(train_texts: Sequence[str], test_texts: Sequence[str], *, seed: int) -> float:
    """Bits per byte that bzip2 takes for test documents after training documents.

    Both lie in one of its blocks of 900,000 bytes, so that it profits from what the training documents repeat.
    The test documents are the first of those that a language model is scored on.

    Args:
        train_texts: documents whose size is not counted; the beginnings of some, drawn at random.
        test_texts: documents whose size is.
        seed: of the draw.
    """
    known = _first_bytes(train_texts, 600_000, seed, most_of_each=30_000)
    test_bytes = _first_bytes(test_texts, 290_000, seed)
    return 8 * max(0, len(bz2.compress(known + test_bytes)) - len(bz2.compress(known))) / len(test_bytes)


def _first_bytes(texts: Sequence[str], most: int, seed: int, most_of_each: int | None = None) -> bytes:
    """Documents one after the other as UTF-8, in the order of :class:`PackedRows`, up to ``most`` bytes."""
    beginning = bytearray()
    for index in np.random.default_rng(seed).permutation(len(texts)):
        beginning += texts[int(index)][:most_of_each].encode()
        if len(beginning) >= most:
            break
    return bytes(beginning[:most])


def _constant(model: Any, answers: Sequence[Any], scored: int) -> np.ndarray:
    """What a model of scikit-learn that looks at no features answers to ``scored`` documents."""
    if not len(answers) or not scored:
        raise ValueError(f"both splits need answers, got {len(answers)} and {scored}")
    return np.asarray(model.fit(np.zeros((len(answers), 1)), answers).predict(np.zeros((scored, 1))))


class Drawn(NamedTuple):
    """Documents of a split, with their answers and their numbers."""

    texts: list[str]
    answers: list[Any]
    numbers: list[int]

    def first(self, number: int) -> "Drawn":
        """The first of them."""
        return Drawn(self.texts[:number], self.answers[:number], self.numbers[:number])


def stack_baseline(texts: Sequence[Sequence[str]], states: Sequence[np.ndarray], labels: Sequence[Any]) -> np.ndarray:
    """What scikit-learn's ``StackingClassifier`` predicts: a logistic regression of what two others say out of fold.

    These are a linear support vector machine of words and pairs of words, and a logistic regression of standardized
    vectors, as they are.

    Args:
        texts: of documents to learn from, and of those that are scored.
        states: the vectors of both.
        labels: of the former.
    """
    known, scored = (
        [{"text": text, "state": state} for text, state in zip(*part, strict=True)]
        for part in zip(texts, states, strict=True)
    )
    words = make_pipeline(
        FunctionTransformer(lambda rows: [row["text"] for row in rows]),
        TfidfVectorizer(tokenizer=words_of, token_pattern=None, ngram_range=(1, 2), sublinear_tf=True),
        LinearSVC(),
    )
    vectors = make_pipeline(
        FunctionTransformer(lambda rows: np.stack([row["state"] for row in rows])),
        StandardScaler(),
        LogisticRegression(C=0.01, max_iter=1000),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a rare label is missing in some folds
        stack = StackingClassifier([("words", words), ("vectors", vectors)]).fit(known, labels)
    return np.asarray(stack.predict(scored))


def tfidf_baseline(train: Split, validation: Split, test: Split, *, seed: int) -> Scores:
    """Score of a linear classifier of TF-IDF, with one label a document.

    Words are counted with sublinear weights. Whether pairs of neighboring words are counted too, and of short documents
    n-grams of 2 to 5 characters, is chosen on the validation documents by the mean of accuracy and macro F1, and then
    which of :data:`~torch_linformer.tasks.linear_classifiers.CLASSIFIERS` it is. That one is fitted anew to training
    and validation documents together. Of a large split some documents are drawn at random.

    Returns:
        ``accuracy``, ``macro_f1``, ``chosen`` (in words), ``documents`` (learned from), ``test_documents`` (scored),
        their ``numbers``, what was ``predicted`` of each, and ``tallies``: what
        :func:`~torch_linformer.tasks.tallies.tally` says of each for a score.
    """
    parts = _drawn((train, validation, test), seed)
    names = sorted({*parts[0].answers, *parts[1].answers})
    choice, decisions = _chosen(parts, lambda labels: one_hot(labels, names), CLASSIFIERS, one_label_score)
    known = np.asarray(parts[2].answers, dtype=object)
    predicted = np.asarray(names, dtype=object)[decisions.argmax(axis=1)]
    scores = {
        "accuracy": float(np.mean(known == predicted)),
        "macro_f1": float(f1_score(known.tolist(), predicted.tolist(), average="macro", zero_division=0)),
    }
    return {**scores, **_about(parts, choice, list(scores), predicted)}


def tfidf_multilabel_baseline(train: Split, validation: Split, test: Split, *, seed: int) -> Scores:
    """Score of one linear classifier a label, each independent of the others, chosen as in :func:`tfidf_baseline`.

    A label is predicted above the :func:`best_threshold` of the validation documents, whose micro F1 also chooses. The
    labels are 1 where a document has the label, else 0, of shape (documents, labels).

    Returns:
        ``micro_f1``, ``macro_f1``, and the other values as of :func:`tfidf_baseline`, with a tally of ``micro_f1``.
    """
    shapes = [np.shape(part[1]) for part in (train, validation, test)]
    if {len(shape) for shape in shapes} != {2} or len({shape[1] for shape in shapes}) > 1 or not shapes[0][1]:
        raise ValueError(f"labels must be of shape (documents, labels), got {', '.join(map(str, shapes))}")
    labels = shapes[0][1]
    parts = _drawn((train, validation, test), seed, max(1, MAX_DECISIONS // labels))
    choice, decisions = _chosen(parts, np.asarray, CLASSIFIERS, several_labels_score, labels)
    targets = np.asarray(parts[1].answers)[: len(choice.decisions)]
    predicted = sigmoid(decisions) > best_threshold(targets, sigmoid(choice.decisions))
    scores = multilabel_metrics(np.asarray(parts[2].answers), predicted, [""] * labels)
    about = _about(parts, choice, ["micro_f1"], predicted)
    return {"micro_f1": scores["micro_f1"], "macro_f1": scores["macro_f1"], **about}


def tfidf_regression_baseline(train: Split, validation: Split, test: Split, *, seed: int) -> Scores:
    """Score of ridge regression on TF-IDF, chosen by the mean square error as in :func:`tfidf_baseline`.

    Returns:
        what :func:`regression_metrics` does, and the rest as :func:`tfidf_baseline`, with a tally of ``mse``.
    """
    parts = _drawn((train, validation, test), seed)
    choice, decisions = _chosen(
        parts, lambda values: np.asarray(values, dtype=np.float64)[:, None], REGRESSIONS, mean_square_score
    )
    predicted = decisions[:, 0]
    return {**regression_metrics(parts[2].answers, predicted), **_about(parts, choice, ["mse"], predicted)}


def _drawn(splits: Sequence[Split], seed: int, max_learned: int | None = None) -> list[Drawn]:
    """Documents of each split in random order, until there are enough of them or of their characters."""
    draw = random.Random(seed)
    drawn = []
    for name, (texts, answers) in zip(("train", "validation", "test"), splits, strict=True):
        if len(texts) != len(answers) or not len(texts):
            raise ValueError(f"{name} needs documents and an answer for each, got {len(texts)} and {len(answers)}")
        most = min(_MAX_DOCUMENTS, len(texts))
        if name != "test" and max_learned is not None:
            most = min(most, max_learned)
        order = draw.sample(range(len(texts)), most)
        numbers = order[: _within([texts[number] for number in order], _MAX_CHARACTERS)]
        drawn.append(Drawn([texts[number] for number in numbers], [answers[number] for number in numbers], numbers))
    return drawn


def _within(texts: Sequence[str], characters: int) -> int:
    """How many of the first texts have no more characters together; at least the first."""
    return max(1, int(np.searchsorted(np.cumsum([len(text) for text in texts]), characters, side="right")))


def _chosen(
    parts: Sequence[Drawn],
    encode: Callable[[Sequence[Any]], np.ndarray],
    models: Sequence[LinearModel],
    score: Callable[[np.ndarray, np.ndarray], float],
    labels: int = 1,
) -> tuple[LinearChoice, np.ndarray]:
    """What the validation documents choose, and its decisions of the test documents once it has learned all others.

    ``encode`` makes targets of answers; with several ``labels`` a document fewer documents are searched.
    """
    most = searched(labels)
    train, validation = (part.first(min(most, _within(part.texts, _SEARCH_CHARACTERS))) for part in parts[:2])
    targets = encode(train.answers), encode(validation.answers)
    choice = choose(_kinds(train.texts, validation.texts, targets), models, score)
    texts, answers = parts[0].texts + parts[1].texts, [*parts[0].answers, *parts[1].answers]
    all_targets = encode(answers)
    known, scored = features(choice.kind, texts, parts[2].texts, all_targets.shape[1])
    return choice, choice.model.fit(known, all_targets).decisions(scored)


def _kinds(
    train: list[str], validation: list[str], targets: tuple[np.ndarray, np.ndarray]
) -> Iterator[tuple[str, Known, Known]]:
    """The kinds of features that are compared, of documents to learn from and of those that choose."""
    short = sum(map(len, train)) <= SHORT * len(train)
    for kind in (WORDS, PAIRS, GRAMS)[: 3 if short else 2]:
        known, scored = features(kind, train, validation, targets[0].shape[1])
        yield kind, Known(known, targets[0]), Known(scored, targets[1])


def features(kind: str, known: list[str], scored: list[str], outputs: int) -> tuple[Any, Any]:
    """TF-IDF matrices of documents, for one model with this many outputs, and of others; zeros if no word is left."""
    options: dict[str, Any] = {
        "min_df": 2 if len(known) >= MANY_DOCUMENTS else 1,
        "max_features": min(MOST_FEATURES, MAX_COEFFICIENTS // outputs),
        "sublinear_tf": True,
        "dtype": np.float32,
    }
    last = 1 if kind == WORDS else 2
    vectorizer: Any = TfidfVectorizer(tokenizer=words_of, token_pattern=None, ngram_range=(1, last), **options)
    if kind == GRAMS:
        characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), **options)
        vectorizer = FeatureUnion([("words", vectorizer), ("characters", characters)])
    try:
        return vectorizer.fit_transform(known), vectorizer.transform(scored)
    except ValueError:  # nothing stands in enough documents: only how frequent the answers are can be learned
        return csr_matrix((len(known), 1)), csr_matrix((len(scored), 1))


def _about(parts: Sequence[Drawn], choice: LinearChoice, scores: Sequence[str], predicted: np.ndarray) -> Scores:
    """What was chosen, how many documents there were, and what each that was scored adds to the scores."""
    train, validation, test = parts
    true = np.asarray(test.answers)
    return {
        "chosen": str(choice),
        "documents": len(train.texts) + len(validation.texts),
        "test_documents": len(test.texts),
        "numbers": test.numbers,
        "predicted": np.asarray(predicted).tolist(),
        "tallies": {score: tally(score, true, predicted).tolist() for score in scores},
    }

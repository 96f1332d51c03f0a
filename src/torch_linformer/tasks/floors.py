"""What a model has to beat: the scores of methods that take seconds and no accelerator."""

import bz2
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import accuracy_score, f1_score

from torch_linformer.data.words import words_of
from torch_linformer.tasks.metrics import Scores, multilabel_metrics, regression_metrics, tagging_metrics
from torch_linformer.tasks.tallies import tally
from torch_linformer.tasks.threshold import best_threshold

FLOORS = {  # what they are called in a report
    "tfidf": "TF-IDF + logistic regression",
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
    "best_chunk": "its best chunk, a vector each",
}

MANY_DOCUMENTS = 100  # so many, and what only one of them has tells nothing
MAX_COEFFICIENTS = 10_000_000  # features times labels: the optimizer keeps some twenty arrays of this size
_BIGRAM_CHARACTERS = 4_000  # documents longer than this on average are classified by single words only
_MAX_DOCUMENTS = 20_000  # of a split
_MAX_CHARACTERS = 200_000_000  # of a split: some twenty seconds of reading
_MAX_FEATURES = 200_000
MAX_DECISIONS = 400_000  # documents times labels, each label with a model of its own: some minutes of learning

Split = tuple[Sequence[Any], Any]  # documents, and the answer to each


class Drawn(NamedTuple):
    """The documents that are learned from and those that are scored, with their answers."""

    texts: list[str]
    answers: list[Any]
    test_texts: list[str]
    test_answers: list[Any]
    scored: list[int]  # their numbers

    def about(self, score: str, predicted: np.ndarray) -> Scores:
        """How many documents there were, and what each that was scored adds to a score, with its number."""
        rows = tally(score, np.asarray(self.test_answers), predicted).tolist()
        numbered = [[number, *row] for number, row in zip(self.scored, rows, strict=True)]
        return {"documents": len(self.texts), "test_documents": len(self.test_texts), "tally": numbered}


def majority_floor(train_labels: Sequence[str], test_labels: Sequence[str]) -> float:
    """Accuracy on the test set of always answering the training set's most frequent label."""
    return float(accuracy_score(test_labels, _constant(DummyClassifier(), train_labels, len(test_labels))))


def tfidf_floor(train: Split, test: Split, *, seed: int) -> Scores:
    """Score of logistic regression on TF-IDF word counts, with one label a document.

    Words are counted with sublinear weights, and pairs of neighboring words too when documents are short
    (at most 4,000 characters on average): pairs helped on film reviews, and cost both time and accuracy on
    source files of 20,000 characters. Of a large split some documents are drawn at random.

    Returns:
        ``accuracy``, ``macro_f1``, ``documents`` (learned from), ``test_documents`` (scored), and the ``tally``: the
        number of each document that was scored, and what :func:`~torch_linformer.tasks.tallies.tally` says of it.
    """
    drawn = _drawn(train, test, seed)
    predicted = _classified(_features(drawn, len(set(drawn.answers))), drawn.answers)
    accuracy = accuracy_score(drawn.test_answers, predicted)
    f1 = f1_score(drawn.test_answers, predicted, average="macro", zero_division=0)
    return {"accuracy": float(accuracy), "macro_f1": float(f1), **drawn.about("accuracy", predicted)}


def tfidf_multilabel_floor(train: Split, test: Split, *, seed: int) -> Scores:
    """Score of one logistic regression a label, each independent of the others, on the features of :func:`tfidf_floor`.

    A label is predicted above the :func:`best_threshold` of a tenth of the training documents, for regressions learned
    from the others. The labels are 1 where a document has the label, else 0, of shape (documents, labels).

    Returns:
        ``micro_f1``, ``macro_f1``, and the other values as of :func:`tfidf_floor`.
    """
    shapes = np.shape(train[1]), np.shape(test[1])
    if [len(shape) for shape in shapes] != [2, 2] or shapes[0][1] != shapes[1][1] or not shapes[0][1]:
        raise ValueError(f"labels must be of shape (documents, labels), got {shapes[0]} and {shapes[1]}")
    drawn = _drawn(train, test, seed, max(1, MAX_DECISIONS // shapes[0][1]))
    known, scored = _features(drawn)
    answers, held_out = np.asarray(drawn.answers), len(drawn.answers) // 10
    held_out_answers = _probabilities(known[held_out:], answers[held_out:], known[:held_out])
    threshold = best_threshold(answers[:held_out], held_out_answers)
    predicted = _probabilities(known, answers, scored) > threshold
    scores = multilabel_metrics(np.asarray(drawn.test_answers), predicted, [""] * predicted.shape[1])
    about = drawn.about("micro_f1", predicted)
    return {"micro_f1": scores["micro_f1"], "macro_f1": scores["macro_f1"], **about}


def mean_floor(train_values: Sequence[float], test_values: Sequence[float]) -> Scores:
    """:func:`regression_metrics` of always answering the mean of the training set."""
    return regression_metrics(test_values, _constant(DummyRegressor(), train_values, len(test_values)))


def tfidf_regression_floor(train: Split, test: Split, *, seed: int) -> Scores:
    """Score of ridge regression on the features of :func:`tfidf_floor`.

    Returns:
        what :func:`regression_metrics` does, and the other values as of :func:`tfidf_floor`.
    """
    drawn = _drawn(train, test, seed)
    known, scored = _features(drawn)
    predicted = Ridge().fit(known, np.asarray(drawn.answers, dtype=np.float64)).predict(scored)
    return {**regression_metrics(drawn.test_answers, predicted), **drawn.about("mse", predicted)}


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


def pairs_tell(texts: Sequence[str]) -> bool:
    """Whether the documents are short enough for pairs of neighboring words to be counted too."""
    return sum(map(len, texts)) <= _BIGRAM_CHARACTERS * len(texts)


def logistic_regression(**options: Any) -> LogisticRegression:
    """The classifier of TF-IDF features, not fitted.

    A weak penalty suits rare, telling words: film reviews (IMDB) gain nothing from a weaker one, source files a little.
    """
    return LogisticRegression(C=30, max_iter=300, **options)


def _drawn(train: Split, test: Split, seed: int, max_learned: int | None = None) -> Drawn:
    """Documents of both splits in random order, until there are enough of them or of their characters."""
    draw = random.Random(seed)
    drawn: list[list[Any]] = []
    for name, (texts, answers), most in (("train", train, max_learned), ("test", test, None)):
        if len(texts) != len(answers) or not len(texts):
            raise ValueError(f"{name} needs documents and an answer for each, got {len(texts)} and {len(answers)}")
        chosen: list[int] = []
        characters = 0
        for index in draw.sample(range(len(texts)), min(most or _MAX_DOCUMENTS, _MAX_DOCUMENTS, len(texts))):
            characters += len(texts[index])
            if chosen and characters > _MAX_CHARACTERS:
                break
            chosen.append(index)
        drawn += [[texts[index] for index in chosen], [answers[index] for index in chosen]]
    return Drawn(drawn[0], drawn[1], drawn[2], drawn[3], chosen)


def _features(drawn: Drawn, outputs: int = 1) -> tuple[Any, Any]:
    """TF-IDF matrices of both splits, for one model with this many outputs; zeros if no word is left."""
    known, scored = drawn.texts, drawn.test_texts
    vectorizer = TfidfVectorizer(
        tokenizer=words_of,
        token_pattern=None,
        ngram_range=(1, 2 if pairs_tell(known) else 1),
        min_df=2 if len(known) >= MANY_DOCUMENTS else 1,
        max_features=min(_MAX_FEATURES, MAX_COEFFICIENTS // outputs),
        sublinear_tf=True,
        dtype=np.float32,
    )
    try:
        features = vectorizer.fit_transform(known)
    except ValueError:  # no word stands in enough documents: only how frequent the answers are can be learned
        return np.zeros((len(known), 1)), np.zeros((len(scored), 1))
    return features, vectorizer.transform(scored)


def _classified(features: tuple[Any, Any], labels: Sequence[Any]) -> np.ndarray:
    """Labels that logistic regression, fitted on the first matrix, gives to the rows of the second."""
    if len(set(labels)) == 1:
        return _constant(DummyClassifier(), labels, features[1].shape[0])
    return np.asarray(_fitted(features[0], labels).predict(features[1]))


def _probabilities(known: Any, labels: np.ndarray, scored: Any) -> np.ndarray:
    """Of rows of ``scored`` to have each label, ``(rows, labels)``, from those of ``known``, 1 where one has it."""
    columns = [
        _fitted(known, column).predict_proba(scored)[:, 1]
        if scored.shape[0] and len(set(column.tolist())) == 2
        else np.full(scored.shape[0], column.mean())  # all have it, or none
        for column in labels.T
    ]
    return np.stack(columns, axis=1)


def _fitted(features: Any, labels: Any) -> LogisticRegression:
    """Logistic regression on TF-IDF."""
    with warnings.catch_warnings():
        # Stopped at max_iter it is still a measured score on documents it has not seen.
        warnings.simplefilter("ignore", ConvergenceWarning)
        return logistic_regression().fit(features, labels)


def _constant(model: Any, answers: Sequence[Any], scored: int) -> np.ndarray:
    """What a model of scikit-learn that looks at no features answers to ``scored`` documents."""
    if not len(answers) or not scored:
        raise ValueError(f"both splits need answers, got {len(answers)} and {scored}")
    return np.asarray(model.fit(np.zeros((len(answers), 1)), answers).predict(np.zeros((scored, 1))))

"""What a model has to beat: methods that take seconds."""

import bz2
import warnings
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
from joblib import parallel_config
from scipy.sparse import csr_matrix, hstack
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import StackingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import accuracy_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

from torch_linformer.data.words import words_of
from torch_linformer.tasks.kept_fits import kept
from torch_linformer.tasks.linear_classifiers import MANY_DOCUMENTS
from torch_linformer.tasks.metrics import Scores, regression_metrics, tagging_metrics

BASELINES = {  # what they are called in a report
    "words": "words alone",
    "tfidf": "scikit-learn's TF-IDF + LinearSVC",
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


@kept
def sklearn_baselines(
    texts: Sequence[Sequence[str]], labels: Sequence[Any], states: Sequence[np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """What methods that are scikit-learn's alone, as they are, predict of documents with one label each.

    ``tfidf`` is a linear support vector machine of words and pairs of words. With vectors there is ``stack``, too: a
    logistic regression of what that and one of standardized vectors say out of fold.

    Args:
        texts: of documents to learn from, and of those that are scored.
        labels: of the former.
        states: the vectors of both.
    """
    many = len(labels) >= MANY_DOCUMENTS
    counting = TfidfVectorizer(
        tokenizer=words_of, token_pattern=None, ngram_range=(1, 2), min_df=1 + many, sublinear_tf=True, dtype=np.float32
    )
    try:
        counted = [counting.fit_transform(texts[0]), counting.transform(texts[1])]
    except ValueError:  # nothing stands in enough documents: only how frequent the labels are can be learned
        counted = [csr_matrix((len(part), 1), dtype=np.float32) for part in texts]
    if len(set(labels)) < 2:
        return {"tfidf": np.full(len(texts[1]), labels[0])}
    if states is None:
        return {"tfidf": LinearSVC().fit(counted[0], labels).predict(counted[1])}
    known, scored = (hstack(pair, format="csr") for pair in zip(counted, states, strict=True))
    first = counted[0].shape[1]  # of the vectors
    words = make_pipeline(FunctionTransformer(lambda x: x[:, :first]), LinearSVC())
    vectors = make_pipeline(
        FunctionTransformer(lambda x: x[:, first:].toarray()),
        StandardScaler(),
        LogisticRegression(C=0.01, max_iter=1000),
    )
    with warnings.catch_warnings(), parallel_config("threading", n_jobs=-1):  # liblinear lets other threads run
        for kind in (UserWarning, RuntimeWarning):  # a rare label is missing in some folds
            warnings.simplefilter("ignore", kind)
        stack = StackingClassifier([("words", words), ("vectors", vectors)]).fit(known, labels)
    return {"tfidf": stack.named_estimators_["words"].predict(scored), "stack": stack.predict(scored)}

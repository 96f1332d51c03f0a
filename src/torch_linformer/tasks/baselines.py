"""What a model has to beat: the names of these methods, and those that are scikit-learn's alone."""

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from joblib import parallel_config
from scipy.sparse import csr_matrix, hstack
from sklearn.ensemble import StackingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.svm import LinearSVC

from torch_linformer.data.words import words_of
from torch_linformer.tasks.kept_fits import kept
from torch_linformer.tasks.linear_classifiers import MANY_DOCUMENTS

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


@kept
def sklearn_baselines(
    texts: Sequence[Sequence[str]], labels: Sequence[Any], states: Sequence[np.ndarray] | None = None
) -> dict[str, np.ndarray]:
    """What scikit-learn's methods, as they are, predict of documents with one label each.

    ``tfidf`` is a linear support vector machine of words and pairs of words. With vectors there is ``stack``, too: a
    logistic regression of what that and one of standardized vectors say out of fold, where folds can have all labels.

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
    often = sum(number > 1 for number in Counter(labels).values())
    # A fold may lack labels that stand once; of more than two labels scikit-learn stacks no fold that has only two.
    if states is None or often <= 2 < len(set(labels)):
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

"""What vectors have to beat at finding documents: the words that a query shares with them."""

from typing import Any

import bm25s
import numpy as np
from scipy import sparse
from sklearn.feature_extraction.text import TfidfVectorizer

from torch_linformer.data.words import words_of
from torch_linformer.tasks.retrieval_metrics import Judgments, retrieval_metrics


def tfidf_search(documents: list[str], queries: list[str], judgments: Judgments) -> dict[str, Any]:
    """:func:`retrieval_metrics` of the cosine of TF-IDF vectors of words and of pairs of neighboring words."""
    options: dict[str, Any] = {"ngram_range": (1, 2), "sublinear_tf": True, "dtype": np.float32}
    vectorizer = TfidfVectorizer(tokenizer=words_of, token_pattern=None, **options)
    known = sparse.csr_matrix(vectorizer.fit_transform(documents)).T.tocsr()
    asked = sparse.csr_matrix(vectorizer.transform(queries))
    return retrieval_metrics(lambda begin, end: (asked[begin:end] @ known).toarray(), judgments)


def bm25_search(documents: list[str], queries: list[str], judgments: Judgments) -> dict[str, Any]:
    """:func:`retrieval_metrics` of BM25 (Lucene's, k₁ 1.5, b 0.75) of words in lower case."""
    words = [words_of(text.lower()) for text in documents]
    index = bm25s.BM25()
    index.index(words, show_progress=False)
    known = index.vocab_dict

    def similarities(begin: int, end: int) -> np.ndarray:
        asked = [[word for word in words_of(query.lower()) if word in known] for query in queries[begin:end]]
        nothing = np.zeros(len(documents), dtype=np.float32)
        return np.stack([index.get_scores(words) if words else nothing for words in asked])

    return retrieval_metrics(similarities, judgments)

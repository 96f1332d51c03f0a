"""Initial word embeddings from the documents themselves: latent semantic analysis."""

import math
from collections.abc import Iterable, Sequence

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.utils.extmath import randomized_svd


def token_vectors(documents: Iterable[Sequence[int]], vocab_size: int, width: int, *, seed: int) -> np.ndarray:
    r"""A vector for every token, from which documents it occurs in.

    With the TF-IDF matrix :math:`T \approx U \Sigma V^\top` of documents × tokens (logarithmic counts, rows of
    length 1), a token's vector is its row of V: tokens that occur in the same documents get similar vectors.

    Args:
        documents: token ids of each document.
        vocab_size: one more than the largest token id.
        width: numbers a vector has; those beyond the rank that the documents allow are 0.
        seed: of the randomized SVD.

    Returns:
        ``(vocab_size, width)`` in float32, of mean square 1; all 0 where there are no tokens.

    Source:
        Deerwester et al., Indexing by latent semantic analysis, JASIS 41(6), 1990.
    """
    ids = [np.asarray(document, dtype=np.int64) for document in documents]
    ends, shape = np.cumsum([0, *map(len, ids)]), (len(ids), vocab_size)
    ones = np.ones(ends[-1], dtype=np.float32)
    matrix = csr_matrix((ones, np.concatenate(ids), ends), shape=shape)
    matrix.sum_duplicates()
    weighted = TfidfTransformer(sublinear_tf=True).fit_transform(matrix)
    rank = min(width, *shape)
    vectors = np.zeros((vocab_size, width), dtype=np.float32)
    _, energies, directions = randomized_svd(weighted, rank, random_state=seed)
    vectors[:, :rank] = directions.T * (energies > 1e-6 * energies[0])  # beyond the true rank they are noise
    mean_square = float(np.mean(vectors**2))
    return vectors / math.sqrt(mean_square) if mean_square > 0 else vectors

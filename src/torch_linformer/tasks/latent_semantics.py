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
    ids, counts, ends = [], [], [0]
    for document in documents:
        tokens, occurrences = np.unique(np.asarray(document), return_counts=True)
        ids.append(tokens)
        counts.append(occurrences)
        ends.append(ends[-1] + len(tokens))
    shape = (len(ids), vocab_size)
    matrix = csr_matrix((np.concatenate(counts), np.concatenate(ids), ends), shape=shape, dtype=np.float32)
    weighted = TfidfTransformer(sublinear_tf=True).fit_transform(matrix)
    rank = min(width, *shape)
    vectors = np.zeros((vocab_size, width), dtype=np.float32)
    _, energies, directions = randomized_svd(weighted, rank, random_state=seed)
    vectors[:, :rank] = directions.T * (energies > 1e-6 * energies[0])  # beyond the true rank they are noise
    mean_square = float(np.mean(vectors**2))
    return vectors / math.sqrt(mean_square) if mean_square > 0 else vectors

import numpy as np
import pytest

from torch_linformer.tasks.latent_semantics import token_vectors

DOCUMENTS = [[1, 2, 2, 3, 5], [1, 2, 3], [4, 5, 5, 5, 1], [5, 4], [6, 1, 7, 7], [6, 2, 7]]


def literal(documents, vocab_size, width):
    """The definition, entry by entry, in float64."""
    counts = np.array([[document.count(token) for token in range(vocab_size)] for document in documents])
    rarity = np.log((1 + len(documents)) / (1 + (counts > 0).sum(axis=0))) + 1
    weighted = np.where(counts > 0, 1 + np.log(np.maximum(counts, 1)), 0) * rarity
    weighted /= np.linalg.norm(weighted, axis=1, keepdims=True)
    vectors = np.linalg.svd(weighted)[2][:width].T
    return vectors / np.sqrt(np.mean(vectors**2))


def test_against_the_definition():
    vectors = token_vectors(DOCUMENTS, 9, 4, seed=0)
    expected = literal(DOCUMENTS, 9, 4)
    assert vectors.dtype == np.float32 and vectors.shape == (9, 4)
    # A direction of the SVD has no sign.
    assert vectors * np.sign((vectors * expected).sum(axis=0)) == pytest.approx(expected, abs=1e-5)


def test_the_seed_decides():
    assert np.array_equal(token_vectors(DOCUMENTS, 9, 2, seed=3), token_vectors(DOCUMENTS, 9, 2, seed=3))


@pytest.mark.parametrize("documents", [[[1, 2], [1, 2], [1, 2]], [[1, 2]]])
def test_what_lies_beyond_the_rank_is_zero(documents):
    vectors = token_vectors(documents, 4, 3, seed=0)
    assert np.abs(vectors[1:3, 0]).min() > 1 and not vectors[:, 1:].any() and not vectors[[0, 3]].round(4).any()


def test_documents_may_be_arrays_from_a_generator_and_some_empty():
    arrays = (np.array(document, dtype=np.int32) for document in [*DOCUMENTS, []])
    assert np.isfinite(token_vectors(arrays, 9, 4, seed=0)).all()


def test_no_tokens_at_all():
    assert not token_vectors([[], []], 5, 3, seed=0).any()

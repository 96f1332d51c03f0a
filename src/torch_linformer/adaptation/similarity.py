"""How well embeddings replace others of the same texts."""

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

NEIGHBOURS = 10


def embedding_scores(given: Tensor, wanted: Tensor) -> dict[str, float]:
    """How well embeddings ``(n, C)`` of length 1 replace others of the same texts.

    Returns:
        ``cosine``: mean over the texts. ``rank_correlation``: Spearman's, of the similarities of all pairs.
        ``neighbours``: share of each text's ten nearest that are still among its ten nearest.
    """
    ours, theirs = (given @ given.T).double(), (wanted @ wanted.T).double()
    pairs = np.triu_indices(len(given), 1)
    kept = _nearest(ours) & _nearest(theirs)
    return {
        "cosine": float((given * wanted).sum(dim=-1).mean()),
        "rank_correlation": float(spearmanr(ours.numpy()[pairs], theirs.numpy()[pairs]).statistic),
        "neighbours": float(kept.sum(dim=-1).double().mean()) / min(NEIGHBOURS, len(given) - 1),
    }


def chance_of_neighbours(texts: int) -> float:
    """What ``neighbours`` is on average where each text's nearest others are drawn at random."""
    return min(NEIGHBOURS, texts - 1) / (texts - 1)


def _nearest(similarities: Tensor) -> Tensor:
    """Bool ``(n, n)``: True at the nearest others of each text."""
    others = similarities.clone().fill_diagonal_(-torch.inf)
    found = others.topk(min(NEIGHBOURS, len(others) - 1), dim=-1).indices
    return torch.zeros_like(others, dtype=torch.bool).scatter(-1, found, True)

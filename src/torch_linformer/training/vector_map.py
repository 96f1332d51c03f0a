"""The map of the vectors of an encoder that stays as it is, fitted to queries and to what the best chunks say."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.models.pieces import PieceVectors, largest_products
from torch_linformer.tasks.lexical_vector_fit import surprise
from torch_linformer.tasks.retrieval_metrics import SCALE, Judgments

# Halves of the training meetings of QMSum find those of the other (docs/log.md).
STEPS, LEARNING_RATE, WARMUP = 100, 2e-3, 15
BATCH = 256  # queries of a step
DISTILLED, OF_TEXTS = 0.4, 0.3  # shares of what a teacher says of queries and of other texts in the loss
AT_ONCE = 1000  # vectors that are compared with all chunks
MOST_CHUNKS, TEXTS = 5000, 250  # chunks that are such texts, and how many of a step
UNLIKELY = -1e4  # the logit of a document that is no candidate
NEAR_IDENTITY = 10.0  # what it costs to leave it


class Lessons(NamedTuple):
    """What a teacher says of documents: how near to queries, ``(Q, D)``, and to other texts, ``(T, D)``, they are.

    Of the other texts the vectors, ``(T, C)``, are given too.
    """

    queries: Tensor
    texts: Tensor
    of_texts: Tensor

    def some(self, queries: np.ndarray, documents: np.ndarray) -> "Lessons":
        """Those of some queries and documents."""
        return Lessons(self.queries[queries][:, documents], self.texts, self.of_texts[:, documents])


def lessons_of(chunks: Sequence[Tensor], queries: Tensor, documents: np.ndarray, seed: int) -> Lessons:
    """Those of the best of the ``chunks`` of each document, for some queries and for chunks drawn at random.

    Args:
        chunks: vectors of length 1 of those of each document.
        queries: vectors of queries, ``(Q, C)``.
        documents: the numbers of those that count.
        seed: of the draw.
    """
    together = torch.cat(list(chunks))
    drawn = together[torch.from_numpy(np.random.default_rng(seed).permutation(len(together))[:MOST_CHUNKS])]
    counted = [chunks[number] for number in documents]
    return Lessons(best_chunks(queries, counted), drawn, best_chunks(drawn, counted))


def best_chunks(asking: Tensor, chunks: Sequence[Tensor]) -> Tensor:
    """How near the best of the chunks of each document is to vectors ``(Q, C)``: ``(Q, D)``."""
    together, places = torch.cat(list(chunks)), np.cumsum([0, *map(len, chunks[:-1])])
    parts = [np.maximum.reduceat((some @ together.T).numpy(), places, axis=1) for some in torch.split(asking, AT_ONCE)]
    return torch.from_numpy(np.concatenate(parts))


def fit_map(
    pieces: PieceVectors,
    queries: Tensor,
    documents: Tensor,
    judgments: Judgments,
    lessons: Lessons | None,
    seed: int,
) -> None:
    r"""Give vectors the map W, b with which queries find their documents, and rank them as a teacher does.

    .. math:: (1 - \alpha) \, L + \alpha \, D_\text{queries} + \beta \, D_\text{texts}
        + \frac{10}{Q} \lVert W - I \rVert^2

    L is the :func:`~torch_linformer.tasks.lexical_vector_fit.surprise` of 20 times the
    :func:`~torch_linformer.models.pieces.largest_products`, and D the mean Kullback-Leibler divergence of their softmax
    over the documents from that of the teacher's similarities, with the same factor (Hinton et al. 2015, arXiv
    1503.02531); :math:`\alpha` is 0.4 and :math:`\beta` 0.3, and both are 0 without a teacher. So every query learns
    from all documents, not only from its own.

    Args:
        pieces: is changed; its map is the identity.
        queries: vectors of queries, ``(Q, C)`` or ``(Q, M, C)``.
        documents: likewise, of D documents.
        judgments: which documents a query should find; those that have none teach nothing.
        lessons: of the teacher; None for no teacher.
        seed: of what is drawn.
    """
    relevant, candidates = map(torch.from_numpy, judgments.of(np.arange(len(queries))))
    asked, draws = np.flatnonzero(judgments.wanted > 0), np.random.default_rng(seed)
    weights, identity = pieces.map.requires_grad_(True), torch.eye(pieces.channels)
    optimizer = torch.optim.Adam(weights.parameters(), lr=LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / WARMUP) * (1 - step / STEPS)
    )
    for _ in range(STEPS if len(asked) else 0):
        rows, mapped = torch.from_numpy(draws.permutation(asked)[:BATCH]), pieces.mapped(documents)
        scores = SCALE * largest_products(pieces.mapped(queries[rows]), mapped)
        loss = surprise(scores, relevant[rows], candidates[rows])
        if lessons is not None:
            texts = torch.from_numpy(draws.permutation(len(lessons.texts))[:TEXTS])
            of_texts = SCALE * largest_products(pieces.mapped(lessons.texts[texts]), mapped)
            others = ~candidates[rows]
            asking = (logits.masked_fill(others, UNLIKELY) for logits in (scores, SCALE * lessons.queries[rows]))
            loss = (1 - DISTILLED) * loss + DISTILLED * _divergence(*asking)
            loss = loss + OF_TEXTS * _divergence(of_texts, SCALE * lessons.of_texts[texts])
        loss = loss + NEAR_IDENTITY / len(asked) * (weights.weight - identity).square().sum()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
    weights.requires_grad_(False)


def _divergence(logits: Tensor, taught: Tensor) -> Tensor:
    """The mean over rows of KL(softmax of ``taught`` ‖ softmax of ``logits``)."""
    return F.kl_div(logits.log_softmax(dim=1), taught.log_softmax(dim=1), reduction="batchmean", log_target=True)

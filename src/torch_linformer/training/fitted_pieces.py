"""The map of a few vectors a document, fitted to what an encoder makes of training documents, whose weights stay."""

import math
import time
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.models.pieces import PieceVectors, largest_products
from torch_linformer.opening.run_folder import Spent
from torch_linformer.reporting.tables import format_duration
from torch_linformer.tasks.lexical_vector_fit import MOST_DOCUMENTS, surprise
from torch_linformer.tasks.retrieval import SCALE, asked_of, judgments_of, queries_of
from torch_linformer.tasks.task import Examples
from torch_linformer.training.encoder_baselines import EmbedderVectors, embedder_vectors
from torch_linformer.training.task_trainers import RetrievalTrainer
from torch_linformer.training.trainer import precision_of
from torch_linformer.training.training_screen import TrainingScreen

# Halves of the training meetings of QMSum find those of the other (docs/log.md).
STEPS, LEARNING_RATE, WARMUP = 150, 2e-3, 15
BATCH = 1024  # queries of a step
DISTILLED, OF_TEXTS = 0.4, 0.3  # shares of what a teacher says of queries and of other texts in the loss
FIRST = 16  # documents that tell the time
MOST_CHUNKS, TEXTS = 5000, 500  # chunks that are such texts, and how many of a step
UNLIKELY = -1e4  # the logit of a document that is no candidate
NEAR_IDENTITY = 10.0  # what it costs to leave it


def fit_pieces(
    trainer: RetrievalTrainer, train: Examples, source: str, screen: TrainingScreen, seconds: float = math.inf
) -> Spent:
    """:func:`fit_map` to the vectors of the training documents, which are read once; returns what that took.

    Of many documents as many are drawn as can be read in so many ``seconds``, by what the first few take.
    The original of the model in ``source`` teaches how near its best chunk of each document is to every query, and to
    chunks drawn at random.
    """
    begin, pieces, seed = time.monotonic(), cast(PieceVectors, trainer.task.vectors.pieces), trainer.args.seed

    def read(examples: Examples) -> tuple[EmbedderVectors | None, Any]:
        original = embedder_vectors(source, examples.documents, str(trainer.args.device), precision_of(trainer.args))
        return original, trainer.answers_to(examples)

    total, order = len(train.documents), np.random.default_rng(seed).permutation(len(train.documents))
    if seconds < math.inf and total > FIRST:
        read(_some(train, order[:FIRST]))
        a_document = (time.monotonic() - begin) / FIRST
        train = _some(train, order[: max(FIRST, int(seconds / a_document) - FIRST)])
    part = "" if len(train.documents) == total else f"{len(train.documents):,} of "
    screen.say(f"reading {part}{total:,} training documents, by the encoder and in chunks by the original")
    original, vectors = read(train)
    most = min(len(train.documents), MOST_DOCUMENTS)
    documents, queries = asked_of(train.documents, torch.from_numpy(np.asarray(vectors)))
    rows = np.arange(len(queries))
    relevant, candidates = map(torch.from_numpy, judgments_of(train.documents).among(most).of(rows))
    lessons = None if original is None else lessons_of(original, len(queries), most, pieces.channels, seed)
    fit_map(pieces.cpu(), queries, documents[:most], relevant, candidates, lessons, seed)
    pieces.to(trainer.args.device)
    spent = Spent(time.monotonic() - begin, int(np.sum(np.asarray(train.windows["length"][:]))))
    screen.say(
        f"map of vectors fitted to {most:,} documents and {len(queries):,} queries in {format_duration(spent.seconds)}"
    )
    return spent


def _some(examples: Examples, numbers: np.ndarray) -> Examples:
    """Some of the documents, with the windows of them and of their queries."""
    documents = examples.documents.select(numbers)
    places = {query: len(examples.documents) + place for place, query in enumerate(queries_of(examples.documents))}
    rows = [*numbers, *(places[query] for query in queries_of(documents))]
    return Examples(documents, cast(Dataset, examples.windows).select(rows), examples.num_tokens[numbers])


class Lessons(NamedTuple):
    """What a teacher says of documents: how near to queries, ``(Q, D)``, and to other texts, ``(T, D)``, they are.

    Of the other texts the vectors, ``(T, C)``, are given too.
    """

    queries: Tensor
    texts: Tensor
    of_texts: Tensor


def lessons_of(original: EmbedderVectors, queries: int, documents: int, channels: int, seed: int) -> Lessons:
    """Those of the best chunks of the first documents: of so many queries, and of chunks drawn at random."""
    chunks = original.chunks[np.random.default_rng(seed).permutation(len(original.chunks))[:MOST_CHUNKS]]
    asked = original.similarities["best_chunk"](0, queries)
    similarities = (
        torch.from_numpy(np.asarray(products)).float()[:, :documents]
        for products in (asked, original.best_chunk(chunks))
    )
    return Lessons(next(similarities), torch.from_numpy(chunks[:, :channels]), next(similarities))


def fit_map(
    pieces: PieceVectors,
    queries: Tensor,
    documents: Tensor,
    relevant: Tensor,
    candidates: Tensor,
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
        relevant: which documents a query should find, bool ``(Q, D)``; those that have none teach nothing.
        candidates: among which, likewise.
        lessons: of the teacher; None for no teacher.
        seed: of what is drawn.
    """
    asked, draws = np.flatnonzero(relevant.any(dim=1)), np.random.default_rng(seed)
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

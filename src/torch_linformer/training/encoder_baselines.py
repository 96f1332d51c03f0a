"""What an encoder does with long documents by itself: logistic regression on beginnings, and on means of chunks."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
from datasets import Dataset
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from torch_linformer.encoders.classes import LinearConfig
from torch_linformer.models import LinformerConfig
from torch_linformer.models.document_vectors import DocumentVectors
from torch_linformer.opening.pretrained import load_any_config, longest_input
from torch_linformer.tasks.tallies import tally
from torch_linformer.training.embedder_baselines import PieceReader, original_of
from torch_linformer.training.splits import Splits

COSTS = (1e-3, 1e-2, 0.1, 1.0)  # C of the regression, on channels of the same variance
OF_THE_TIME = 0.1  # of the training, in which documents are read for these rows, but at least
LEAST_SECONDS = 30.0
PIECE = 512  # tokens at once, if the model reads more
_SHARES = {"test": 0.3, "validation": 0.1, "train": 0.6}  # of that time
_TOGETHER = 16  # documents between two looks at the clock


def encoder_baselines(
    start: str, splits: Splits, device: str, precision: str, *, train_seconds: float, seed: int
) -> dict[str, dict[str, Any]]:
    """Scores of classifiers on vectors of the encoder that ``start`` was adapted from, or that it is itself.

    Each document is read in pieces of as many tokens as the encoder takes, :data:`PIECE` at most. One classifier reads
    the mean state of the first piece, the other one the mean over all pieces. C is chosen on the validation documents,
    and these are then learned too. Documents are read at random as long as a share of ``train_seconds`` lasts.

    A linear folder whose original is gone stands for it, and its rows are named differently. There are none for a model
    of this package that no encoder is below.
    """
    source = original_of(start)
    config: Any = load_any_config(source)
    if isinstance(config, LinformerConfig) and config.backbone_config is None:
        return {}
    reader = PieceReader(source, DocumentVectors("mean"), device, precision)
    tokens = min(PIECE, longest_input(reader.model) or PIECE)
    seconds = max(LEAST_SECONDS, OF_THE_TIME * train_seconds)
    order = np.random.default_rng(seed)
    numbers: dict[str, np.ndarray] = {}
    states: dict[str, np.ndarray] = {}
    for part, share in _SHARES.items():
        documents = getattr(splits, part)
        drawn = order.permutation(len(documents))
        states[part] = np.concatenate(list(_read(reader, documents.select(drawn), tokens, share * seconds)))
        numbers[part] = drawn[: len(states[part])]
    labels = {part: np.asarray(getattr(splits, part)["label"][:])[rows] for part, rows in numbers.items()}
    kind = "linear" if isinstance(config, LinearConfig | LinformerConfig) else "original"
    return {
        f"{kind}_{name}": _scores({part: found[:, place] for part, found in states.items()}, labels, numbers["test"])
        for place, name in enumerate(("beginning", "chunk_mean"))
    }


def _read(reader: PieceReader, documents: Dataset, tokens: int, seconds: float) -> Iterator[np.ndarray]:
    """Vectors of the first piece and of all pieces of documents, ``(documents, 2, C)``, until the time is over."""
    begin = time.monotonic()
    for first in range(0, len(documents), _TOGETHER):
        pieces, owners = reader.vectors(documents[first : first + _TOGETHER]["text"], tokens, "windows")
        found = np.split(pieces, np.flatnonzero(np.diff(owners)) + 1)
        yield np.stack([(of_document[0], of_document.mean(axis=0)) for of_document in found])
        if time.monotonic() - begin > seconds:
            return


def _scores(states: dict[str, np.ndarray], labels: dict[str, np.ndarray], numbers: np.ndarray) -> dict[str, Any]:
    """The scores of a logistic regression on states of test documents, with their numbers and tallies."""
    known, wanted = (np.concatenate([parts["train"], parts["validation"]]) for parts in (states, labels))
    fold = PredefinedSplit([-1] * len(labels["train"]) + [0] * len(labels["validation"]))
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    search = GridSearchCV(model, {"logisticregression__C": COSTS}, cv=fold).fit(known, wanted)
    given, true = search.predict(states["test"]), labels["test"]
    scores = {
        "accuracy": float(np.mean(given == true)),
        "macro_f1": float(f1_score(true, given, average="macro", zero_division=0)),
    }
    return {
        **scores,
        "documents": len(wanted),
        "test_documents": len(true),
        "numbers": numbers.tolist(),
        "tallies": {score: tally(score, true, given) for score in scores},
    }

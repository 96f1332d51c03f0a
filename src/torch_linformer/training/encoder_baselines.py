"""What an embedder is worth before anything is learned: its beginnings of documents, their means, their best chunks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn import functional as F
from transformers import DataCollatorWithPadding

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.opening.devices import autocast
from torch_linformer.opening.load import load_any_config, load_backbone, load_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.opening.sentence_transformers import document_vectors, sentence_pooling, sentence_settings
from torch_linformer.tasks.retrieval import asked_of, judgments_of, queries_of
from torch_linformer.tasks.retrieval_metrics import Similarities, joined, retrieval_metrics, tfidf_similarities
from torch_linformer.training.vector_map import best_chunks

BEGINNING, CHUNK = 512, 256  # tokens
_AT_ONCE = 32  # windows


class ChunkVectors(NamedTuple):
    """Vectors of length 1 of documents that are longer than an embedder reads, and of what asks for them.

    Attributes:
        beginnings: of the documents ``(D, C)``, and of what asks ``(Q, C)``.
        means: of the chunks of each, likewise.
        chunks: those of each document, ``(chunks, C)``, one after the other as in a search index.
    """

    beginnings: tuple[Tensor, Tensor]
    means: tuple[Tensor, Tensor]
    chunks: Sequence[Tensor]

    @property
    def similarities(self) -> list[Similarities]:
        """By the beginning of a document, by the mean of its chunks, and by its best chunk."""
        (beginnings, by_beginning), (means, by_mean) = self.beginnings, self.means
        return [
            lambda begin, end: (by_beginning[begin:end] @ beginnings.T).numpy(),
            lambda begin, end: (by_mean[begin:end] @ means.T).numpy(),
            lambda begin, end: best_chunks(by_mean[begin:end], self.chunks).numpy(),
        ]


def window_vectors(documents: Dataset, windows: Sequence[Tensor]) -> ChunkVectors:
    """Those of the :meth:`~torch_linformer.models.pieces.PieceVectors.windows` of documents and of their queries."""
    chunks = [F.normalize(row[:, :-1], dim=-1) for row in windows]
    means = torch.stack([F.normalize((row[:, :-1] * row[:, -1:]).sum(dim=0), dim=-1) for row in windows])
    first = torch.stack([row[0] for row in chunks])
    return ChunkVectors(asked_of(documents, first), asked_of(documents, means), chunks[: len(documents)])


def window_baselines(documents: Dataset, vectors: ChunkVectors) -> dict[str, dict[str, Any]]:
    """Scores of an encoder's first window, of the mean of its windows, and of the best; alone, and with TF-IDF."""
    judgments, texts, scores = judgments_of(documents), documents["text"][:], {}
    tfidf = tfidf_similarities(texts, queries_of(documents) or texts)
    for name, similarities in zip(("first_window", "window_mean", "best_window"), vectors.similarities, strict=True):
        scores[name] = retrieval_metrics(similarities, judgments)
        scores[f"{name}_tfidf"] = retrieval_metrics(joined(similarities, tfidf, judgments), judgments)
    return scores


def embedder_baselines(start: str, documents: Dataset, device: str, precision: str) -> dict[str, dict[str, Any]]:
    """Scores of the ways in which :func:`embedder_vectors` find documents; none where there are no such vectors."""
    vectors = embedder_vectors(start, documents, device, precision)
    if vectors is None:
        return {}
    rows = zip(("beginning_vector", "chunk_mean", "best_chunk"), vectors.similarities, strict=True)
    return {name: retrieval_metrics(similarities, judgments_of(documents)) for name, similarities in rows}


@torch.no_grad()
def embedder_vectors(start: str, documents: Dataset, device: str, precision: str) -> ChunkVectors | None:
    """Those of the embedder that ``start`` was adapted from, if its folder is still there, or of ``start`` itself.

    Beginnings have 512 tokens, chunks 256. None where ``start`` is no embedder, or makes several vectors of a text.
    """
    source = original_of(start)
    if sentence_pooling(source) is None or (vectors := document_vectors(source, load_any_config(source))).most > 1:
        return None
    model, vectors, tokenizer = load_backbone(source, device), vectors.to(device), load_tokenizer(source)
    prompt, pad = sentence_settings(source).prompt(), DataCollatorWithPadding(tokenizer)

    def read(texts: list[str], tokens: int, overflow: str) -> tuple[Tensor, np.ndarray]:
        """Vectors of the windows of texts, and the number of the text of each."""
        tokens = min(tokens, tokenizer.model_max_length)
        stride = 0 if overflow == "windows" else None
        windows = DocumentEncoder(tokenizer, tokens, overflow=overflow, stride=stride, prompt=prompt)(texts)
        order = np.argsort(windows["length"], kind="stable")[::-1]
        parts: list[Tensor] = []
        for begin in range(0, len(order), _AT_ONCE):
            rows = [{"input_ids": windows["input_ids"][number]} for number in order[begin : begin + _AT_ONCE]]
            batch = {name: ids.to(device) for name, ids in pad(rows).items()}
            with autocast(device, precision):
                parts.append(vectors(model, batch["input_ids"], batch["attention_mask"]).cpu())
        return torch.cat(parts)[torch.from_numpy(np.argsort(order))], np.asarray(windows["document"])

    texts, queries = documents["text"][:], queries_of(documents)
    together, owners = read(texts, CHUNK, "windows")
    chunks = torch.split(together, np.bincount(owners).tolist())
    sums = torch.stack([part.sum(dim=0) for part in chunks])
    asking = [read(queries, BEGINNING, "cut")[0]] if queries else []
    beginnings, means = (
        asked_of(documents, torch.cat([part, *asking]))
        for part in (read(texts, BEGINNING, "cut")[0], F.normalize(sums, dim=-1))
    )
    return ChunkVectors(beginnings, means, chunks)


def original_of(start: str) -> str:
    """The folder that a model was adapted from, if it is there and opens without code of its own; or the model's."""
    told = Path(start) / "adaptation.json"
    if not told.exists():
        return start
    try:
        source = encoder_folder(json.loads(told.read_text(encoding="utf-8"))["source"])
        if not Path(source).is_dir():
            return start
        load_any_config(source)
    except InputError:
        return start
    return source

"""What an embedder of ``--from`` is worth before it is trained: its first window, and its windows one by one."""

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import DataCollatorWithPadding

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.opening.devices import autocast
from torch_linformer.opening.load import load_any_config, load_backbone, load_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.opening.sentence_transformers import document_vectors, sentence_pooling, sentence_settings
from torch_linformer.tasks.retrieval import judgments_of, queries_of
from torch_linformer.tasks.retrieval_metrics import Similarities, retrieval_metrics

BEGINNING, CHUNK = 512, 256  # tokens
_AT_ONCE = 32  # windows


@dataclass(frozen=True)
class EmbedderVectors:
    """What an embedder makes of documents that are longer than it reads, and of what asks for them.

    Chunks are those of a search index: 256 tokens, one after the other.

    Attributes:
        beginnings: vectors of the first 512 tokens, ``(D, C)``.
        chunks: vectors of all chunks, those of a document side by side.
        first: the number of the first chunk of each document.
        queries: vectors of the queries; None where documents ask themselves.
    """

    beginnings: np.ndarray
    chunks: np.ndarray
    first: np.ndarray
    queries: np.ndarray | None

    @cached_property
    def means(self) -> np.ndarray:
        """The mean of each document's chunks, ``(D, C)``, of length 1."""
        sums = np.add.reduceat(self.chunks, self.first)
        return cast(np.ndarray, sums / np.linalg.norm(sums, axis=1, keepdims=True))

    def best_chunk(self, asked: np.ndarray) -> np.ndarray:
        """How near the best chunk of each document is to vectors ``(Q, C)``: ``(Q, D)``."""
        return np.maximum.reduceat(asked @ self.chunks.T, self.first, axis=1)

    @property
    def similarities(self) -> dict[str, Similarities]:
        """By the beginning of a document, by the mean of its chunks, and by its best chunk."""
        by_beginning, by_mean = (
            vectors if self.queries is None else self.queries for vectors in (self.beginnings, self.means)
        )
        return {
            "beginning_vector": lambda begin, end: by_beginning[begin:end] @ self.beginnings.T,
            "chunk_mean": lambda begin, end: by_mean[begin:end] @ self.means.T,
            "best_chunk": lambda begin, end: self.best_chunk(by_mean[begin:end]),
        }


def embedder_baselines(start: str, documents: Dataset, device: str, precision: str) -> dict[str, dict[str, Any]]:
    """Scores of the ways in which :func:`embedder_vectors` find documents; none where there are no such vectors."""
    vectors = embedder_vectors(start, documents, device, precision)
    if vectors is None:
        return {}
    judgments = judgments_of(documents)
    return {name: retrieval_metrics(similarity, judgments) for name, similarity in vectors.similarities.items()}


def embedder_vectors(start: str, documents: Dataset, device: str, precision: str) -> EmbedderVectors | None:
    """Those of the embedder that ``start`` was adapted from, if its folder is still there, or of ``start`` itself.

    None where ``start`` is no embedder, or makes several vectors of a text.
    """
    source = original_of(start)
    if sentence_pooling(source) is None or (vectors := document_vectors(source, load_any_config(source))).most > 1:
        return None
    reader = PieceReader(source, vectors, device, precision)
    texts, queries = documents["text"][:], queries_of(documents)
    chunks, owners = reader.vectors(texts, CHUNK, "windows")
    return EmbedderVectors(
        reader.vectors(texts, BEGINNING, "cut")[0],
        chunks,
        np.flatnonzero(np.diff(owners, prepend=-1)),
        reader.vectors(queries, BEGINNING, "cut")[0] if queries else None,
    )


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


class PieceReader:
    """An encoder as transformers opens it, and what makes vectors of its hidden states."""

    def __init__(self, path: str, of_hidden_states: DocumentVectors, device: str, precision: str) -> None:
        self.model = load_backbone(path, device)
        self.of_hidden_states = of_hidden_states.to(device)
        self.tokenizer = load_tokenizer(path)
        self.prompt = sentence_settings(path).prompt()
        self.pad = DataCollatorWithPadding(self.tokenizer)
        self.device, self.precision = device, precision

    @torch.inference_mode()
    def vectors(self, texts: list[str], tokens: int, overflow: str) -> tuple[np.ndarray, np.ndarray]:
        """Vectors of length 1 of the windows of texts, and the number of the text of each."""
        tokens = min(tokens, self.tokenizer.model_max_length)
        windows = DocumentEncoder(self.tokenizer, tokens, overflow=overflow, stride=0, prompt=self.prompt)(texts)
        order = np.argsort(windows["length"], kind="stable")[::-1]
        parts: list[Tensor] = []
        for begin in range(0, len(order), _AT_ONCE):
            rows = [{"input_ids": windows["input_ids"][number]} for number in order[begin : begin + _AT_ONCE]]
            batch = {name: ids.to(self.device) for name, ids in self.pad(rows).items()}
            with autocast(self.device, self.precision):
                hidden = self.model(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
            parts.append(self.of_hidden_states(hidden, batch["input_ids"], batch["attention_mask"]).cpu())
        return torch.cat(parts).numpy()[np.argsort(order)], np.asarray(windows["document"])

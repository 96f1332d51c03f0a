"""What a pretrained embedder does with long documents by itself: the beginning, the mean of chunks, the best chunk."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import DataCollatorWithPadding

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.models.document_vectors import DocumentVectors
from torch_linformer.opening.devices import autocast
from torch_linformer.opening.model_folder import load_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.opening.pretrained import load_any_config, load_backbone
from torch_linformer.opening.sentence_transformers import document_vectors, sentence_pooling, sentence_settings
from torch_linformer.tasks.retrieval import judgments_of, queries_of
from torch_linformer.tasks.retrieval_metrics import retrieval_metrics

BEGINNING, CHUNK = 512, 256  # tokens
_AT_ONCE = 32  # windows


def embedder_baselines(start: str, documents: Dataset, device: str, precision: str) -> dict[str, dict[str, Any]]:
    """Scores of the embedder that ``start`` was adapted from, if its folder is still there, or of ``start`` itself.

    None where ``start`` is no embedder. Chunks are those of a search index: 256 tokens, one after the other; the vector
    of a document is that of its beginning or the mean of its chunks, or each chunk counts, the best for each query.
    """
    source = original_of(start)
    if sentence_pooling(source) is None:
        return {}
    reader = PieceReader(source, document_vectors(source, load_any_config(source)), device, precision)
    texts, queries = documents["text"][:], queries_of(documents)
    beginnings = reader.vectors(texts, BEGINNING, "cut")[0]
    chunks, owners = reader.vectors(texts, CHUNK, "windows")
    means = np.stack([chunk.mean(axis=0) for chunk in np.split(chunks, np.flatnonzero(np.diff(owners)) + 1)])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    first = np.flatnonzero(np.diff(owners, prepend=-1))
    asked = reader.vectors(queries, BEGINNING, "cut")[0] if queries else None
    by_beginning, by_mean = (beginnings, means) if asked is None else (asked, asked)
    judgments = judgments_of(documents)
    ways = {
        "beginning_vector": lambda begin, end: by_beginning[begin:end] @ beginnings.T,
        "chunk_mean": lambda begin, end: by_mean[begin:end] @ means.T,
        "best_chunk": lambda begin, end: np.maximum.reduceat(by_mean[begin:end] @ chunks.T, first, axis=1),
    }
    return {name: retrieval_metrics(similarities, judgments) for name, similarities in ways.items()}


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
        found: list[Tensor] = []
        for begin in range(0, len(order), _AT_ONCE):
            rows = [{"input_ids": windows["input_ids"][number]} for number in order[begin : begin + _AT_ONCE]]
            batch = {name: ids.to(self.device) for name, ids in self.pad(rows).items()}
            with autocast(self.device, self.precision):
                hidden = self.model(batch["input_ids"], attention_mask=batch["attention_mask"]).last_hidden_state
            found.append(self.of_hidden_states(hidden, batch["input_ids"], batch["attention_mask"]).cpu())
        return torch.cat(found).numpy()[np.argsort(order)], np.asarray(windows["document"])

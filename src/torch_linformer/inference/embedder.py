"""A trained model as a function of documents: a vector for each."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, cast

import numpy as np
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import DocumentEncoder, document_means
from torch_linformer.inference.window_reader import WindowReader, Windows, in_groups
from torch_linformer.models import LinformerForConditionalGeneration, LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.pooling import pool


class Embedded(NamedTuple):
    """A document's place in its file, its vector, its tokens, and whether some were left out."""

    document: str
    embedding: np.ndarray
    tokens: int
    cut: bool


class Embedder:
    """A trained model as a function of documents.

    The vector is what the encoder's last hidden states pool to, as the folder of sentence-transformers or the
    configuration says, divided by its length if it is to be normalized. That of a document of several windows is their
    mean, each weighted by its tokens, before that.

    Args:
        model: with or without a head; of an encoder-decoder its encoder.
        tokenizer: of the model.
        pooling: of the last hidden states; that of the configuration if None.
        overflow: how long documents are read, see `DocumentEncoder`, as for
        stride.
        normalize: whether vectors have length 1.
        device: where the model computes, and
        precision: in what.
        batch_size: windows computed at once.
    """

    def __init__(
        self,
        model: LinformerPreTrainedModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        pooling: str | None = None,
        overflow: str = "cut",
        stride: int | None = None,
        normalize: bool = True,
        device: str,
        precision: str,
        batch_size: int,
    ) -> None:
        reader = model.encoder if isinstance(model, LinformerForConditionalGeneration) else model.base_model
        self.encoder = cast(LinformerModel, reader.to(device).eval())
        self.pooling = pooling or self.encoder.config.pooling
        self.normalize = normalize
        longest = self.encoder.config.max_position_embeddings
        self.encode = DocumentEncoder(tokenizer, longest, overflow=overflow, stride=stride)
        pad = DataCollatorWithPadding(tokenizer)
        self.windows = WindowReader(
            lambda windows: dict(pad([{"input_ids": window["input_ids"]} for window in windows])),
            self._pooled,
            device=device,
            precision=precision,
            batch_size=batch_size,
        )

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return int(self.encoder.config.hidden_size) * (2 if self.pooling == "mean_max" else 1)

    def embed(self, documents: Iterable[Document]) -> Iterator[Embedded]:
        """A vector for each document, in their order."""
        for group in in_groups(documents, self.windows.batch_size):
            yield from self.answer(group, self.prepare(group))

    def prepare(self, documents: Sequence[Document]) -> Windows:
        """The windows of some documents."""
        return self.encode([document.text for document in documents])

    def answer(self, documents: Sequence[Document], windows: Windows) -> Iterator[Embedded]:
        """A vector for each document, from the windows that :meth:`prepare` made of them."""
        vectors = document_means(self.windows.read(windows), windows)
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        tokens = dict(zip(windows["document"], windows["num_tokens"], strict=True))
        for number, document in enumerate(documents):
            cut = self.encode.overflow == "cut" and tokens[number] > self.encode.max_length
            yield Embedded(document.where, vectors[number].astype(np.float32), tokens[number], cut)

    def _pooled(self, batch: dict[str, Tensor]) -> Tensor:
        hidden = self.encoder(**batch, **({"use_cache": False} if self.encoder.config.causal else {})).last_hidden_state
        return pool(hidden.float(), batch["attention_mask"], self.pooling)

"""A trained model as a function of documents: a vector for each."""

from collections.abc import Iterable, Iterator, Sequence
from functools import cache, partial
from typing import Any, NamedTuple, cast

import numpy as np
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import DocumentEncoder, document_means
from torch_linformer.errors import InputError
from torch_linformer.inference.window_reader import WindowReader, Windows, in_groups
from torch_linformer.models import LinformerForConditionalGeneration
from torch_linformer.models.pooling import DocumentVectors, pool
from torch_linformer.opening.model_folder import AnyModel, read_length, reader_config, reading_options
from torch_linformer.opening.sentence_transformers import (
    AS_THEY_ARE,
    SentenceSettings,
    document_vectors,
    sentence_settings,
)
from torch_linformer.tasks.task import pad_windows


class Embedded(NamedTuple):
    """A document's place in its file, its vector, its tokens, and whether some were left out."""

    document: str
    embedding: np.ndarray
    tokens: int
    cut: bool


class DocumentEmbedder:
    """A trained model as a function of documents.

    The vector is what the encoder's last hidden states pool to, as the folder of sentence-transformers or the
    configuration says, divided by its length if it is to be normalized. Where the folder says so, its words are a part
    of it, those of the whole document where it is cut. That of a document of several windows is their mean, each
    weighted by its tokens, before it is normalized.

    Args:
        model: with or without a head; of an encoder-decoder its encoder.
        tokenizer: of the model.
        vectors: what makes vectors of hidden states and words; by the configuration's pooling if None.
        settings: how texts are read, as a folder of sentence-transformers says.
        prompt_name: one of its prompts, for documents whose prompt is not named; its default one if None.
        overflow: how long documents are read, see `DocumentEncoder`, as for
        stride.
        normalize: whether vectors have length 1.
        device: where the model computes, and
        precision: in what.
        batch_size: windows computed at once.
    """

    def __init__(
        self,
        model: AnyModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        vectors: DocumentVectors | None = None,
        settings: SentenceSettings = AS_THEY_ARE,
        prompt_name: str | None = None,
        overflow: str = "cut",
        stride: int | None = None,
        normalize: bool = True,
        device: str,
        precision: str,
        batch_size: int,
    ) -> None:
        reader: Any = model.encoder if isinstance(model, LinformerForConditionalGeneration) else model.base_model
        self.encoder: Any = reader.to(device).eval()
        self.vectors = (vectors or DocumentVectors(self.encoder.config.pooling)).to(device)
        self.normalize = normalize
        if not normalize and self.vectors.lexical is not None:
            raise InputError(
                "--no-normalize: a part of these vectors is made of words, and its share is that of vectors of length 1"
            )
        longest = settings.longest(read_length(self.encoder.config))
        words = self.vectors.lexical is not None
        self.settings = settings
        self._encoder = cache(
            partial(DocumentEncoder, tokenizer, longest, overflow=overflow, stride=stride, whole=words)
        )
        self.encode = self._encoder(prompt=settings.prompt(prompt_name))
        self.windows = WindowReader(
            partial(pad_windows, DataCollatorWithPadding(tokenizer), whole=words),
            self._pooled,
            device=device,
            precision=precision,
            batch_size=batch_size,
        )

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self.vectors.width(int(self.encoder.config.hidden_size))

    def embed(self, documents: Iterable[Document]) -> Iterator[Embedded]:
        """A vector for each document, in their order."""
        for group in in_groups(documents, self.windows.batch_size):
            yield from self.answer(group, self.prepare(group))

    def prepare(self, documents: Sequence[Document], prompt_name: str | None = None) -> Windows:
        """The windows of some documents, perhaps with another prompt."""
        encode = self.encode if prompt_name is None else self._encoder(prompt=self.settings.prompt(prompt_name))
        return encode([document.text for document in documents])

    def answer(
        self, documents: Sequence[Document], windows: Windows, values: Sequence[Any] | None = None
    ) -> Iterator[Embedded]:
        """A vector for each document, from the windows that :meth:`prepare` made of them.

        ``values`` are what ``windows.read`` gives of these windows, which are read here if None.
        """
        vectors = document_means(self.windows.read(windows) if values is None else values, windows)
        if self.normalize:
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        tokens = dict(zip(windows["document"], windows["num_tokens"], strict=True))
        for number, document in enumerate(documents):
            cut = self.encode.overflow == "cut" and tokens[number] > self.encode.max_length
            yield Embedded(document.where, vectors[number].astype(np.float32), tokens[number], cut)

    def _pooled(self, batch: dict[str, Tensor]) -> Tensor:
        whole = batch.pop("whole_ids", None)
        hidden = self.encoder(**batch, **reading_options(self.encoder.config)).last_hidden_state
        if self.vectors.lexical is not None:
            return cast(Tensor, self.vectors(hidden, **batch, whole_ids=whole))
        return pool(hidden.float(), batch["attention_mask"], self.vectors.pooling)


def embedder_of(folder: str, model: AnyModel, tokenizer: PreTrainedTokenizerFast, **options: Any) -> DocumentEmbedder:
    """What makes the vectors of a model folder; ``options`` are those of :class:`DocumentEmbedder`."""
    vectors = document_vectors(folder, reader_config(model.config))
    return DocumentEmbedder(model, tokenizer, vectors=vectors, settings=sentence_settings(folder), **options)

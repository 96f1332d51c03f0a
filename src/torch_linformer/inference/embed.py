"""A vector for each document, streamed into a file: an input of any size will do, and an interruption costs little."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow
from numpy.lib import format as npy
from pyarrow import parquet
from torch import Tensor
from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

from torch_linformer.data.reading.columns import NamedColumns
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.reading.streamed import Document, check_there, documents_of
from torch_linformer.data.windows import DocumentEncoder, document_means
from torch_linformer.errors import InputError
from torch_linformer.inference.bad_records import reporting_bad_records
from torch_linformer.inference.output_parts import parts_of
from torch_linformer.inference.window_reader import WindowReader, Windows, what_was_read
from torch_linformer.models import LinformerForConditionalGeneration, LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.pooling import pool
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.model_folder import load_model, load_tokenizer
from torch_linformer.opening.new_folder import check_writable
from torch_linformer.opening.sentence_pooling import sentence_pooling
from torch_linformer.reporting.files import atomic_path

SUFFIXES = (".parquet", ".npy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedSettings:
    """What makes the vectors: two runs with the same go on with each other."""

    model: str
    files: tuple[str, ...]
    text_column: str | None = None
    overflow: str = "cut"
    stride: int | None = None
    normalize: bool = True
    precision: str = "auto"


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
        for group in self.windows.groups(documents):
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


def embed_files(
    settings: EmbedSettings,
    output: Path,
    *,
    resume: bool = False,
    max_errors: int = 0,
    device: str = "auto",
    batch_size: int = 16,
    on_document: Callable[[int], object] = lambda number: None,
) -> str:
    """Write the vectors of all documents of some files ("-" is standard input), in their order.

    A Parquet file has the columns ``document`` (its place), ``embedding``, ``tokens`` and ``cut``; a file of NumPy has
    the vectors as one array ``(documents, C)`` in float32. Vectors lie in a hidden folder beside the output until all
    are there, so that an interrupted run can go on.

    Args:
        settings: the model and the files.
        output: a name that ends with .parquet or .npy.
        resume: go on with an interrupted run; documents whose vectors are there are read and not computed again.
        max_errors: so many records that cannot be read are left out, and written to ``OUTPUT.errors.jsonl``.
        device: ``auto`` takes a GPU if there is one.
        batch_size: windows computed at once.
        on_document: called with how many documents have their vectors.

    Returns:
        A sentence: how many documents there were, and how many of them were cut, skipped or damaged.

    Raises:
        InputError: another suffix, a missing file, no text, or an interrupted run that is not to be gone on with, or
            that is another.
    """
    if output.suffix not in SUFFIXES:
        raise InputError(f"--output {output}: the name must end with {' or '.join(SUFFIXES)}")
    check_there(settings.files)
    check_writable(output)
    embedder = _embedder(settings, resolve_device(device), batch_size)
    with parts_of(output, settings, resume) as parts, reporting_bad_records(output, max_errors) as report:
        given = documents_of(settings.files, TEXT, NamedColumns(settings.text_column), report)
        found = embedder.embed(islice(given, parts.documents, None))
        for rows in parts.grouped(found, on_document):
            parts.add(len(rows), ".parquet", partial(parquet.write_table, _table(rows)))
        if not parts.files:
            raise InputError(f"{', '.join(settings.files)}: no document with any text")
        cut = _join(parts.files, output)
    return what_was_read(parts.documents, "embedded", cut, embedder.encode.max_length, report)


def _embedder(settings: EmbedSettings, device: str, batch_size: int) -> Embedder:
    return Embedder(
        load_model(settings.model),
        load_tokenizer(settings.model),
        pooling=sentence_pooling(settings.model),
        overflow=settings.overflow,
        stride=settings.stride,
        normalize=settings.normalize,
        device=device,
        precision=resolve_precision(settings.precision, device),
        batch_size=batch_size,
    )


def _table(rows: Sequence[Embedded]) -> pyarrow.Table:
    vectors = np.stack([row.embedding for row in rows])
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
    columns: dict[str, Any] = {
        "document": [row.document.encode("utf-8", "backslashreplace").decode() for row in rows],
        "embedding": lists,
        "tokens": [row.tokens for row in rows],
        "cut": [row.cut for row in rows],
    }
    return pyarrow.table(columns)


def _join(shards: Sequence[Path], output: Path) -> int:
    """Make the parts one file; returns how many documents were cut."""
    schema, cut = parquet.read_schema(shards[0]), 0
    rows = sum(parquet.read_metadata(shard).num_rows for shard in shards)
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        writer = parquet.ParquetWriter(file, schema) if output.suffix == ".parquet" else None
        if writer is None:
            shape = (rows, schema.field("embedding").type.list_size)
            npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for shard in shards:
            table = parquet.read_table(shard)
            cut += sum(table["cut"].to_pylist())
            if writer is not None:
                writer.write_table(table)
            else:
                file.write(table["embedding"].combine_chunks().flatten().to_numpy().astype("<f4").tobytes())
        if writer is not None:
            writer.close()
    return cut

"""Vectors of documents by which queries find them, or by which documents with the same label find each other."""

from collections.abc import Callable
from itertools import chain
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.collection import load_collection
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import Documents
from torch_linformer.data.reading.records import SEARCHED
from torch_linformer.data.windows import DocumentEncoder, tokenize_documents
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerModel
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pieces import PieceVectors, largest_products
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.tasks.lexical_vector_fit import counts_of, word_rows
from torch_linformer.tasks.retrieval_metrics import (
    Judgments,
    Similarities,
    bm25_similarities,
    joined,
    membership,
    retrieval_metrics,
    tfidf_similarities,
)
from torch_linformer.tasks.task import Batch, ColumnLists, Examples, Task

TOGETHER = 100  # documents whose words are counted at once
POOLINGS = ("mean", "cls", "max")  # those that a folder of sentence-transformers has


USAGE_OF_PIECES = """\
from torch_linformer import Embedder

# A vector of each text, or where a text has several an array (vectors, width) of each: then a query finds the document
# with the largest product of any two.
vectors = Embedder("PATH OF THIS FOLDER")(["a query", "a document"])"""


class Retrieval(Task):
    """A vector a document and a query, of length 1; the documents nearest to a query should be its own.

    The windows are those of the documents, then those of their queries, each query once, cut to what a model reads;
    words, where vectors have them, are those of all of it. Documents with a label have no queries: each of them is one,
    and should find the others with its label.

    Args:
        tokenizer: pads batches.
        pooling: of the last hidden states.

    Attributes:
        vectors: makes vectors of hidden states and words.
    """

    record = SEARCHED
    model_class = LinformerModel
    best_metric, headline = "ndcg_at_10", HEADLINES["embed"]
    pipeline_tag = "sentence-similarity"
    instead = "linformer embed writes the vectors of documents"
    counted = "queries"
    usage = """\
from torch_linformer.opening.sentence_transformers import document_vectors

texts = ["a query", "a document"]
inputs = tokenizer(texts, padding=True, truncation=True, return_tensors="pt")
of_rows = document_vectors("PATH OF THIS FOLDER", model.config)
vectors = of_rows(model, inputs["input_ids"], inputs["attention_mask"])
# The same: sentence_transformers.SentenceTransformer("PATH OF THIS FOLDER", trust_remote_code=True).encode(texts)
# Where words are a part of vectors, both count those of what is read, linformer embed those of all of a text."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, pooling: str = "mean", pieces: PieceVectors | None = None
    ) -> None:
        super().__init__(tokenizer)
        self.vectors = DocumentVectors(pooling, pieces=pieces)
        self._counts: dict[tuple[str, int], tuple[Any, Any]] = {}
        if pieces is not None and (pieces.most > 1 or pieces.window is not None):
            self.usage = USAGE_OF_PIECES

    @property
    def config(self) -> dict[str, Any]:
        # Drawing random numbers takes a third of a step on a CPU (docs/log.md).
        return {"pooling": self.vectors.pooling, "hidden_dropout_prob": 0.0}

    @classmethod
    def load(
        cls, source: str, documents: str | None, options: DataOptions, *, part: str = "train", max_errors: int = 0
    ) -> Documents:
        return load_collection(source, documents, options=options, part=part, max_errors=max_errors)

    def examples(self, documents: Dataset, encoder: DocumentEncoder, most: int | None = None) -> Examples:
        if encoder.overflow == "windows":
            raise InputError("--overflow windows: an embedder makes one vector of what it reads of a document")
        if not judgments_of(documents).wanted.any():
            raise InputError(
                f"of {len(documents)} documents no two have the same label, so none can be found: give more documents "
                "of each label"
            )
        windows = tokenize_documents(documents, encoder)
        tokens = np.asarray(windows["num_tokens"][:])
        if queries := queries_of(documents):
            windows = concatenate_datasets([windows, tokenize_documents(Dataset.from_dict({"text": queries}), encoder)])
        return Examples(documents, windows, tokens)

    def training_rows(self, examples: Examples) -> "SearchedDocuments":
        return SearchedDocuments(cast(Dataset, examples.windows), examples.documents)

    def collator(self, training: bool) -> Callable[[list[dict[str, Any]]], Batch]:
        return self.collate_queries if training else self.collate

    def collate_queries(self, rows: list[dict[str, Any]]) -> Batch:
        """Documents and their queries, each padded by themselves.

        ``query_of`` is the row of a query's document; queries with the same ``query_group`` find the same documents.
        """
        queries = [{"input_ids": ids} for row in rows for ids in row["queries"]]
        asked = self.pad(queries) if queries else {name: torch.zeros(0, 1) for name in ("input_ids", "attention_mask")}
        return {
            **self.collate(rows),
            "query_ids": asked["input_ids"].long(),
            "query_mask": asked["attention_mask"].long(),
            "query_of": torch.tensor([number for number, row in enumerate(rows) for _ in row["queries"]]).long(),
            "query_group": torch.tensor([group for row in rows for group in row["groups"]]).long(),
        }

    def reduce(self, logits: Tensor, labels: Any) -> Tensor:
        return logits

    def respond(self, model: nn.Module, batch: Batch) -> Tensor:
        return self.vectors.without_words(model, batch["input_ids"], batch["attention_mask"])

    def answers(self, reduced: Any, windows: ColumnLists, documents: ColumnLists) -> np.ndarray:
        return np.asarray(reduced)

    def scores(self, answers: Any, documents: Dataset) -> dict[str, Any]:
        vectors = torch.from_numpy(np.asarray(answers))
        return retrieval_metrics(self.similarities(vectors, documents), judgments_of(documents))

    def similarities(self, vectors: Tensor, documents: Dataset) -> Similarities:
        """How near documents are to what asks for them, by vectors of all rows and by the words of whole texts."""
        documents_of, asking = asked_of(documents, vectors)
        lexical = self.vectors.lexical
        if lexical is None:
            return lambda begin, end: largest_products(asking[begin:end], documents_of)
        share, counts = lexical.exact_share, self.counts(lexical.cpu(), documents)
        words_of_documents, words_of_queries = (word_rows(lexical, part) for part in counts)
        return lambda begin, end: (
            (1 - share) * largest_products(asking[begin:end], documents_of).numpy()
            + share * (words_of_queries[begin:end] @ words_of_documents.T).toarray()
        )

    def hits(self, vectors: Tensor, documents: Dataset) -> list[tuple[str, list[str]]]:
        """Three of the queries of documents, evenly drawn, and their first three hits, as lines."""
        asked, found = queries_of(documents), []
        similarities = self.similarities(vectors, documents)
        for query in sorted({len(asked) * part // 6 for part in (1, 3, 5)}) if asked else ():
            scores, lines = np.asarray(similarities(query, query + 1))[0], []
            for hit in np.argsort(-scores, kind="stable")[:3].tolist():
                document = documents[hit]
                name = document.get("name", " ".join(document["text"].split())[:60])
                lines.append(f"{scores[hit]:.3f}  {name}{'  (its own)' * (asked[query] in document['queries'])}")
            found.append((asked[query], lines))
        return found

    def counts(self, lexical: LexicalVector, documents: Dataset) -> tuple[Any, Any]:
        """The :func:`counts_of` documents and of what asks for them, all of each text, counted once."""
        key = documents._fingerprint, len(lexical.counts_as)
        if key in self._counts:
            return self._counts[key]
        read = DocumentEncoder(self.tokenizer, 64).ids  # of windows there are none here
        groups = (documents[begin : begin + TOGETHER]["text"] for begin in range(0, len(documents), TOGETHER))
        known = counts_of(lexical, chain.from_iterable(map(read, groups)))
        queries = queries_of(documents)
        self._counts[key] = known, counts_of(lexical, read(queries)) if queries else known
        return self._counts[key]

    def baselines(self, train: Dataset, test: Dataset) -> dict[str, dict[str, Any]]:
        texts, judgments = test["text"][:], judgments_of(test)
        queries = queries_of(test) or texts
        tfidf, bm25 = tfidf_similarities(texts, queries), bm25_similarities(texts, queries)
        both = joined(tfidf, bm25, judgments)
        rows = {"tfidf_search": tfidf, "bm25": bm25, "tfidf_bm25": both}
        return {name: retrieval_metrics(similarities, judgments) for name, similarities in rows.items()}


class SearchedDocuments(torch.utils.data.Dataset[dict[str, Any]]):
    """A row a document: its window, the ids of its queries, and the numbers of their groups.

    Queries of a group find the same documents. Documents with a label go round in a circle of their own, each the query
    of the next; one by itself has none.

    Args:
        windows: those of the documents, then those of their queries.
        documents: of which each has queries or a label.
    """

    def __init__(self, windows: Dataset, documents: Dataset) -> None:
        self.windows, groups = windows, _groups(documents).tolist()
        if "label" in documents.column_names:
            order = np.argsort(groups, kind="stable")
            following = np.empty_like(order)
            for circle in np.split(order, np.flatnonzero(np.diff(np.sort(groups))) + 1):
                following[circle] = np.roll(circle, -1)
            self.queries = [[other] * (other != number) for number, other in enumerate(following.tolist())]
            self.groups = [[group] * len(asked) for group, asked in zip(groups, self.queries, strict=True)]
        else:
            numbers = iter(groups)
            self.groups = [[next(numbers) for _ in queries] for queries in documents["queries"]]
            self.queries = [[len(documents) + group for group in own] for own in self.groups]

    def __len__(self) -> int:
        return len(self.queries)

    def __getitem__(self, row: int | str) -> Any:
        """A row; or, as of a ``Dataset``, a column of the documents' windows."""
        if isinstance(row, str):
            return self.windows[row][: len(self)]
        queries = [self.windows[number]["input_ids"] for number in self.queries[int(row)]]
        return {**self.windows[int(row)], "queries": queries, "groups": self.groups[int(row)]}


def judgments_of(documents: Dataset) -> Judgments:
    """Which documents each query of a collection should find, the queries as of :func:`queries_of`."""
    groups = _groups(documents)
    if "label" in documents.column_names:
        return Judgments.of_groups(groups, groups, np.arange(len(groups)))
    queries = np.arange(groups.max(initial=-1) + 1)
    owners = np.repeat(np.arange(len(documents)), [len(asked) for asked in documents["queries"]])
    return Judgments(membership(owners, groups, (len(documents), len(queries))), queries, np.full(len(queries), -1))


def queries_of(documents: Dataset) -> list[str]:
    """The queries of all documents, each once, in the order of the documents; none where documents have labels."""
    return list(dict.fromkeys(chain.from_iterable(documents["queries"]))) if "queries" in documents.column_names else []


def asked_of(documents: Dataset, rows: Tensor) -> tuple[Tensor, Tensor]:
    """Of rows for the documents and then for their queries: those of the documents, and those that ask.

    Documents with a label ask themselves.
    """
    document_rows = rows[: len(documents)]
    return document_rows, document_rows if "label" in documents.column_names else rows[len(documents) :]


def _groups(documents: Dataset) -> np.ndarray:
    """The number of each document's label; or, of each query of each document, its number in :func:`queries_of`."""
    if "label" in documents.column_names:
        return np.unique(documents["label"][:], return_inverse=True)[1]
    numbers = {query: number for number, query in enumerate(queries_of(documents))}
    return np.array([numbers[query] for query in chain.from_iterable(documents["queries"])], dtype=np.int64)

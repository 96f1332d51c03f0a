"""Search in documents: vectors and words of each, kept in a folder beside them, and the passages that match a query.

A document's score is the sum of two similarities to the query, each divided by its spread over the collection: the
largest product of their vectors, and the cosine of their words by TF-IDF. So neither needs a weight, whatever the model
and the lengths of the texts (docs/log.md, 2026-11-29).
"""

import hashlib
import json
import math
import os
import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from glob import has_magic
from itertools import chain, compress, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from pyarrow import feather
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.formats import VECTORS
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document, documents_of, given_files, is_stream
from torch_linformer.data.words import search_words
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import DocumentEmbedder
from torch_linformer.inference.predictor import check_texts
from torch_linformer.opening.folder import check_writable, held, trained_columns
from torch_linformer.opening.load import load_reader, load_tokenizer, model_digest
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.reporting.files import damage_of, file_state, flush, write_json
from torch_linformer.reporting.tables import format_bytes

SUFFIX = ".search"  # of its name, beside the documents
SAVED_EVERY = 600.0  # seconds of reading
PASSAGE, LINE = 300, 120  # characters at most
_FORMAT = 1
_OURS = "documents-*.arrow"
_LISTS = ("vectors", "spans", "words", "counts")  # of a document; what a vector stands for spans characters
_WORDS = 2**22  # columns that words are hashed to: documents are added without a vocabulary
_PRODUCTS = 50_000_000  # numbers that are held at once
_SAMPLE = 64  # documents of which a line asks, to see how similarities of vectors and words spread
_USUAL, _LINES_OF_IT = (0.08, 0.007), 10  # of Python's own library, which counts as so many lines: there may be few
_FEW = 4  # lines with a word, or one in so many
_ALL_WORDS = 3.0  # spreads that lines with all words of a query are ahead of lines without any
_LINES = re.compile(rf"(?:^[^\S\n]{{1,80}})?\S(?:[^\n]{{0,{LINE - 1}}}(?!\S)|[^\n]{{0,{LINE - 1}}})", re.MULTILINE)
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Hit:
    """A document that a query has found.

    Attributes:
        score: of vectors and words together: how many spreads of the collection it is above the mean of all documents.
        id: what the document is called: the cell of its row in the column of names, or its file and row.
        passage: the lines of its text that match best.
        document: its number, from 0.
        start: where the passage begins in the text, in characters.
        similarity: the largest product of a vector of the document and one of the query.
        words: the cosine of their words by TF-IDF; 0 where words are a part of the vectors.
    """

    score: float
    id: str
    passage: str
    document: int
    start: int
    similarity: float
    words: float


class Searcher:
    r"""Documents in which queries find passages, by their vectors and by their words.

    .. math::
        s(q, d) = z\Big(\max_{a, b} \; q_a \cdot d_b\Big) + z\big(\cos(w_q, w_d)\big),
        \qquad z(x) = \frac{x - \mathrm{mean}_d(x)}{\sigma}

    :math:`q_a` and :math:`d_b` are vectors of the query and of the document, w their words and pairs of neighboring
    words by TF-IDF (sublinear counts, fitted to the documents); names in program code count as their parts. Where the
    model's vectors have the words in them, s is the first term. Each σ is the mean over 64 lines of as many documents
    of the standard deviation over all other documents; ten lines with the spread of Python's library count, too.

    An encoder that is not linear reads documents in windows of 256 tokens and needs no adaptation. What was read stays
    in a folder, with the texts: opened again, it reads only documents that are new or changed.

    Args:
        model: any encoder, as for :class:`Embedder`; or a folder that a searcher has written.
        documents: a file, folder or pattern, as ``linformer embed`` reads them; or a list of texts, or texts by their
            ids. If None those of the folder.
        output: the folder to write; ``DOCUMENTS.search`` if None, and none for texts.
        vectors: maximum number per document, each of neighboring windows; one per window if None, which finds more.
        text_column: column with the text, of a table; it and ``id_column``, ``encoding``, ``delimiter``, ``quoting``,
            ``header`` and ``text_folder`` are as for ``linformer embed``.
        device: it, ``precision`` and ``batch_size`` are as for :class:`Embedder`.
        say: called with sentences on what is read, and how.
        on_document: called with how many documents are read, and of how many.

    Attributes:
        folder: where what was read is kept; None for nowhere.
        ids: of the documents, in their order.
        vectors: of all documents, ``(V, C)``, for an index of another package.
        owners: the number of the document of each vector, ``(V,)``.

    Raises:
        InputError: there are no documents with text, the model makes no vectors, an option is not for it, or the folder
            is damaged, unfinished, of another model, or cannot be written.

    Example:
        >>> from torch_linformer import Searcher
        >>> searcher = Searcher("minilm", "letters.csv")  # doctest: +SKIP
        >>> [(hit.id, hit.passage) for hit in searcher.search(["the parcel never came"], top_k=1)[0]]  # doctest: +SKIP
        [('letter 12', 'I am still waiting for the parcel that you sent in May.')]
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        documents: str | os.PathLike[str] | Sequence[str] | Mapping[str, str] | None = None,
        *,
        output: str | os.PathLike[str] | None = None,
        vectors: int | None = None,
        text_column: str | None = None,
        id_column: str | None = None,
        encoding: str | None = None,
        delimiter: str | None = None,
        quoting: str = "auto",
        header: bool | None = None,
        text_folder: str | os.PathLike[str] | None = None,
        device: str = "auto",
        precision: str = "auto",
        batch_size: int = 16,
        say: Callable[[str], object] = lambda sentence: None,
        on_document: Callable[[int, int], object] = lambda number, total: None,
    ) -> None:
        self._say, self._on_document = say, on_document
        name, stored = os.fspath(model), (Path(model) / VECTORS).is_file()
        if documents is None and not stored:
            raise InputError(
                f"{name}: search in what? Name documents (--documents), or a folder that a search has written"
            )
        if documents is None and (vectors is not None or output is not None):
            raise InputError("--vectors and --output are for reading documents: name them (--documents)")
        if vectors is not None and vectors < 1:
            raise InputError(f"--vectors must be 1 or more, got {vectors}")
        file = os.fspath(documents) if isinstance(documents, str | os.PathLike) else None
        reading = DataOptions(
            text_column=text_column,
            id_column=id_column,
            encoding=encoding,
            delimiter=delimiter,
            quoting=quoting,
            header=header,
            text_folder=None if text_folder is None else os.fspath(text_folder),
        )
        if file is None and reading != NO_OPTIONS:
            raise InputError("--text-column, --id-column, … are for files of documents: name them (--documents)")
        if file is not None and (Path(file) / VECTORS).is_file():
            raise InputError(f"{file}: holds vectors and no documents: linformer search {file} searches in them")
        if stored:
            self.folder: Path | None = Path(name)
            if output is not None and Path(output).resolve() != Path(name).resolve():
                raise InputError(f"--output {os.fspath(output)}: {name} keeps what it has read itself; leave it out")
        elif output is not None or file is None:
            self.folder = None if output is None else Path(output)
        elif is_stream(file) or (has_magic(file) and not Path(file).exists()):
            raise InputError(f"{file}: where should its vectors lie? Name a folder with --output")
        else:
            self.folder = Path(os.path.abspath(file) + SUFFIX)
        manifest = None if self.folder is None else _manifest(self.folder)
        if stored:
            assert manifest is not None
            name, vectors = manifest["model"], manifest["options"]["vectors"] if vectors is None else vectors
        source = encoder_folder(name)
        options: dict[str, Any] = {
            "spans": True,
            "device": device,
            "precision": precision,
            "batch_size": batch_size,
        }
        self._embedder = DocumentEmbedder(source, load_reader(source), load_tokenizer(source), most=vectors, **options)
        if vectors is not None and (self._embedder.vectors.most > 1 or self._embedder.reads_words):
            raise InputError("--vectors: this model makes the vectors of a document itself; leave it out")
        self._vectorizer = HashingVectorizer(
            analyzer=_words_and_pairs, n_features=_WORDS, alternate_sign=False, norm=None, dtype=np.float32
        )
        told = {
            "format": _FORMAT,
            "model": str(Path(name).absolute()) if Path(name).exists() else name,
            "sha256": model_digest(source),
            "options": {"vectors": vectors, "precision": self._embedder.precision},
            "source": "the texts" if file is None else file,
        }
        if documents is None:
            assert manifest is not None
            goes_on = f"--documents {manifest['source']}"
            if any(manifest[name] != told[name] for name in ("format", "sha256")):
                raise InputError(f"{self.folder}: is not of {told['model']} as it is now; {goes_on} reads all anew")
            if manifest["spreads"] is None:
                number = _count(manifest["documents"])
                raise InputError(f"{self.folder}: its reading was interrupted after {number}; {goes_on} goes on")
            self._use(_load(Path(model), manifest), manifest["spreads"])
        else:
            say(f"{name} {self._embedder.reading}")
            listed = self._documents(documents, replace(reading, trained=trained_columns(source)))
            with nullcontext() if self.folder is None else held(self.folder):
                self._read(listed, told)

    def __len__(self) -> int:
        return len(self.ids)

    def text(self, document: int) -> str:
        """The text of a document by its number."""
        return str(self._texts[document].as_py())

    def search(self, queries: Sequence[str], top_k: int = 10) -> list[list[Hit]]:
        """The ``top_k`` best documents for each query, or all, the best first; ties go to the first.

        Raises:
            InputError: a query is empty, or this is one text and no list.
        """
        check_texts(queries)
        if top_k < 1:
            raise InputError(f"--top-k must be at least 1, got {top_k}")
        for query, is_read in zip(queries, self._embedder.encode.reads(queries), strict=True):
            if not is_read:
                raise InputError(f"query {query!r:.40}: has no text; leave it out")
        top_k = min(top_k, len(self))
        return [self._hits(query, top_k, *similar) for query, similar in self._similarities(queries)]

    def _similarities(self, queries: Sequence[str]) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """Each query, the products with all vectors ``(V,)``, and the similarities of vectors and of words ``(D,)``."""
        prompt_name = "query" if "query" in self._embedder.settings.prompts else None
        together = max(1, _PRODUCTS // len(self.vectors))
        for begin in range(0, len(queries), together):
            block = queries[begin : begin + together]
            asked = [Document("", query) for query in block]
            answers = self._embedder.answer(asked, self._embedder.prepare(asked, prompt_name))
            vectors = [np.atleast_2d(answer["embedding"]) for answer in answers]
            products = np.concatenate(vectors) @ self.vectors.T
            products = np.maximum.reduceat(products, np.cumsum([0, *map(len, vectors[:-1])]))  # of each query
            nearest = np.maximum.reduceat(products, self._begins[:-1], axis=1)
            words = np.zeros_like(nearest)
            if not self._embedder.reads_words:
                words = (self._tfidf.transform(self._vectorizer.transform(block)) @ self._words).toarray()
            yield from zip(block, zip(products, nearest, words, strict=True), strict=True)

    def _hits(self, query: str, top_k: int, products: np.ndarray, nearest: np.ndarray, words: np.ndarray) -> list[Hit]:
        scores = sum(
            (values - values.mean()) / spread for values, spread in zip((nearest, words), self._spreads, strict=True)
        )
        among = np.flatnonzero(scores >= np.partition(scores, -top_k)[-top_k])
        terms, hits = set(search_words(query)), []
        for document in among[np.argsort(-scores[among], kind="stable")][:top_k].tolist():
            begin, end = self._begins[document : document + 2]
            text = self.text(document)
            start, stop = _passage(text, self._spans[begin:end, 0], products[begin:end] / self._spreads[0], terms)
            hits.append(
                Hit(
                    score=float(scores[document]),
                    id=self.ids[document],
                    passage=text[start:stop],
                    document=document,
                    start=start,
                    similarity=float(nearest[document]),
                    words=float(words[document]),
                )
            )
        return hits

    def _use(self, table: pyarrow.Table, spreads: list[float] | None = None) -> None:
        """Search in these documents; the spreads are measured if None."""
        self.ids: list[str] = table["id"].to_pylist()
        self._texts = table["text"]
        self.vectors, self._begins = _values(table["vectors"])
        self._spans, _ = _values(table["spans"])
        self.owners = np.repeat(np.arange(len(self)), np.diff(self._begins))
        if not self._embedder.reads_words:
            words, begins = _values(table["words"])
            counts = sparse.csr_matrix((_values(table["counts"])[0], words, begins), shape=(len(self), _WORDS))
            self._tfidf = TfidfTransformer(sublinear_tf=True)
            self._words = self._tfidf.fit_transform(counts).T.tocsr()
        self._spreads = self._measured_spreads() if spreads is None else spreads

    def _measured_spreads(self) -> list[float]:
        """Those of similarities of vectors and of words, as the middle lines of some documents ask for the others."""
        measured = [[usual] * _LINES_OF_IT for usual in _USUAL]
        sample = np.unique(np.linspace(0, len(self) - 1, _SAMPLE).astype(int)).tolist() if len(self) > 1 else []
        spans = [[*_LINES.finditer(self.text(document))] for document in sample]
        lines = [of_document[len(of_document) // 2].group() for of_document in spans]
        are_read = self._embedder.encode.reads(lines)
        asked = self._similarities([line for line, is_read in zip(lines, are_read, strict=True) if is_read])
        for document, (_, (_, *similarities)) in zip(compress(sample, are_read), asked, strict=True):
            for values, kept in zip(similarities, measured, strict=True):
                kept.append(float(np.delete(values, document).std()))
        return [float(np.mean(kept)) for kept in measured]

    def _documents(
        self, given: str | os.PathLike[str] | Sequence[str] | Mapping[str, str], options: DataOptions
    ) -> list[Document]:
        """Those of files or of texts that have text."""
        reads = self._embedder.encode.reads
        if isinstance(given, str | os.PathLike):
            report, where = ReadReport(on_note=self._say), f"{os.fspath(given)}: "
            files = given_files([os.fspath(given)])
            documents = list(documents_of(files, TEXT, options, report, reads=reads))
            empty = report.empty
        else:
            named = given.items() if isinstance(given, Mapping) else ((str(i), text) for i, text in enumerate(given))
            texts, where = [], ""
            for name, text in named:
                if not isinstance(text, str):
                    raise InputError(f"document {name}: expected a text, got {text!r:.40}")
                texts.append(Document(name, _SURROGATES.sub("\ufffd", text)))
            has_text = reads([document.text for document in texts])
            documents = [document for document, has in zip(texts, has_text, strict=True) if has]
            empty = len(texts) - len(documents)
        if not documents:
            raise InputError(f"{where}no document with any text")
        if empty:
            self._say(f"left out {_count(empty)} without text")
        return documents

    def _read(self, documents: list[Document], told: dict[str, Any]) -> None:
        """Search in these documents, of which those with texts that the folder has are not read again."""
        digests = [hashlib.sha256(document.text.encode()).hexdigest() for document in documents]
        parts: dict[str, tuple[np.ndarray, ...]] = {}  # by the digest of the text: what `_LISTS` names
        if self.folder is not None and (manifest := _manifest(self.folder)) is not None:  # as it is now that it is held
            differs = [name for name in ("format", "sha256", "options") if manifest[name] != told[name]]
            if differs:
                another = "other options" if differs == ["options"] else "another model"
                self._say(f"{self.folder} is of {another}: all documents are read anew")
            else:
                table = _load(self.folder, manifest)
                keys = [*zip(table["id"].to_pylist(), table["sha256"].to_pylist(), strict=True)]
                if manifest["spreads"] and keys == [*zip(map(_name_of, documents), digests, strict=True)]:
                    self._say(f"{_count(len(documents))}, all read before")
                    return self._use(table, manifest["spreads"])
                lists = [_values(table[name]) for name in _LISTS]
                for row, (_, digest) in enumerate(keys):
                    parts[digest] = tuple(values[begins[row] : begins[row + 1]] for values, begins in lists)
        new = {digest: document for digest, document in zip(digests, documents, strict=True) if digest not in parts}
        self._say(f"reading {_count(len(new))} of {len(documents):,}")

        def keep(table: pyarrow.Table, spreads: list[float] | None = None) -> None:
            if self.folder is not None:
                _save(table, self.folder, {**told, "spreads": spreads})

        saved, cut = time.monotonic(), 0
        try:
            for number, (digest, answer) in enumerate(zip(new, self._embedder.answers(new.values()), strict=True), 1):
                words = sparse.csr_matrix((1, _WORDS), dtype=np.float32)
                if not self._embedder.reads_words:
                    words = self._vectorizer.transform([new[digest].text])
                vectors = np.atleast_2d(answer["embedding"])
                parts[digest] = vectors, answer["spans"], words.indices.astype(np.int32), words.data
                cut += answer["cut"]
                self._on_document(number, len(new))
                if time.monotonic() - saved > SAVED_EVERY:
                    keep(_table(documents, digests, parts))
                    saved = time.monotonic()
            table = _table(documents, digests, parts)
            self._use(table)
        except BaseException:
            if self.folder is not None and not parts.keys().isdisjoint(new):
                keep(_table(documents, digests, parts))
                self._say(f"{self.folder} keeps what was read; the same search goes on")
            raise
        keep(table, self._spreads)
        if cut:
            self._say(f"{_count(cut)} cut at {self._embedder.encode.max_length:,} tokens; their words are all counted")
        if self.folder is not None:
            size = format_bytes(sum(file.stat().st_size for file in self.folder.iterdir()))
            self._say(f"{self.folder} keeps what was read ({size})")


def _table(
    documents: Sequence[Document], digests: Sequence[str], parts: Mapping[str, tuple[np.ndarray, ...]]
) -> pyarrow.Table:
    """The documents whose parts are there, by the digests of their texts, a row each."""
    kept = [(document, digest) for document, digest in zip(documents, digests, strict=True) if digest in parts]
    columns: dict[str, Any] = {
        "id": [_name_of(document) for document, _ in kept],
        "text": pyarrow.array([document.text for document, _ in kept], pyarrow.large_string()),
        "sha256": [digest for _, digest in kept],
    }
    for name, lists in zip(_LISTS, zip(*(parts[digest] for _, digest in kept), strict=True), strict=True):
        values = np.concatenate(lists)
        items = pyarrow.array(values.ravel())
        if values.ndim == 2:
            items = pyarrow.FixedSizeListArray.from_arrays(items, values.shape[1])
        columns[name] = pyarrow.LargeListArray.from_arrays(np.cumsum([0, *map(len, lists)]), items)
    return pyarrow.table(columns)


def _values(column: pyarrow.ChunkedArray) -> tuple[np.ndarray, np.ndarray]:
    """The values of all lists, one after the other, and where each list begins."""
    lists = column.combine_chunks()
    items = lists.flatten()
    width = [] if items.type.num_fields == 0 else [items.type.list_size]
    return (items.flatten() if width else items).to_numpy().reshape(-1, *width), lists.offsets.to_numpy()


def _save(table: pyarrow.Table, folder: Path, manifest: Mapping[str, Any]) -> None:
    """Write documents into a folder; what was there counts until all is on the disk."""
    file = folder / _OURS.replace("*", secrets.token_hex(4))
    feather.write_feather(table, str(file), compression="uncompressed")
    flush(file)
    state = {"file": file.name, **file_state(file)}
    write_json(folder / VECTORS, {**manifest, "documents": table.num_rows, "state": state})
    for other in folder.glob(_OURS):
        if other != file:
            other.unlink()


def _load(folder: Path, manifest: Mapping[str, Any]) -> pyarrow.Table:
    file = folder / manifest["state"]["file"]
    if damage := damage_of(file, manifest["state"]):
        raise InputError(f"{file}: {damage}; remove {folder} and read the documents again")
    return feather.read_table(str(file), memory_map=True)


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What a folder of vectors says of itself; None for one that is still to be written."""
    file = folder / VECTORS
    if not file.is_file():
        check_writable(folder)
        inside = [] if not folder.exists() else [folder] if folder.is_file() else folder.iterdir()
        if not all(path.name.startswith(".") or path.match(_OURS) for path in inside):
            raise InputError(f"--output {folder}: is not empty and holds no vectors of a search; name another folder")
        return None
    names = {"format", "model", "sha256", "options", "source", "documents", "spreads", "state"}
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if not names <= manifest.keys():
            raise ValueError
    except (OSError, ValueError, AttributeError):
        raise InputError(f"{file}: is damaged; remove {folder} and read the documents again") from None
    return manifest


def _words_and_pairs(text: str) -> list[str]:
    words = search_words(text)
    return [*words, *map(" ".join, pairwise(words))]


def _passage(text: str, begins: np.ndarray, similarities: np.ndarray, terms: set[str]) -> tuple[int, int]:
    """Begin and end of the neighboring lines that match a query best, by its words and by the vector they belong to.

    ``begins`` says where in the text what each vector stands for begins; ``similarities`` are in spreads.
    """
    lines = [line.span() for line in _LINES.finditer(text)]
    held = [set[str]() for _ in lines]  # the words of the query in each line
    lowered = [text[begin:end].lower() for begin, end in lines]
    likely = {term: [number for number, line in enumerate(lowered) if term in line] for term in terms}
    if rare := {term: numbers for term, numbers in likely.items() if 0 < len(numbers) <= max(_FEW, len(lines) // _FEW)}:
        likely = rare  # words that are nearly everywhere say nothing, and take time
    for number in sorted({*chain.from_iterable(likely.values())}):
        held[number] = likely.keys() & set(search_words(text[slice(*lines[number])]))
    counts = Counter(chain.from_iterable(held))
    weights = {term: math.log(1 + len(lines) / count) for term, count in counts.items()}
    piece = np.searchsorted(begins, [begin for begin, _ in lines], side="right").clip(min=1) - 1
    runs, matches = [], []
    for first, (begin, _) in enumerate(lines):
        if not held[first] and first and piece[first] == piece[first - 1]:
            continue
        last, found = first, set(held[first])
        while last + 1 < len(lines) and lines[last + 1][1] - begin <= PASSAGE:
            last += 1
            found |= held[last]
        runs.append((first, last))
        matches.append(sum(weights[term] for term in found))
    share = np.array(matches) / max(sum(weights.values()), 1e-9)
    first, last = runs[int(np.argmax(similarities[piece[[first for first, _ in runs]]] + _ALL_WORDS * share))]
    return lines[first][0], lines[last][1]


def _name_of(document: Document) -> str:
    """Its id or its place; a file's name may hold bytes that are not UTF-8."""
    return (document.id or document.where).encode("utf-8", "backslashreplace").decode()


def _count(number: int) -> str:
    return f"{number:,} document{'' if number == 1 else 's'}"

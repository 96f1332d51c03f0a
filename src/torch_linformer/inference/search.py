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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from glob import has_magic
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow
from pyarrow import feather
from safetensors.numpy import load_file, save_file
from scipy import sparse
from sklearn.feature_extraction.text import HashingVectorizer, TfidfTransformer

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.formats import VECTORS
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document, documents_of, given_files
from torch_linformer.data.words import search_words
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import embedder_of
from torch_linformer.inference.predictor import check_texts
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.folder import check_writable, held, trained_columns
from torch_linformer.opening.load import load_reader, load_tokenizer, model_digest
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.reporting.files import damage_of, file_state, flush, write_json
from torch_linformer.reporting.tables import format_bytes

SUFFIX = ".search"  # of its name, beside the documents
SAVED_EVERY = 600.0  # seconds of reading
PASSAGE, LINE = 300, 120  # characters at most
_FORMAT = 1
_FILES = {"documents": ".arrow", "arrays": ".safetensors"}
_OURS = re.compile(rf"({'|'.join(_FILES)})-[0-9a-f]{{8}}\..+")
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


class _Part(NamedTuple):
    """What is kept of a document beside its text."""

    vectors: np.ndarray  # (n, C), in float32
    spans: np.ndarray  # (n, 2): begin and end of what each stands for, in characters
    words: np.ndarray  # columns of its words and pairs of words; none where they are in the vectors
    counts: np.ndarray  # how often each stands there, in float32


class _Collection:
    """The ids, texts and digests of documents, a row each, and their parts, those of a document side by side."""

    def __init__(self, table: Any, arrays: dict[str, np.ndarray]) -> None:
        self.table, self.arrays = table, arrays
        self.begins = {name: np.concatenate([[0], np.cumsum(arrays[f"{name}_each"])]) for name in ("vectors", "words")}

    @classmethod
    def of(cls, documents: Iterable[Document], digests: Iterable[str], parts: Mapping[str, _Part]) -> "_Collection":
        """Of the documents whose parts are there, by their digests."""
        kept = [(item, digest) for item, digest in zip(documents, digests, strict=True) if digest in parts]
        columns = zip(*((_name_of(item), item.text, digest) for item, digest in kept), strict=True)
        table = pyarrow.table(dict(zip(("id", "text", "sha256"), columns, strict=True)), schema=_SCHEMA)
        rows = [parts[digest] for _, digest in kept]
        arrays = {name: np.concatenate([getattr(part, name) for part in rows]) for name in _Part._fields}
        arrays |= {
            f"{name}_each": np.array([len(getattr(part, name)) for part in rows]) for name in ("vectors", "words")
        }
        return cls(table, arrays)

    def part(self, document: int) -> _Part:
        places = {name: slice(*begins[document : document + 2]) for name, begins in self.begins.items()}
        places |= {"spans": places["vectors"], "counts": places["words"]}
        return _Part(*(self.arrays[name][places[name]] for name in _Part._fields))

    @property
    def keys(self) -> list[tuple[str, str]]:
        """Id and digest of each document."""
        return [*zip(self.table["id"].to_pylist(), self.table["sha256"].to_pylist(), strict=True)]

    @property
    def parts(self) -> dict[str, _Part]:
        """By the digest of the text."""
        return {digest: self.part(row) for row, digest in enumerate(self.table["sha256"].to_pylist())}

    def save(self, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Write it into a folder; what was there counts until all is on the disk."""
        names = {what: f"{what}-{secrets.token_hex(4)}{suffix}" for what, suffix in _FILES.items()}
        feather.write_feather(self.table, str(folder / names["documents"]), compression="uncompressed")
        save_file(self.arrays, folder / names["arrays"])
        os.chmod(folder / names["arrays"], (folder / names["documents"]).stat().st_mode)  # else its owner's alone
        for name in names.values():
            flush(folder / name)
        files = {what: {"file": name, **file_state(folder / name)} for what, name in names.items()}
        write_json(folder / VECTORS, {**manifest, "documents": self.table.num_rows, "files": files})
        for file in folder.iterdir():
            if _OURS.fullmatch(file.name) and file.name not in names.values():
                file.unlink()

    @classmethod
    def load(cls, folder: Path, manifest: Mapping[str, Any]) -> "_Collection":
        for state in manifest["files"].values():
            if damage := damage_of(folder / state["file"], state):
                raise InputError(f"{folder / state['file']}: {damage}; remove {folder} and read the documents again")
        files = {what: folder / state["file"] for what, state in manifest["files"].items()}
        table = feather.read_table(str(files["documents"]), memory_map=True)
        return cls(table, load_file(files["arrays"]))


_SCHEMA = pyarrow.schema([("id", pyarrow.string()), ("text", pyarrow.large_string()), ("sha256", pyarrow.string())])


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
        vectors: of a document at most, each of neighboring windows; one for each window if None, which finds more.
        text_column: column with the text, of a table, as for
        id_column: column with a name of each document.
        encoding: of text files.
        delimiter: of a text table.
        quoting: whether quotes enclose cells of a text table: ``auto``, ``quotes`` or ``none``.
        header: whether the first row of a text table holds the column names.
        text_folder: folder of the text files that the text column names.
        device: ``auto`` takes a GPU if there is one.
        precision: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        batch_size: windows computed at once.
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
        elif file == "-" or (has_magic(file) and not Path(file).exists()):
            raise InputError(f"{file}: where should its vectors lie? Name a folder with --output")
        else:
            self.folder = Path(os.path.abspath(file) + SUFFIX)
        manifest = None if self.folder is None else _manifest(self.folder)
        if stored:
            assert manifest is not None
            name, vectors = manifest["model"], manifest["options"]["vectors"] if vectors is None else vectors
        device = resolve_device(device)
        options = {"vectors": vectors, "precision": resolve_precision(precision, device)}
        source = encoder_folder(name)
        self._embedder = embedder_of(
            source,
            load_reader(source),
            load_tokenizer(source),
            most=vectors,
            stride=0,
            spans=True,
            device=device,
            precision=options["precision"],
            batch_size=batch_size,
        )
        if vectors is not None and (self._embedder.vectors.most > 1 or self._embedder.reads_words):
            raise InputError("--vectors: this model makes the vectors of a document itself; leave it out")
        self._query_prompt = "query" if "query" in self._embedder.settings.prompts else None
        self._vectorizer = HashingVectorizer(
            analyzer=_words_and_pairs, n_features=_WORDS, alternate_sign=False, norm=None, dtype=np.float32
        )
        told = {
            "format": _FORMAT,
            "model": str(Path(name).absolute()) if Path(name).exists() else name,
            "sha256": model_digest(source),
            "options": options,
            "source": "the texts" if file is None else file,
        }
        if documents is None:
            assert manifest is not None
            self._open(manifest, told)
        else:
            say(f"{name} {self._embedder.reading}")
            if isinstance(documents, str | os.PathLike):
                listed = self._in_files(os.fspath(documents), replace(reading, trained=trained_columns(source)))
            else:
                listed = self._in_texts(documents)
            with nullcontext() if self.folder is None else held(self.folder):
                self._read(listed, told)

    def __len__(self) -> int:
        return len(self.ids)

    def text(self, document: int) -> str:
        """The text of a document by its number."""
        return str(self._collection.table["text"][document].as_py())

    def search(self, queries: Sequence[str], top_k: int = 10) -> list[list[Hit]]:
        """The best documents for each query, the best first; of equals the one that comes first.

        Args:
            queries: what is looked for.
            top_k: how many documents, or all if there are fewer.

        Returns:
            A list of hits for each query.

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
        return [
            self._hits(query, top_k, *similar) for query, similar in self._similarities(queries, self._query_prompt)
        ]

    def _similarities(
        self, queries: Sequence[str], prompt_name: str | None
    ) -> Iterator[tuple[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
        """Each query, the products with all vectors ``(V,)``, and the similarities of vectors and of words ``(D,)``."""
        together = max(1, _PRODUCTS // len(self.vectors))
        for begin in range(0, len(queries), together):
            block = queries[begin : begin + together]
            asked = [Document("", query) for query in block]
            answers = self._embedder.answer(asked, self._embedder.prepare(asked, prompt_name))
            vectors = [np.atleast_2d(answer["embedding"]) for answer in answers]
            products = np.concatenate(vectors) @ self.vectors.T
            products = np.maximum.reduceat(products, np.cumsum([0, *map(len, vectors[:-1])]))  # of each query
            nearest = np.maximum.reduceat(products, self._collection.begins["vectors"][:-1], axis=1)
            words = np.zeros_like(nearest)
            if self._documents_of_words is not None:
                weighed = self._tfidf.transform(self._vectorizer.transform(block))
                words = (weighed @ self._documents_of_words).toarray()
            yield from zip(block, zip(products, nearest, words, strict=True), strict=True)

    def _hits(self, query: str, top_k: int, products: np.ndarray, nearest: np.ndarray, words: np.ndarray) -> list[Hit]:
        scores = sum(
            (values - values.mean()) / spread for values, spread in zip((nearest, words), self._spreads, strict=True)
        )
        among = np.flatnonzero(scores >= np.partition(scores, -top_k)[-top_k])
        terms, hits = set(search_words(query)), []
        for document in among[np.argsort(-scores[among], kind="stable")][:top_k].tolist():
            begin, end = self._collection.begins["vectors"][document : document + 2]
            text, spans = self.text(document), self._collection.arrays["spans"][begin:end]
            start, stop = _passage(text, spans[:, 0], products[begin:end] / self._spreads[0], terms)
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

    def _open(self, manifest: dict[str, Any], told: dict[str, Any]) -> None:
        """Search in what the folder has."""
        goes_on = f"--documents {manifest['source']}"
        if any(manifest[name] != told[name] for name in ("format", "sha256")):
            raise InputError(f"{self.folder}: is not of {told['model']} as it is now; {goes_on} reads all anew")
        if manifest["spreads"] is None:
            number = _count(manifest["documents"])
            raise InputError(f"{self.folder}: its reading was interrupted after {number}; {goes_on} goes on")
        self._use(_Collection.load(cast(Path, self.folder), manifest))
        self._spreads = manifest["spreads"]

    def _use(self, collection: _Collection) -> None:
        self._collection = collection
        self.ids: list[str] = collection.table["id"].to_pylist()
        self.vectors = collection.arrays["vectors"]
        self.owners = np.repeat(np.arange(len(self)), collection.arrays["vectors_each"])
        self._tfidf, self._documents_of_words = TfidfTransformer(sublinear_tf=True), None
        if not self._embedder.reads_words:
            rows = collection.arrays["counts"], collection.arrays["words"], collection.begins["words"]
            counted = sparse.csr_matrix(rows, shape=(len(self), _WORDS))
            self._documents_of_words = self._tfidf.fit_transform(counted).T.tocsr()

    def _measured(self) -> list[float]:
        """The spreads of both similarities: lines of documents ask for others."""
        spreads: list[list[float]] = [[], []]
        for document in np.unique(np.linspace(0, len(self) - 1, _SAMPLE).astype(int)):
            text = self.text(document)
            lines = list(_LINES.finditer(text))
            line = lines[len(lines) // 2].group()
            if len(self) > 1 and self._embedder.encode.reads([line])[0]:
                for _, (_, *similarities) in self._similarities([line], self._query_prompt):
                    for values, kept in zip(similarities, spreads, strict=True):
                        kept.append(float(np.delete(values, document).std()))
        return [float(np.mean([*kept, *[usual] * _LINES_OF_IT])) for kept, usual in zip(spreads, _USUAL, strict=True)]

    def _in_files(self, name: str, options: DataOptions) -> list[Document]:
        report, reads = ReadReport(on_note=self._say), self._embedder.encode.reads
        documents = list(documents_of(given_files([name]), TEXT, options, report, reads=reads))
        if not documents:
            raise InputError(f"{name}: no document with any text")
        if report.empty:
            self._say(f"left out {_count(report.empty)} without text")
        return documents

    def _in_texts(self, texts: Sequence[str] | Mapping[str, str]) -> list[Document]:
        named = texts.items() if isinstance(texts, Mapping) else ((str(i), text) for i, text in enumerate(texts))
        documents = []
        for name, text in named:
            if not isinstance(text, str):
                raise InputError(f"document {name}: expected a text, got {text!r:.40}")
            documents.append(Document(name, _SURROGATES.sub("\ufffd", text)))
        has_text = self._embedder.encode.reads([document.text for document in documents])
        if not any(has_text):
            raise InputError("no document with any text")
        if not all(has_text):
            self._say(f"left out {_count(has_text.count(False))} without text")
        return [document for document, has in zip(documents, has_text, strict=True) if has]

    def _read(self, documents: list[Document], told: dict[str, Any]) -> None:
        """Search in these documents, of which those with texts that the folder has are not read again."""
        known = spreads = None
        if self.folder is not None and (manifest := _manifest(self.folder)) is not None:  # as it is now that it is held
            differs = [name for name in ("format", "sha256", "options") if manifest[name] != told[name]]
            if differs:
                another = "other options" if differs == ["options"] else "another model"
                self._say(f"{self.folder} is of {another}: all documents are read anew")
            else:
                known, spreads = _Collection.load(self.folder, manifest), manifest["spreads"]
        digests = [hashlib.sha256(document.text.encode()).hexdigest() for document in documents]
        if known is not None and spreads and known.keys == [*zip(map(_name_of, documents), digests, strict=True)]:
            self._say(f"{_count(len(documents))}, all read before")
            self._use(known)
            self._spreads = spreads
            return
        parts = {} if known is None else known.parts
        new = {digest: document for digest, document in zip(digests, documents, strict=True) if digest not in parts}
        self._say(f"reading {_count(len(new))} of {len(documents):,}")

        def keep(collection: _Collection, spreads: list[float] | None) -> None:
            if self.folder is not None:
                collection.save(self.folder, {**told, "spreads": spreads})

        saved, cut = time.monotonic(), 0
        try:
            for number, (digest, answer) in enumerate(zip(new, self._embedder.answers(new.values()), strict=True), 1):
                words = sparse.csr_matrix((1, _WORDS), dtype=np.float32)
                if not self._embedder.reads_words:
                    words = self._vectorizer.transform([new[digest].text])
                vectors = np.atleast_2d(answer["embedding"])
                parts[digest] = _Part(vectors, answer["spans"], words.indices.astype(np.int32), words.data)
                cut += answer["cut"]
                self._on_document(number, len(new))
                if time.monotonic() - saved > SAVED_EVERY:
                    keep(_Collection.of(documents, digests, parts), None)
                    saved = time.monotonic()
            self._use(_Collection.of(documents, digests, parts))
            self._spreads = self._measured()
        except BaseException:
            if self.folder is not None and not parts.keys().isdisjoint(new):
                keep(_Collection.of(documents, digests, parts), None)
                self._say(f"{self.folder} keeps what was read; the same search goes on")
            raise
        keep(self._collection, self._spreads)
        if cut:
            self._say(f"{_count(cut)} cut at {self._embedder.encode.max_length:,} tokens; their words are all counted")
        if self.folder is not None:
            size = format_bytes(sum(file.stat().st_size for file in self.folder.iterdir()))
            self._say(f"{self.folder} keeps what was read ({size})")


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What a folder of vectors says of itself; None for one that is still to be written.

    Raises:
        InputError: it cannot be written, holds something else, or is damaged.
    """
    file = folder / VECTORS
    if not file.is_file():
        check_writable(folder)
        inside = [] if not folder.exists() else [folder] if folder.is_file() else folder.iterdir()
        if not all(path.name.startswith(".") or _OURS.fullmatch(path.name) for path in inside):
            raise InputError(f"--output {folder}: is not empty and holds no vectors of a search; name another folder")
        return None
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        named = {"format", "model", "sha256", "options", "source", "documents", "spreads"} <= manifest.keys()
        if not named or manifest["files"].keys() != _FILES.keys():
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{file}: is damaged; remove {folder} and read the documents again") from None
    return manifest


def _words_and_pairs(text: str) -> list[str]:
    words = search_words(text)
    return [*words, *map(" ".join, pairwise(words))]


def _passage(text: str, begins: np.ndarray, similarities: np.ndarray, terms: set[str]) -> tuple[int, int]:
    """Begin and end of the neighboring lines that match a query best, by its words and by the vector they belong to.

    Args:
        text: of a document.
        begins: where in it what a vector stands for begins, for each vector.
        similarities: of each to the query, in spreads.
        terms: words of the query.
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

"""Search in documents: vectors and words of each, kept in a folder beside them, and the passages that match a query.

A document's score is the sum of two similarities to the query, each as standard deviations above the mean of all
documents: the largest product of their vectors, and the cosine of their words by TF-IDF. So neither needs a weight,
whatever the model and the lengths of the texts (docs/log.md, 2026-11-29).
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
from dataclasses import dataclass
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

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document, documents_of, given_files
from torch_linformer.data.words import search_words
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import embedder_of
from torch_linformer.inference.predictor import check_texts
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.folders import check_writable, held
from torch_linformer.opening.model_files import model_digest
from torch_linformer.opening.model_folder import load_reader, load_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.opening.run_folder import trained_columns
from torch_linformer.reporting.files import damage_of, file_state, flush, write_json
from torch_linformer.reporting.tables import format_bytes

MANIFEST = "search.json"  # of a folder of vectors
SUFFIX = ".search"  # of its name, beside the documents
SAVED_EVERY = 600.0  # seconds of reading
PASSAGE, LINE = 300, 120  # characters at most
_FORMAT = 1
_FILES = {"documents": ".arrow", "arrays": ".safetensors"}
_OURS = re.compile(rf"({'|'.join(_FILES)})-[0-9a-f]{{8}}\..+|\..*|{re.escape(MANIFEST)}")
_WORDS = 2**22  # columns that words are hashed to: documents are added without a vocabulary
_PRODUCTS = 50_000_000  # numbers that are held at once
# Spreads in Python's own library. They count as those of so many documents: of a few documents a spread is chance.
_SPREADS = {"vectors": 0.09, "words": 0.007, "lines": 0.3}
_FEW = 10
_LINES = re.compile(rf"(?:^[^\S\n]{{1,80}})?\S(?:[^\n]{{0,{LINE - 1}}}(?!\S)|[^\n]{{0,{LINE - 1}}})", re.MULTILINE)
_SURROGATES = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Hit:
    """A document that a query has found.

    Attributes:
        score: standard deviations above the mean of all documents, of vectors and words together.
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
        write_json(folder / MANIFEST, {**manifest, "documents": self.table.num_rows, "files": files})
        for file in folder.iterdir():
            if file.name.startswith(tuple(_FILES)) and file.name not in names.values():
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
        \qquad z(x) = \frac{x - \mathrm{mean}(x)}{\mathrm{std}(x)} \text{ over all documents}

    :math:`q_a` and :math:`d_b` are vectors of the query and of the document, w their words and pairs of neighboring
    words by TF-IDF (sublinear counts, fitted to the documents); names in program code count as their parts. Where the
    model's vectors have the words in them, s is the first term.

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
        name, stored = os.fspath(model), (Path(model) / MANIFEST).is_file()
        if documents is None and not stored:
            raise InputError(
                f"{name}: search in what? Name documents (--documents), or a folder that a search has written"
            )
        if documents is None and (vectors is not None or output is not None):
            raise InputError("--vectors and --output are for reading documents: name them (--documents)")
        if vectors is not None and vectors < 1:
            raise InputError(f"--vectors must be 1 or more, got {vectors}")
        file = os.fspath(documents) if isinstance(documents, str | os.PathLike) else None
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
            self._collection = self._stored(manifest, told)
        else:
            say(f"{name} {self._embedder.reading}")
            if isinstance(documents, str | os.PathLike):
                reading = DataOptions(
                    text_column=text_column,
                    id_column=id_column,
                    encoding=encoding,
                    delimiter=delimiter,
                    quoting=quoting,
                    header=header,
                    text_folder=None if text_folder is None else os.fspath(text_folder),
                    trained=trained_columns(source),
                )
                listed = self._in_files(os.fspath(documents), reading)
            else:
                listed = self._in_texts(documents)
            with nullcontext() if self.folder is None else held(self.folder):
                self._collection = self._read(listed, manifest, told)
        self.ids: list[str] = self._collection.table["id"].to_pylist()
        self.vectors = self._collection.arrays["vectors"]
        self.owners = np.repeat(np.arange(len(self)), self._collection.arrays["vectors_each"])
        self._tfidf, self._documents_of_words = TfidfTransformer(sublinear_tf=True), None
        if not self._embedder.reads_words:
            arrays = self._collection.arrays
            rows = arrays["counts"], arrays["words"], self._collection.begins["words"]
            counted = sparse.csr_matrix(rows, shape=(len(self), _WORDS))
            self._documents_of_words = self._tfidf.fit_transform(counted).T.tocsr()

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
        together = max(1, _PRODUCTS // len(self.vectors))
        blocks = (queries[begin : begin + together] for begin in range(0, len(queries), together))
        return [hits for block in blocks for hits in self._search(block, min(top_k, len(self)))]

    def _search(self, queries: Sequence[str], top_k: int) -> Iterator[list[Hit]]:
        asked = [Document("", query) for query in queries]
        answers = self._embedder.answer(asked, self._embedder.prepare(asked, self._query_prompt))
        vectors = [np.atleast_2d(answer["embedding"]) for answer in answers]
        products = np.concatenate(vectors) @ self.vectors.T
        products = np.maximum.reduceat(products, np.cumsum([0, *map(len, vectors[:-1])]))  # of each query
        similarity = np.maximum.reduceat(products, self._collection.begins["vectors"][:-1], axis=1)
        scores, words = _standardized(similarity, "vectors"), np.zeros_like(similarity)
        if self._documents_of_words is not None:
            weighed = self._tfidf.transform(self._vectorizer.transform(queries))
            words = (weighed @ self._documents_of_words).toarray()
            scores = scores + _standardized(words, "words")
        for number, query in enumerate(queries):
            least = np.partition(scores[number], -top_k)[-top_k]
            among = np.flatnonzero(scores[number] >= least)
            terms = set(search_words(query))
            hits = []
            for document in among[np.argsort(-scores[number, among], kind="stable")][:top_k].tolist():
                begin, end = self._collection.begins["vectors"][document : document + 2]
                text, spans = self.text(document), self._collection.arrays["spans"][begin:end]
                start, stop = _passage(text, spans[:, 0], products[number, begin:end], terms)
                hits.append(
                    Hit(
                        score=float(scores[number, document]),
                        id=self.ids[document],
                        passage=text[start:stop],
                        document=document,
                        start=start,
                        similarity=float(similarity[number, document]),
                        words=float(words[number, document]),
                    )
                )
            yield hits

    def _stored(self, manifest: dict[str, Any], told: dict[str, Any]) -> _Collection:
        """The collection of the folder, as it is."""
        goes_on = f"--documents {manifest['source']}"
        if any(manifest[name] != told[name] for name in ("format", "sha256")):
            raise InputError(f"{self.folder}: is not of {told['model']} as it is now; {goes_on} reads all anew")
        if not manifest["complete"]:
            number = _count(manifest["documents"])
            raise InputError(f"{self.folder}: its reading was interrupted after {number}; {goes_on} goes on")
        return _Collection.load(cast(Path, self.folder), manifest)

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

    def _read(self, documents: list[Document], manifest: dict[str, Any] | None, told: dict[str, Any]) -> _Collection:
        """The collection of these documents, of which those with texts that the folder has are not read again."""
        known, is_whole = None, False
        if manifest is not None:
            differs = [name for name in ("format", "sha256", "options") if manifest[name] != told[name]]
            if differs:
                another = "other options" if differs == ["options"] else "another model"
                self._say(f"{self.folder} is of {another}: all documents are read anew")
            else:
                known, is_whole = _Collection.load(cast(Path, self.folder), manifest), manifest["complete"]
        digests = [hashlib.sha256(document.text.encode()).hexdigest() for document in documents]
        if known is not None and is_whole and known.keys == [*zip(map(_name_of, documents), digests, strict=True)]:
            self._say(f"{_count(len(documents))}, all read before")
            return known
        parts = {} if known is None else known.parts
        new = {digest: document for digest, document in zip(digests, documents, strict=True) if digest not in parts}
        self._say(f"reading {_count(len(new))} of {len(documents):,}")

        def keep(complete: bool) -> _Collection:
            collection = _Collection.of(documents, digests, parts)
            if self.folder is not None:
                collection.save(self.folder, {**told, "complete": complete})
            return collection

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
                if self.folder is not None and time.monotonic() - saved > SAVED_EVERY:
                    keep(complete=False)
                    saved = time.monotonic()
        except BaseException:
            if self.folder is not None and not parts.keys().isdisjoint(new):
                keep(complete=False)
            raise
        collection = keep(complete=True)
        if cut:
            self._say(f"{_count(cut)} cut at {self._embedder.encode.max_length:,} tokens, but for their words")
        if self.folder is not None:
            size = format_bytes(sum(file.stat().st_size for file in self.folder.iterdir()))
            self._say(f"{self.folder} keeps what was read ({size})")
        return collection


def _manifest(folder: Path) -> dict[str, Any] | None:
    """What a folder of vectors says of itself; None for one that is still to be written.

    Raises:
        InputError: it cannot be written, holds something else, or is damaged.
    """
    file = folder / MANIFEST
    if not file.is_file():
        check_writable(folder)
        if folder.is_file() or (folder.is_dir() and not all(_OURS.fullmatch(path.name) for path in folder.iterdir())):
            raise InputError(f"--output {folder}: is not empty and holds no vectors of a search; name another folder")
        return None
    try:
        manifest: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        complete = isinstance(manifest["complete"], bool) and manifest["files"].keys() == _FILES.keys()
        if not (complete and {"format", "model", "sha256", "options", "source", "documents"} <= manifest.keys()):
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{file}: is damaged; remove {folder} and read the documents again") from None
    return manifest


def _words_and_pairs(text: str) -> list[str]:
    words = search_words(text)
    return [*words, *map(" ".join, pairwise(words))]


def _standardized(values: np.ndarray, kind: str) -> np.ndarray:
    """Values ``(…, n)`` as standard deviations above their mean."""
    centered = values - values.mean(axis=-1, keepdims=True)
    squares = np.square(centered).sum(axis=-1, keepdims=True) + _FEW * _SPREADS[kind] ** 2
    return cast(np.ndarray, centered / np.sqrt(squares / (values.shape[-1] + _FEW)))


def _passage(text: str, begins: np.ndarray, similarities: np.ndarray, terms: set[str]) -> tuple[int, int]:
    """Begin and end of the neighboring lines that match a query best, by its words and by the vector they belong to.

    Args:
        text: of a document.
        begins: where in it what a vector stands for begins, for each vector.
        similarities: of each to the query.
        terms: words of the query.
    """
    lines = [line.span() for line in _LINES.finditer(text)]
    held = []  # the words of the query in each line
    for begin, end in lines:
        line = text[begin:end]
        is_likely = any(term in line.lower() for term in terms)  # which is quick
        held.append(terms & set(search_words(line)) if is_likely else set())
    number = Counter(chain.from_iterable(held))
    weights = {term: math.log(1 + len(lines) / count) for term, count in number.items()}
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
    near = similarities[piece[[first for first, _ in runs]]]
    share = np.array(matches) / max(sum(weights.values()), 1e-9)
    first, last = runs[int(np.argmax(_standardized(near, "vectors") + _standardized(share, "lines")))]
    return lines[first][0], lines[last][1]


def _name_of(document: Document) -> str:
    """Its id or its place; a file's name may hold bytes that are not UTF-8."""
    return (document.id or document.where).encode("utf-8", "backslashreplace").decode()


def _count(number: int) -> str:
    return f"{number:,} document{'' if number == 1 else 's'}"

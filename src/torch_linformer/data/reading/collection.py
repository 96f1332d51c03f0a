"""Documents with the queries that should find them, from one table of pairs or from two tables."""

from collections import defaultdict
from dataclasses import replace
from itertools import islice

from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf

from torch_linformer.data.reading.columns import LABEL_COLUMNS, QUERY_COLUMNS
from torch_linformer.data.reading.documents import Documents, load_documents
from torch_linformer.data.reading.options import DataOptions
from torch_linformer.data.reading.records import JUDGED, LABELED, NAMED, SEARCHED
from torch_linformer.data.reading.rows import SAMPLE_ROWS, ReadReport
from torch_linformer.data.reading.sources import find_source
from torch_linformer.errors import InputError

FEATURES = Features({"text": Value("string"), "queries": ListOf(Value("string"))})


def load_collection(
    queries: str, documents: str | None = None, *, options: DataOptions, part: str = "train", max_errors: int = 0
) -> Documents:
    """Documents with the columns "text" and "queries", each document once; or with "text" and "label".

    Args:
        queries: a table of pairs, a query and its document each; or, where the documents have a table of their own, of
            queries and the name of the document that each should find. Or a table of texts and labels, if it has a
            column for the label and none for queries: texts with the same label should find each other.
        documents: the table of the documents and their names. Those that no query names are left out.
        options: what the user says of the data; ``document_column`` is that of the names in both tables.
        part: the part of a table of pairs or labels that is in several.
        max_errors: so many rows of each table that cannot be read are left out.

    Raises:
        InputError: as :func:`load_documents` does; a name that two documents have; a query whose document is not there.
    """
    if documents is not None and options.label_column is not None:
        raise InputError("--label-column is for one table of texts and labels: leave --documents out")
    named = any(options.column(what) for what in ("text", "query", "document"))
    if options.label_column is not None or (documents is None and not named and _has_labels(queries, options)):
        return load_documents(queries, LABELED, options=options, part=part, max_errors=max_errors)
    if documents is None:
        pairs = load_documents(queries, SEARCHED, options=options, part=part, max_errors=max_errors)
        found = defaultdict[str, dict[str, None]](dict)  # a query that stands there twice counts once
        for row in pairs.dataset:
            found[row["text"]][row["query"]] = None
        return Documents(_collection(found), pairs.name, pairs.notes)
    asked = load_documents(queries, JUDGED, options=replace(options, text_column=None), max_errors=max_errors)
    there = load_documents(documents, NAMED, options=replace(options, query_column=None), max_errors=max_errors)
    texts: dict[str, str] = {}
    for row in there.dataset:
        if texts.setdefault(row["id"], row["text"]) != row["text"]:
            raise InputError(f"{documents}: two documents are called {row['id']!r}; give each a name of its own")
    found = defaultdict(dict)
    for row in asked.dataset:
        if row["id"] not in texts:
            raise InputError(f"{queries}: the query {row['text']!r:.60} asks for {row['id']!r}, not in {documents}")
        found[texts[row["id"]]][row["text"]] = None
    return Documents(_collection(found), asked.name, [*asked.notes, *(f"documents: {note}" for note in there.notes)])


def _has_labels(source: str, options: DataOptions) -> bool:
    """Whether a table holds labels, by the names of its columns, and no queries."""
    rows = islice(find_source(source, options=options).rows(ReadReport()), SAMPLE_ROWS)
    names = {name.strip().lower() for row in rows for name in row.values}
    return bool(names & {*LABEL_COLUMNS}) and not names & {*QUERY_COLUMNS}


def _collection(found: dict[str, dict[str, None]]) -> Dataset:
    columns = {"text": list(found), "queries": [list(queries) for queries in found.values()]}
    return Dataset.from_dict(columns, features=FEATURES)

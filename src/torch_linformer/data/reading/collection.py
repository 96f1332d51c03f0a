"""Documents with the queries that should find them, from one table of pairs or from two tables.

A query may have several documents: the same query, letter by letter, in several rows asks for all of them.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf

from torch_linformer.data.parts import GROUP
from torch_linformer.data.reading.corpus import stdlib_search
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import Documents, load_documents, sample_of
from torch_linformer.data.reading.records import JUDGED, LABELED, NAMED, QUERY_COLUMNS, SEARCHED
from torch_linformer.data.reading.rows import LABEL_COLUMNS, is_number, known
from torch_linformer.data.reading.sources import STDLIB, find_source
from torch_linformer.errors import InputError

_JUDGMENTS = ("label", "labels", "score", "similarity", "relevance", "relevant", "is_relevant", "is_duplicate")
FEATURES = Features({"text": Value("string"), "queries": ListOf(Value("string"))})


def load_collection(
    queries: str, documents: str | None = None, *, options: DataOptions, part: str = "train", max_errors: int = 0
) -> Documents:
    """Documents with the columns "text" and "queries", each document once; or with "text" and "label".

    Args:
        queries: a table of pairs, a query and its document each; or, where the documents have a table of their own, of
            queries and the name of the document that each should find. Or a table of texts and labels, if it has a
            column for the label and none for queries: texts with the same label should find each other. Or "stdlib":
            the files of Python's standard library, which their docstrings should find; they have a "name" too.
        documents: the table of the documents and their names. Those that no query names are left out.
        options: what the user says of the data; ``document_column`` is that of the names in both tables.
        part: the part of a table of pairs or labels that is in several.
        max_errors: so many rows of each table that cannot be read are left out.

    Raises:
        InputError: as :func:`load_documents` does; a name that two documents have; a query whose document is not there.
    """
    if documents is not None and options.label_column is not None:
        raise InputError("--label-column is for one table of texts and labels: leave --documents out")
    reading: dict[str, Any] = {"options": options, "part": part, "max_errors": max_errors}
    if options.label_column is not None:
        return load_documents(queries, LABELED, **reading)
    if documents is None and queries == STDLIB:
        files, description = stdlib_search()
        columns = {"text": [file.text for file in files], "queries": [file.queries for file in files]}
        columns |= {"name": [file.name for file in files], GROUP: [file.group for file in files]}
        features = Features({**FEATURES, "name": Value("string"), GROUP: Value("string")})
        return Documents(Dataset.from_dict(columns, features=features), [description])
    if documents is None:
        named = [name for name in (options.query_column, options.document_column) if name is not None]
        cells = defaultdict[str, set[str]](set)
        if len(named) < 2:
            for row in sample_of(find_source(queries, options=options).rows(lambda note: None))[0]:
                for name, value in row.values.items():
                    cells[name].add(str(value))
        if not named and known(cells, LABEL_COLUMNS) and not known(cells, QUERY_COLUMNS):
            return load_documents(queries, LABELED, **reading)
        for name in known(cells, _JUDGMENTS):
            if len(cells[name]) > 1 and all(is_number(value) or value in ("True", "False") for value in cells[name]):
                raise InputError(
                    f"{queries}: each row is read as a query and a document that it should find; does {name!r} say "
                    "which do not? Remove these rows and that column, or name --query-column and --document-column to "
                    "read all rows"
                )
        pairs = load_documents(queries, SEARCHED, **reading)
        relevant = ((row["text"], row["query"]) for row in pairs.dataset)
        return Documents(_collection(relevant, pairs.dataset), pairs.notes, parts=pairs.parts)
    asked = load_documents(
        queries, JUDGED, options=replace(options, text_column=None, group_column=None), max_errors=max_errors
    )
    searched = load_documents(documents, NAMED, options=replace(options, query_column=None), max_errors=max_errors)
    texts: dict[str, str] = {}
    for row in searched.dataset:
        if texts.setdefault(row["id"], row["text"]) != row["text"]:
            raise InputError(f"{documents}: two documents are called {row['id']!r}; give each a name of its own")
    for row in asked.dataset:
        if row["id"] not in texts:
            raise InputError(f"{queries}: the query {row['text']!r:.60} asks for {row['id']!r}, not in {documents}")
    relevant = ((texts[row["id"]], row["text"]) for row in asked.dataset)
    notes = [*asked.notes, *(f"documents: {note}" for note in searched.notes)]
    return Documents(_collection(relevant, searched.dataset), notes)


def _collection(relevant: Iterable[tuple[str, str]], table: Dataset) -> Dataset:
    """Each document of pairs of a document and a query once, with its queries, and its group if the table has one."""
    queries = defaultdict[str, dict[str, None]](dict)  # a pair that stands there twice counts once
    for text, query in relevant:
        queries[text][query] = None
    columns = {"text": list(queries), "queries": [list(asked) for asked in queries.values()]}
    if GROUP not in table.column_names:
        return Dataset.from_dict(columns, features=FEATURES)
    groups: dict[str, str] = {}
    for row in table.select_columns(["text", GROUP]):
        groups.setdefault(row["text"], row[GROUP])
    columns[GROUP] = [groups[text] for text in queries]
    return Dataset.from_dict(columns, features=Features({**FEATURES, GROUP: Value("string")}))

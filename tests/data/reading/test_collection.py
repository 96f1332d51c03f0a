import pytest
from datasets import Dataset

from torch_linformer.data.reading.collection import _collection, load_collection
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.errors import InputError


@pytest.fixture
def table(tmp_path):
    """A function: a CSV file of rows, its path."""

    def write(name, *rows):
        path = tmp_path / name
        path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows))
        return str(path)

    return write


def rows_of(documents):
    return [(row["text"], row["queries"]) for row in documents.dataset]


def test_pairs_become_documents_each_once_with_its_queries(table):
    pairs = table("p.csv", ("query", "document"), ("a", "one"), ("b", "two"), ("c", "one"), ("a", "one"))
    found = load_collection(pairs, options=NO_OPTIONS)
    assert rows_of(found) == [("one", ["a", "c"]), ("two", ["b"])]
    assert found.notes == ["documents from column 'document' (by its name), queries from column 'query' (by its name)"]


def test_two_tables_are_joined_by_the_names_of_documents(table):
    queries = table("q.csv", ("query", "doc_id"), ("a", 7), ("b", 9), ("c", 7))
    documents = table("d.csv", ("_id", "text"), (7, "one"), (8, "nobody asks for it"), (9, "two"))
    found = load_collection(queries, documents, options=NO_OPTIONS)
    assert rows_of(found) == [("one", ["a", "c"]), ("two", ["b"])]
    assert found.notes[1].startswith("documents: texts from column 'text'")


def test_the_name_of_a_query_is_none_of_a_document(table):
    documents = table("d.csv", ("id", "text"), (1, "one"), (2, "two"), (5, "five"))
    queries = table("q.csv", ("id", "query", "asks for"), (1, "a", 2), (2, "b", 1), (5, "c", 5))
    assert rows_of(load_collection(queries, documents, options=NO_OPTIONS))[0] == ("two", ["a"])
    queries = table("q.csv", ("_id", "text"), (1, "a"), (2, "b"), (5, "c"))
    with pytest.raises(InputError, match=r"no document column found; name it with --document-column; columns: '_id'"):
        load_collection(queries, documents, options=NO_OPTIONS)


@pytest.mark.parametrize("column", ["label", "Score", "is_duplicate"])
def test_pairs_that_may_not_belong_together_are_a_question(table, column):
    pairs = table("p.csv", ("query", "document", column), ("a", "one", 1), ("a", "two", 0))
    with pytest.raises(InputError, match=rf"p\.csv: each row is read as .* does '{column}' say which do not\? Remove"):
        load_collection(pairs, options=NO_OPTIONS)
    named = DataOptions(query_column="query", document_column="document")
    assert len(load_collection(pairs, options=named).dataset) == 2


def test_a_query_may_have_several_documents(table):
    queries = table("q.csv", ("query", "doc_id"), ("a", 7), ("a", 9))
    documents = table("d.csv", ("_id", "text"), (7, "one"), (9, "two"))
    pairs = table("p.csv", ("query", "document"), ("a", "one"), ("a", "two"))
    for collection in (
        load_collection(queries, documents, options=NO_OPTIONS),
        load_collection(pairs, options=NO_OPTIONS),
    ):
        assert rows_of(collection) == [("one", ["a"]), ("two", ["a"])]


def test_columns_may_be_named(table):
    queries = table("q.csv", ("asked", "meeting", "kind"), ("a", "m1", "x"), ("b", "m2", "y"))
    documents = table("d.csv", ("meeting", "said", "place"), ("m1", "one", "here"), ("m2", "two", "there"))
    named = DataOptions(query_column="asked", document_column="meeting", text_column="said")
    assert rows_of(load_collection(queries, documents, options=named)) == [("one", ["a"]), ("two", ["b"])]


def test_texts_with_labels(table):
    texts = table("t.csv", ("text", "label"), ("one", "a"), ("two", "b"))
    for named in (NO_OPTIONS, DataOptions(label_column="label")):
        found = load_collection(texts, options=named).dataset
        assert found["label"][:] == ["a", "b"] and "queries" not in found.column_names


def test_a_table_with_queries_and_labels_is_one_of_pairs(table):
    both = table("b.csv", ("query", "document", "label"), ("a", "one", "x"), ("b", "two", "x"))
    assert rows_of(load_collection(both, options=NO_OPTIONS)) == [("one", ["a"]), ("two", ["b"])]


def test_what_does_not_fit_is_refused(table):
    queries = table("q.csv", ("query", "doc_id"), ("a", 7), ("where is it", 9))
    documents = table("d.csv", ("doc_id", "text"), (7, "one"), (8, "two"))
    with pytest.raises(InputError, match=r"q\.csv: the query 'where is it' asks for '9', not in .*d\.csv"):
        load_collection(queries, documents, options=NO_OPTIONS)
    twice = table("e.csv", ("doc_id", "text"), (7, "one"), (7, "two"), (9, "three"))
    with pytest.raises(InputError, match="two documents are called '7'; give each a name of its own"):
        load_collection(queries, twice, options=NO_OPTIONS)
    with pytest.raises(InputError, match="--label-column is for one table"):
        load_collection(queries, documents, options=DataOptions(label_column="doc_id"))
    without = table("w.csv", ("query", "document"), ("", "one"))
    with pytest.raises(InputError, match="no query in column 'query'"):
        load_collection(without, options=NO_OPTIONS)
    with pytest.raises(InputError, match="--text-column is for another task"):
        load_collection(without, options=DataOptions(text_column="document"))


def test_a_document_keeps_its_group():
    table = Dataset.from_dict({"text": ["one", "two", "one"], "group": ["ann", "bo", "cy"]})
    dataset = _collection([("one", "a"), ("two", "b"), ("one", "c")], table)
    assert dataset[:] == {"text": ["one", "two"], "queries": [["a", "c"], ["b"]], "group": ["ann", "bo"]}

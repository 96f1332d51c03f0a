import numpy as np
import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from torch_linformer.errors import InputError
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.tasks.lexical_vector_fit import know_words, word_rows
from torch_linformer.tasks.retrieval import Retrieval, judgments_of, queries_of
from torch_linformer.tasks.retrieval_metrics import bm25_similarities, retrieval_metrics, tfidf_similarities

PAIRS = {
    "text": ["sun sun sand", "rain mud", "snow ice cold ice snow"],
    "queries": [["sand"], ["mud rain", "wet"], ["ice", "cold snow"]],
}
LABELED = {"text": ["sun", "rain", "sand", "mud", "sea", "ice"], "label": ["dry", "wet", "dry", "wet", "dry", "cold"]}
WORDS = ["[PAD]", "[UNK]", "sun", "sand", "rain", "mud", "wet", "snow", "ice", "cold", "sea"]


@pytest.fixture
def task():
    backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    return Retrieval(PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]"))


def words(ids):
    return " ".join(WORDS[number] for number in ids)


def test_windows_are_those_of_documents_then_of_queries(task):
    found = task.examples(Dataset.from_dict(PAIRS), task.encoder(4))
    cut = ["sun sun sand", "rain mud", "snow ice cold ice", "sand", "mud rain", "wet", "ice", "cold snow"]
    assert [words(ids) for ids in found.windows["input_ids"][:]] == cut
    assert found.num_tokens.tolist() == [3, 2, 5]  # of documents


def test_a_batch_has_documents_and_the_queries_of_each(task):
    rows = task.training_rows(task.examples(Dataset.from_dict(PAIRS), task.encoder(4)))
    assert rows["length"] == [3, 2, 4] and len(rows) == 3
    batch = task.collator(training=True)([rows[2], rows[1]])
    assert [words(ids) for ids in batch["query_ids"]] == ["ice [PAD]", "cold snow", "mud rain", "wet [PAD]"]
    assert batch["query_of"].tolist() == [0, 0, 1, 1] and batch["query_group"].tolist() == [3, 4, 1, 2]
    assert batch["query_mask"].tolist() == [[1, 0], [1, 1], [1, 1], [1, 0]]
    assert words(batch["input_ids"][1]) == "rain mud [PAD] [PAD]"


def test_documents_with_a_label_are_queries_of_each_other(task):
    documents = Dataset.from_dict(LABELED)
    rows = task.training_rows(task.examples(documents, task.encoder(4)))
    queries = [[words(ids) for ids in rows[number]["queries"]] for number in range(len(rows))]
    assert queries == [["sand"], ["mud"], ["sea"], ["rain"], ["sun"], []]  # each label in a circle; ice is alone
    groups = [rows[number]["groups"] for number in range(len(rows))]
    assert groups[0] == groups[2] == groups[4] != groups[1] == groups[3] and groups[5] == []
    batch = task.collator(training=True)([rows[5]])
    assert len(batch["query_ids"]) == len(batch["query_of"]) == 0
    assert judgments_of(documents).wanted.tolist() == [2, 1, 2, 1, 2, 0]


def test_scores_are_those_of_the_vectors(task):
    vectors = np.eye(3)[[0, 1, 2, 0, 1, 1, 0, 2]]  # the query "ice" points to the first document
    found = task.scores(vectors, Dataset.from_dict(PAIRS))
    assert found["mrr_at_10"] == pytest.approx((4 + 1 / 3) / 5)
    labeled = task.scores(np.eye(6)[[0, 1, 0, 1, 0, 2]], Dataset.from_dict(LABELED))
    assert labeled["ndcg_at_10"] == 1 and labeled["queries"] == 5


SHARED = {"text": ["sun", "sand", "mud"], "queries": [["dry"], ["dry", "sea"], ["wet"]]}


def test_a_query_of_several_documents_is_one_query_that_finds_all_of_them(task):
    documents = Dataset.from_dict(SHARED)
    windows = task.examples(documents, task.encoder(4)).windows
    assert len(windows) == 3 + 3  # "dry" once
    vectors = np.array([[1, 0.1, 0], [0.9, 1, 0], [0, 0, 1], [1, 0.1, 0], [0, 1, 0], [0, 0, 1]])
    scores = task.scores(vectors, documents)
    assert (scores["ndcg_at_10"], scores["recall_at_10"], scores["queries"]) == (pytest.approx(1), 1, 3)
    rows = task.training_rows(task.examples(documents, task.encoder(4)))
    batch = task.collator(training=True)([rows[number] for number in range(3)])
    assert batch["query_of"].tolist() == [0, 1, 1, 2] and batch["query_group"].tolist() == [0, 0, 1, 2]
    judgments = judgments_of(documents)
    assert judgments.wanted.tolist() == [2, 1, 1]
    assert judgments.of(np.array([0, 1]))[0].tolist() == [[True, True, False], [False, True, False]]


SEARCHES = [
    # "wet" and "unheard" are in no document: the first one is first for them.
    (
        [*PAIRS["text"], "no word of any query"],
        [*PAIRS["queries"], ["unheard"]],
        [1, 1, 1 / np.log2(3), 1, 1, 1 / np.log2(5)],
    ),
    (["sun dry", "sand dry", "mud"], SHARED["queries"], [1, 1 / np.log2(3), 0.5]),  # several documents a query
    (["का", "की", "को"], [[], [], ["को"]], [1]),  # words that only marks tell apart
]


@pytest.mark.parametrize("search", [tfidf_similarities, bm25_similarities])
@pytest.mark.parametrize(("texts", "queries", "ndcg"), SEARCHES, ids=["words", "several", "marks"])
def test_searches_by_words(search, texts, queries, ndcg):
    documents = Dataset.from_dict({"text": texts, "queries": queries})
    found = retrieval_metrics(search(texts, queries_of(documents)), judgments_of(documents))
    assert found["tallies"]["ndcg_at_10"][:, 0].tolist() == pytest.approx(ndcg)


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"text": ["sun", "rain"], "label": ["dry", "wet"]}, {}, "of 2 documents no two have the same label"),
        # Several vectors of a document would be taken for those of the next ones.
        (PAIRS, {"overflow": "windows"}, "--overflow windows: an embedder makes one vector"),
    ],
    ids=["labels", "windows"],
)
def test_what_nothing_can_be_learned_from_is_refused(task, columns, options, message):
    with pytest.raises(InputError, match=message):
        task.examples(Dataset.from_dict(columns), task.encoder(4, **options))


def test_baselines_count_each_query(task):
    pairs, labeled = (Dataset.from_dict(columns) for columns in (PAIRS, LABELED))
    for found in task.baselines(pairs, pairs).values():
        assert len(found["tallies"]["ndcg_at_10"]) == 5
    labeled = task.baselines(labeled, labeled)
    assert set(labeled) == {"tfidf_search", "bm25", "tfidf_bm25"}


def test_words_and_vectors_are_added_by_their_share(task):
    documents = Dataset.from_dict({"text": ["sun sand", "mud rain"], "queries": [["sun"], ["rain mud"]]})
    lexical = LexicalVector(len(task.tokenizer), 2, 8, exact_share=0.25)
    know_words(lexical, task.tokenizer)
    lexical.weights.fill_(1.0)
    task.vectors.lexical = lexical
    vectors = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [0.0, 1.0]])
    try:
        found = task.similarities(vectors, documents)(0, 2)
        known, asked = (word_rows(lexical, counts).toarray() for counts in task.counts(lexical, documents))
        hits = task.hits(vectors, documents)
    finally:
        task.vectors.lexical = None
    assert np.allclose(found, 0.75 * vectors[2:].numpy() @ vectors[:2].numpy().T + 0.25 * asked @ known.T)
    assert asked[0] @ known[0] > 0.1 > asked[0] @ known[1] == 0
    assert [query for query, _ in hits] == ["sun", "rain mud"]
    assert hits[1][1][0] == f"{found[1, 1]:.3f}  mud rain  (its own)"

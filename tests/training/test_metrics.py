"""Scores against values worked out by hand, and floors that are honest and quiet."""

import json
import math
import random
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_linformer.training import metrics
from torch_linformer.training.metrics import (
    classification_metrics,
    majority_accuracy,
    masked_lm_metrics,
    tfidf_floor,
)


@pytest.fixture(autouse=True)
def _no_warning_escapes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_scores_by_hand():
    # a: 2 true, both found, 1 false alarm. b: 3 true, 1 found. c: never true, predicted once. d: not there.
    scores = classification_metrics([0, 0, 1, 1, 1], [0, 0, 1, 0, 2], ["a", "b", "c", "d"])
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["confusion_matrix"] == [[2, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    by_label = {entry.pop("label"): entry for entry in scores["per_label"]}
    assert by_label["a"] == pytest.approx({"precision": 2 / 3, "recall": 1.0, "f1": 0.8, "support": 2})
    assert by_label["b"] == pytest.approx({"precision": 1.0, "recall": 1 / 3, "f1": 0.5, "support": 3})
    assert by_label["c"] == by_label["d"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert scores["macro_f1"] == pytest.approx((0.8 + 0.5 + 0.0) / 3)  # c counts, d does not


def test_scores_are_ready_for_json():
    scores = classification_metrics([0, 1], [0, 1], ["a", "b"])
    assert json.loads(json.dumps(scores)) == scores


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_the_matrix_holds_every_document_once(pairs):
    true, predicted = zip(*pairs, strict=True)
    scores = classification_metrics(true, predicted, list("abcde"))
    matrix = scores["confusion_matrix"]
    assert sum(map(sum, matrix)) == len(pairs)
    assert [sum(row) for row in matrix] == [entry["support"] for entry in scores["per_label"]]
    assert sum(matrix[i][i] for i in range(5)) / len(pairs) == pytest.approx(scores["accuracy"])
    assert 0 <= scores["macro_f1"] <= 1


@pytest.mark.parametrize(
    ("labels", "predictions", "message"),
    [
        ([0, 1], [0], r"equally long lists with at least one entry, got \(2,\) and \(1,\)"),
        ([], [], "at least one entry"),
        ([0, 2], [0, 1], "labels must be 0 to 1, got 0 to 2"),
        ([0, -100], [0, 1], "labels must be 0 to 1, got -100 to 1"),
    ],
)
def test_labels_that_do_not_fit_are_refused(labels, predictions, message):
    with pytest.raises(ValueError, match=message):
        classification_metrics(labels, predictions, ["a", "b"])


def test_majority_is_the_training_set_s():
    assert majority_accuracy(["a", "a", "b"], ["a", "b", "b", "b"]) == 0.25
    assert majority_accuracy([1], [2]) == 0.0
    with pytest.raises(ValueError, match="both splits need labels, got 0 and 1"):
        majority_accuracy([], ["a"])


def corpus(documents, seed, topics=("sun rain wind", "goal match team", "bread salt oven"), words=20):
    """Texts of filler words in which one word in ten tells the topic."""
    rng = random.Random(seed)
    filler = [f"word{index}" for index in range(200)]
    texts, labels = [], []
    for index in range(documents):
        topic = topics[index % len(topics)]
        told = rng.choices(topic.split(), k=max(1, words // 10))
        texts.append(" ".join(rng.sample(told + rng.choices(filler, k=words - len(told)), words)))
        labels.append(topic.split()[0])
    return texts, labels


def test_the_floor_learns_what_words_tell():
    floor = tfidf_floor(*corpus(300, 0), *corpus(90, 1), seed=0)
    assert floor["accuracy"] > 0.95
    assert floor["macro_f1"] > 0.95
    assert (floor["documents"], floor["test_documents"]) == (300, 90)
    assert json.loads(json.dumps(floor)) == floor


def test_the_floor_hears_the_order_of_neighbours_in_short_documents():
    texts = ["not good but bad", "not bad but good"] * 60
    labels = ["neg", "pos"] * 60
    assert tfidf_floor(texts, labels, texts[:2], labels[:2], seed=0)["accuracy"] == 1.0


def test_long_documents_are_told_apart_by_words_alone(monkeypatch):
    monkeypatch.setattr(metrics, "_BIGRAM_CHARACTERS", 10)
    texts, labels = ["not good but bad", "not bad but good"] * 60, ["neg", "pos"] * 60
    assert tfidf_floor(texts, labels, texts[:2], labels[:2], seed=0)["accuracy"] == 0.5


def test_the_floor_reads_text_without_spaces_and_names_with_underscores():
    texts = ["今日は雨が降る", "明日の試合に勝つ"] * 10 + ["get_rain_mm", "set_goal_count"] * 10
    labels = ["weather", "sport"] * 20
    test = (["雨", "試合", "rain", "goal"], ["weather", "sport", "weather", "sport"])
    assert tfidf_floor(texts, labels, *test, seed=0)["accuracy"] == 1.0


def test_the_draw_is_bounded_and_repeatable(monkeypatch):
    train, test = corpus(300, 0, words=10), corpus(90, 1, words=10)
    first = tfidf_floor(*train, *test, max_documents=60, seed=3)
    assert (first["documents"], first["test_documents"]) == (60, 60)
    assert tfidf_floor(*train, *test, max_documents=60, seed=3) == first
    monkeypatch.setattr(metrics, "_MAX_CHARACTERS", sum(map(len, train[0])) // 10)
    assert 20 < tfidf_floor(*train, *test, seed=3)["documents"] < 40


def test_a_document_that_is_too_long_by_itself_is_still_read(monkeypatch):
    monkeypatch.setattr(metrics, "_MAX_CHARACTERS", 1)
    assert tfidf_floor(*corpus(9, 0), *corpus(9, 1), seed=0)["documents"] == 1


@pytest.mark.parametrize(
    ("texts", "labels"),
    [(["a b", "c d"], ["x", "x"]), (["...", "!?", ""], ["x", "x", "y"])],
    ids=["one label", "no words"],
)
def test_where_nothing_can_be_learnt_the_majority_remains(texts, labels):
    floor = tfidf_floor(texts, labels, ["a", "b", "c"], ["x", "x", "y"], seed=0)
    assert floor["accuracy"] == pytest.approx(2 / 3)


def test_labels_may_be_numbers_and_unseen():
    floor = tfidf_floor(["sun", "rain"] * 5, [0, 1] * 5, ["sun", "rain", "snow"], [0, 1, 2], seed=0)
    assert floor["accuracy"] == pytest.approx(2 / 3)


def test_a_fit_that_stops_early_stays_quiet(monkeypatch):
    real = metrics.LogisticRegression
    monkeypatch.setattr(metrics, "LogisticRegression", lambda **settings: real(**{**settings, "max_iter": 1}))
    assert tfidf_floor(*corpus(120, 0), *corpus(30, 1), seed=0)["accuracy"] > 0.3


def test_a_split_without_its_labels_is_refused():
    with pytest.raises(ValueError, match="test needs documents and a label for each, got 2 and 1"):
        tfidf_floor(["a"], ["x"], ["a", "b"], ["x"], seed=0)
    with pytest.raises(ValueError, match="train needs documents and a label for each, got 0 and 0"):
        tfidf_floor([], [], ["a"], ["x"], seed=0)


def test_masked_lm_by_hand():
    # Two tokens of probability 1/4 and 1/16: 6 bits together, over 8 bytes.
    scores = masked_lm_metrics(math.log(4) + math.log(16), 2, 8)
    assert scores == pytest.approx({"perplexity": 8.0, "bits_per_byte": 0.75})


def test_masked_lm_of_a_perfect_and_of_a_hopeless_model():
    assert masked_lm_metrics(0.0, 5, 9) == {"perplexity": 1.0, "bits_per_byte": 0.0}
    assert masked_lm_metrics(1e6, 1, 4)["perplexity"] == math.inf
    assert math.isnan(masked_lm_metrics(math.nan, 1, 4)["perplexity"])


@pytest.mark.parametrize(("tokens", "size"), [(0, 4), (3, 0)])
def test_masked_lm_of_nothing_is_refused(tokens, size):
    with pytest.raises(ValueError, match=f"nothing was masked: got {tokens} masked tokens of {size} bytes"):
        masked_lm_metrics(1.0, tokens, size)

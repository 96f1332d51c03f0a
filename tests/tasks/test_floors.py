"""Floors that are honest and quiet."""

import json
import random
import warnings

import numpy as np
import pytest

from torch_linformer.tasks import floors
from torch_linformer.tasks.floors import (
    compression_floor,
    majority_floor,
    mean_floor,
    most_frequent_tag_floor,
    tfidf_floor,
    tfidf_multilabel_floor,
    tfidf_regression_floor,
)
from torch_linformer.tasks.metrics import tagging_metrics


@pytest.fixture(autouse=True)
def _no_warning_escapes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_majority_is_the_training_set_s():
    assert majority_floor(["a", "a", "b"], ["a", "b", "b", "b"]) == 0.25
    assert majority_floor([1], [2]) == 0.0
    with pytest.raises(ValueError, match="both splits need answers, got 0 and 1"):
        majority_floor([], ["a"])


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
    floor = tfidf_floor(corpus(300, 0), corpus(90, 1), seed=0)
    assert floor["accuracy"] > 0.95
    assert floor["macro_f1"] > 0.95
    assert (floor["documents"], floor["test_documents"]) == (300, 90)
    assert json.loads(json.dumps(floor)) == floor


def test_the_floor_tells_words_apart_by_their_marks():
    texts, labels = ["पानी की बात", "पानी का बात"] * 30, ["f", "m"] * 30
    assert tfidf_floor((texts, labels), (texts[:2], labels[:2]), seed=0)["accuracy"] == 1.0


def test_the_floor_hears_the_order_of_neighbours_in_short_documents():
    texts = ["not good but bad", "not bad but good"] * 60
    labels = ["neg", "pos"] * 60
    assert tfidf_floor((texts, labels), (texts[:2], labels[:2]), seed=0)["accuracy"] == 1.0


def test_long_documents_are_told_apart_by_words_alone(monkeypatch):
    monkeypatch.setattr(floors, "_BIGRAM_CHARACTERS", 10)
    texts, labels = ["not good but bad", "not bad but good"] * 60, ["neg", "pos"] * 60
    assert tfidf_floor((texts, labels), (texts[:2], labels[:2]), seed=0)["accuracy"] == 0.5


def test_the_floor_reads_text_without_spaces_and_names_with_underscores():
    texts = ["今日は雨が降る", "明日の試合に勝つ"] * 10 + ["get_rain_mm", "set_goal_count"] * 10
    labels = ["weather", "sport"] * 20
    test = (["雨", "試合", "rain", "goal"], ["weather", "sport", "weather", "sport"])
    assert tfidf_floor((texts, labels), test, seed=0)["accuracy"] == 1.0


def test_the_draw_is_bounded_and_repeatable(monkeypatch):
    train, test = corpus(300, 0, words=10), corpus(90, 1, words=10)
    monkeypatch.setattr(floors, "_MAX_DOCUMENTS", 60)
    first = tfidf_floor(train, test, seed=3)
    assert (first["documents"], first["test_documents"]) == (60, 60)
    assert tfidf_floor(train, test, seed=3) == first
    monkeypatch.undo()
    monkeypatch.setattr(floors, "_MAX_CHARACTERS", sum(map(len, train[0])) // 10)
    assert 20 < tfidf_floor(train, test, seed=3)["documents"] < 40


def test_a_document_that_is_too_long_by_itself_is_still_read(monkeypatch):
    monkeypatch.setattr(floors, "_MAX_CHARACTERS", 1)
    assert tfidf_floor(corpus(9, 0), corpus(9, 1), seed=0)["documents"] == 1


@pytest.mark.parametrize(
    ("texts", "labels"),
    [(["a b", "c d"], ["x", "x"]), (["...", "!?", ""], ["x", "x", "y"])],
    ids=["one label", "no words"],
)
def test_where_nothing_can_be_learnt_the_majority_remains(texts, labels):
    floor = tfidf_floor((texts, labels), (["a", "b", "c"], ["x", "x", "y"]), seed=0)
    assert floor["accuracy"] == pytest.approx(2 / 3)


def test_labels_may_be_numbers_and_unseen():
    floor = tfidf_floor((["sun", "rain"] * 5, [0, 1] * 5), (["sun", "rain", "snow"], [0, 1, 2]), seed=0)
    assert floor["accuracy"] == pytest.approx(2 / 3)


def test_a_fit_that_stops_early_stays_quiet(monkeypatch):
    real = floors.LogisticRegression
    monkeypatch.setattr(floors, "LogisticRegression", lambda **settings: real(**{**settings, "max_iter": 1}))
    assert tfidf_floor(corpus(120, 0), corpus(30, 1), seed=0)["accuracy"] > 0.3


def test_a_split_without_its_labels_is_refused():
    with pytest.raises(ValueError, match="test needs documents and an answer for each, got 2 and 1"):
        tfidf_floor((["a"], ["x"]), (["a", "b"], ["x"]), seed=0)
    with pytest.raises(ValueError, match="train needs documents and an answer for each, got 0 and 0"):
        tfidf_floor(([], []), (["a"], ["x"]), seed=0)


def test_the_mean_is_the_training_set_s():
    assert mean_floor([1, 2, 6], [3, 5])["mae"] == 1.0
    assert mean_floor([1, 2, 6], [3, 5])["r2"] == -1.0
    assert mean_floor([1], [1])["pearson"] == 0.0
    with pytest.raises(ValueError, match="both splits need answers, got 0 and 1"):
        mean_floor([], [1])


def test_the_regression_floor_learns_what_words_tell():
    train, test = corpus(300, 0), corpus(90, 1)
    values = {"sun": 1.0, "goal": 2.0, "bread": 5.0}
    true = [values[label] for label in test[1]]
    floor = tfidf_regression_floor((train[0], [values[label] for label in train[1]]), (test[0], true), seed=0)
    assert floor["r2"] > 0.5 and floor["pearson"] > 0.8 and floor["spearman"] > 0.8
    assert floor["mse"] < mean_floor(list(values.values()), true)["mse"] / 2
    assert (floor["documents"], floor["test_documents"]) == (300, 90)
    assert json.loads(json.dumps(floor)) == floor


@pytest.mark.parametrize(
    ("texts", "values"),
    [(["a b", "c d", "e"], [2, 2, 2]), (["...", "!?", ""], [1, 2, 3])],
    ids=["one value", "no words"],
)
def test_where_nothing_can_be_learnt_the_mean_remains(texts, values):
    floor = tfidf_regression_floor((texts, values), (["a", "b"], [1.0, 4.0]), seed=0)
    assert floor["mse"] == pytest.approx(mean_floor([2], [1.0, 4.0])["mse"]) == 2.5


def several_labels(documents, seed):
    """Texts of two topics each, and which of four topics they are of; the fourth never is."""
    first, kinds = corpus(documents, seed)
    second, others = corpus(documents + 1, seed + 100)
    names = ["sun", "goal", "bread", "never"]
    labels = [[int(name in pair) for name in names] for pair in zip(kinds, others[1:], strict=True)]
    return [f"{one} {other}" for one, other in zip(first, second[1:], strict=True)], np.array(labels)


def test_the_floor_of_several_labels_learns_each():
    floor = tfidf_multilabel_floor(several_labels(300, 0), several_labels(90, 1), seed=0)
    assert floor["micro_f1"] > 0.9 and floor["macro_f1"] > 0.9
    assert (floor["documents"], floor["test_documents"]) == (300, 90)
    assert json.loads(json.dumps(floor)) == floor


def test_rare_labels_are_predicted_below_a_half():
    """Twenty labels that words only hint at: hardly a probability is above a half."""
    draw = np.random.default_rng(0)
    labels = (draw.random((900, 20)) < 0.07).astype(int)
    texts = [
        " ".join([f"w{label}" for label in np.flatnonzero(row)] + [f"w{word}" for word in draw.integers(20, size=9)])
        for row in labels
    ]
    floor = tfidf_multilabel_floor((texts[:600], labels[:600]), (texts[600:], labels[600:]), seed=0)
    usual = np.mean(labels) * 2 / (np.mean(labels) + 1)  # of all labels for every document
    assert floor["micro_f1"] > 1.5 * usual


def test_a_label_that_says_always_or_never_the_same_is_learnt_too():
    texts, labels = ["sun", "rain"] * 5, np.array([[1, 0, 1], [1, 0, 0]] * 5)
    floor = tfidf_multilabel_floor((texts, labels), (texts, labels), seed=0)
    assert (floor["micro_f1"], floor["macro_f1"]) == (1.0, 1.0)
    without_words = tfidf_multilabel_floor((["!"] * 3, [[1], [1], [0]]), (["?"] * 2, [[1], [0]]), seed=0)
    assert without_words["micro_f1"] == pytest.approx(2 / 3)  # each is given the label


def test_many_labels_are_learnt_from_fewer_documents(monkeypatch):
    monkeypatch.setattr(floors, "MAX_DECISIONS", 400)
    floor = tfidf_multilabel_floor(several_labels(120, 0), several_labels(110, 1), seed=0)
    assert (floor["documents"], floor["test_documents"]) == (100, 110)


@pytest.mark.parametrize("floor", [tfidf_regression_floor, tfidf_multilabel_floor])
def test_every_draw_is_bounded_and_repeatable(floor, monkeypatch):
    texts, labels = several_labels(80, 0)
    answers = labels[:, 0] if floor is tfidf_regression_floor else labels
    known = (texts, answers)
    monkeypatch.setattr(floors, "_MAX_DOCUMENTS", 60)
    first = floor(known, known, seed=3)
    assert (first["documents"], first["test_documents"]) == (60, 60)
    assert floor(known, known, seed=3) == first
    assert floor(known, known, seed=4) != first
    with pytest.raises(ValueError, match="test needs documents and an answer for each, got 79 and 80"):
        floor(known, (texts[1:], answers), seed=0)


@pytest.mark.parametrize("labels", [np.zeros(2), np.zeros((2, 0)), np.zeros((2, 3))], ids=["flat", "none", "others"])
def test_labels_of_another_shape_are_refused(labels):
    with pytest.raises(ValueError, match=r"labels must be of shape \(documents, labels\), got \(2,"):
        others = labels[:, :2] if labels.ndim > 1 else labels
        tfidf_multilabel_floor((["a", "b"], labels), (["a", "b"], others), seed=0)


def test_each_word_is_given_its_most_frequent_tag():
    words = [["a", "b", "a"], ["a", "b", "c", "c", "c"]]
    tags = [["B-X", "B-Y", "O"], ["B-X", "O", "O", "O", "O"]]
    # a is B-X twice of three times, b is B-Y and O once each and was B-Y first, d is new: O is most frequent.
    expected = [["B-X"], ["B-Y", "O", "O"]]
    true = [["B-X"], ["O", "O", "B-X"]]
    assert most_frequent_tag_floor((words, tags), ([["a"], ["b", "c", "d"]], true)) == tagging_metrics(true, expected)


def test_what_training_documents_repeat_costs_few_bits():
    rng = random.Random(0)
    known, other = ("".join(rng.choices("abcdefgh", k=20_000)) for _ in range(2))
    assert compression_floor([known], [known[5_000:15_000]], seed=0) < 2.5
    assert compression_floor([other], [known[5_000:15_000]], seed=0) == pytest.approx(3, rel=0.05)  # eight letters
    assert compression_floor(["é" * 9], ["é"], seed=0) >= 0


def test_the_texts_compressed_are_the_first_that_a_model_is_scored_on():
    texts = ["a" * 10, "b" * 10, "c" * 10]
    order = "".join(texts[i][:4] for i in np.random.default_rng(5).permutation(3))
    assert floors._first_bytes(texts, 6, 5, most_of_each=4) == order[:6].encode()


def test_words_without_their_tags_are_refused():
    with pytest.raises(ValueError, match="train needs documents of words and a tag for each word, got 2 and 2"):
        most_frequent_tag_floor(([["a", "b"], []], [["O"], ["O"]]), ([["a"]], [["O"]]))
    with pytest.raises(ValueError, match="test needs documents of words and a tag for each word, got 0 and 0"):
        most_frequent_tag_floor(([["a"]], [["O"]]), ([[]], [[]]))

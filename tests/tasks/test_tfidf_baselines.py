"""Linear models of TF-IDF that a model of whole documents must beat: what is chosen, and what is learned and scored."""

import json
import random
import warnings

import numpy as np
import pytest

from torch_linformer.tasks import baselines as tfidf_baselines
from torch_linformer.tasks.baselines import (
    mean_baseline,
    tfidf_baseline,
    tfidf_multilabel_baseline,
    tfidf_regression_baseline,
)
from torch_linformer.tasks.word_features import GRAMS, PAIRS, WORDS


@pytest.fixture(autouse=True)
def _no_warning_escapes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


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


def several_labels(documents, seed):
    """Texts of two topics each, and which of four topics they are of; the fourth never is."""
    first, kinds = corpus(documents, seed)
    second, others = corpus(documents + 1, seed + 100)
    names = ["sun", "goal", "bread", "never"]
    labels = [[int(name in pair) for name in names] for pair in zip(kinds, others[1:], strict=True)]
    return [f"{one} {other}" for one, other in zip(first, second[1:], strict=True)], np.array(labels)


def numbers(documents, seed):
    values = {"sun": 1.0, "goal": 2.0, "bread": 5.0}
    texts, labels = corpus(documents, seed)
    return texts, [values[label] for label in labels]


def test_one_label():
    baseline = tfidf_baseline(corpus(300, 0), corpus(60, 2), corpus(90, 1), seed=0)
    assert baseline["accuracy"] > 0.95
    assert baseline["macro_f1"] > 0.95
    assert (baseline["documents"], baseline["test_documents"]) == (360, 90)
    assert np.mean(baseline["tallies"]["accuracy"], axis=0)[0] == pytest.approx(baseline["accuracy"])
    assert np.mean(baseline["tallies"]["macro_f1"], axis=0)[0] == pytest.approx(baseline["macro_f1"])
    assert json.loads(json.dumps(baseline)) == baseline


def test_the_tally_is_that_of_the_numbered_documents():
    texts, labels = corpus(30, 0)
    answers = ["sun", "goal", "bread"] * 9 + ["goal", "bread", "sun"]  # the last three are wrong
    baseline = tfidf_baseline((texts * 9, labels * 9), (texts, labels), (texts, answers), seed=0)
    wrong = {
        number
        for number, (right, _) in zip(baseline["numbers"], baseline["tallies"]["accuracy"], strict=True)
        if not right
    }
    assert wrong == {27, 28, 29}


def test_words_are_told_apart_by_their_marks():
    texts, labels = ["पानी की बात", "पानी का बात"] * 30, ["f", "m"] * 30
    pair = texts[:2], labels[:2]
    assert tfidf_baseline((texts, labels), pair, pair, seed=0)["accuracy"] == 1.0


def chosen(train, validation):
    return tfidf_baseline(train, validation, validation, seed=0)["chosen"]


def test_the_validation_documents_choose_the_features():
    """Words where they are enough; pairs where the order counts; characters where words were never met."""
    order = ["not good but bad", "not bad but good"] * 60, ["neg", "pos"] * 60
    assert chosen(corpus(300, 0), corpus(60, 2)).startswith(f"{WORDS}: squared hinge, C = ")
    assert chosen(order, (order[0][:2], order[1][:2])).startswith(f"{PAIRS}: squared hinge, C = 1")
    rng = random.Random(0)
    stems = ["".join(rng.choices("bcdfgklm", k=5)) for _ in range(400)]
    words = [f"{stem}{('ova', 'ino')[number % 2]}" for number, stem in enumerate(stems)]
    names = [("f", "m")[number % 2] for number in range(400)]
    unmet = words[300:], names[300:]
    assert chosen((words[:300] * 2, names[:300] * 2), unmet).startswith(GRAMS)


def test_characters_of_long_documents_are_not_counted(monkeypatch):
    monkeypatch.setattr(tfidf_baselines, "SHORT", 5)
    words = ["xyzova", "xyzino"] * 60, ["f", "m"] * 60
    unmet = ["abcova", "abcino"], ["f", "m"]
    assert GRAMS not in chosen(words, unmet)


def test_the_validation_documents_are_learned_too():
    train, validation = (["sun", "rain"] * 5, ["x", "y"] * 5), (["sun", "rain", "snow"] * 9, ["x", "y", "z"] * 9)
    baseline = tfidf_baseline(train, validation, (["sun", "rain", "snow"], ["x", "y", "z"]), seed=0)
    assert baseline["accuracy"] == 1.0


def test_text_without_spaces_and_names_with_underscores():
    texts = ["今日は雨が降る", "明日の試合に勝つ"] * 10 + ["get_rain_mm", "set_goal_count"] * 10
    labels = ["weather", "sport"] * 20
    test = (["雨", "試合", "rain", "goal"], ["weather", "sport", "weather", "sport"])
    assert tfidf_baseline((texts, labels), test, test, seed=0)["accuracy"] == 1.0


def test_the_draw_is_bounded_and_repeatable(monkeypatch):
    train, test = corpus(300, 0, words=10), corpus(90, 1, words=10)
    monkeypatch.setattr(tfidf_baselines, "_MAX_DOCUMENTS", 60)
    first = tfidf_baseline(train, test, test, seed=3)
    assert (first["documents"], first["test_documents"]) == (120, 60)
    assert tfidf_baseline(train, test, test, seed=3) == first
    monkeypatch.undo()
    monkeypatch.setattr(tfidf_baselines, "_MAX_CHARACTERS", sum(map(len, train[0])) // 10)
    assert 40 < tfidf_baseline(train, test, test, seed=3)["documents"] < 80


def test_a_document_that_is_too_long_by_itself_is_still_read(monkeypatch):
    for bound in ("_MAX_CHARACTERS", "_SEARCH_CHARACTERS"):
        monkeypatch.setattr(tfidf_baselines, bound, 1)
    assert tfidf_baseline(corpus(9, 0), corpus(9, 2), corpus(9, 1), seed=0)["documents"] == 2


@pytest.mark.parametrize(
    ("texts", "labels"),
    [(["a b", "c d"], ["x", "x"]), (["...", "!?", ""], ["x", "x", "y"])],
    ids=["one label", "no words"],
)
def test_where_nothing_can_be_learned_the_majority_remains(texts, labels):
    baseline = tfidf_baseline((texts, labels), (texts, labels), (["", "", ""], ["x", "x", "y"]), seed=0)
    assert baseline["accuracy"] == pytest.approx(2 / 3)


def test_labels_may_be_numbers_and_unseen():
    known = ["sun", "rain"] * 5, [0, 1] * 5
    assert tfidf_baseline(known, known, (["sun", "rain", "snow"], [0, 1, 2]), seed=0)["accuracy"] == pytest.approx(
        2 / 3
    )


def test_a_split_without_its_labels_is_refused():
    good = ["a"], ["x"]
    with pytest.raises(ValueError, match="test needs documents and an answer for each, got 2 and 1"):
        tfidf_baseline(good, good, (["a", "b"], ["x"]), seed=0)
    with pytest.raises(ValueError, match="train needs documents and an answer for each, got 0 and 0"):
        tfidf_baseline(([], []), good, good, seed=0)
    with pytest.raises(ValueError, match="validation needs documents and an answer for each, got 1 and 0"):
        tfidf_baseline(good, (["a"], []), good, seed=0)


def test_a_number():
    test = numbers(90, 1)
    baseline = tfidf_regression_baseline(numbers(300, 0), numbers(60, 2), test, seed=0)
    assert baseline["r2"] > 0.5 and baseline["pearson"] > 0.8 and baseline["spearman"] > 0.8
    assert baseline["mse"] < mean_baseline([1.0, 2.0, 5.0], test[1])["mse"] / 2
    assert np.mean(baseline["tallies"]["mse"], axis=0)[0] == pytest.approx(baseline["mse"])
    assert (baseline["documents"], baseline["test_documents"]) == (360, 90)
    assert "ridge regression, penalty " in baseline["chosen"]
    assert json.loads(json.dumps(baseline)) == baseline


@pytest.mark.parametrize(
    ("texts", "values"),
    [(["a b", "c d", "e"], [2, 2, 2]), (["...", "!?", ""], [1, 2, 3])],
    ids=["one value", "no words"],
)
def test_where_nothing_can_be_learned_the_mean_remains(texts, values):
    baseline = tfidf_regression_baseline((texts, values), (texts, values), (["a", "b"], [1.0, 4.0]), seed=0)
    assert baseline["mse"] == pytest.approx(mean_baseline([2], [1.0, 4.0])["mse"]) == 2.5


def test_several_labels():
    baseline = tfidf_multilabel_baseline(several_labels(300, 0), several_labels(60, 2), several_labels(90, 1), seed=0)
    assert baseline["micro_f1"] > 0.9 and baseline["macro_f1"] > 0.9
    assert np.divide(*np.sum(baseline["tallies"]["micro_f1"], axis=0)) == pytest.approx(baseline["micro_f1"])
    assert (baseline["documents"], baseline["test_documents"]) == (360, 90)
    assert json.loads(json.dumps(baseline)) == baseline


def test_unknown_labels_are_neither_learned_nor_scored():
    """A label that is unknown, or learned as "no", in the documents whose words tell it would never be predicted."""
    parts = []
    for seed, number in enumerate((300, 60, 90)):
        texts, labels = several_labels(number, seed)
        partly = np.where(np.random.default_rng(seed).random(np.shape(labels)) < 0.5, np.nan, labels)
        parts.append((texts, partly))
    baseline = tfidf_multilabel_baseline(*parts, seed=0)
    assert baseline["micro_f1"] > 0.9 and baseline["macro_f1"] > 0.9
    assert np.divide(*np.sum(baseline["tallies"]["micro_f1"], axis=0)) == pytest.approx(baseline["micro_f1"])
    assert json.loads(json.dumps(baseline)) == baseline


def test_rare_labels_are_predicted_below_a_half():
    """Twenty labels that words only hint at: hardly a probability is above a half."""
    draw = np.random.default_rng(0)
    labels = (draw.random((900, 20)) < 0.07).astype(int)
    texts = [
        " ".join([f"w{label}" for label in np.flatnonzero(row)] + [f"w{word}" for word in draw.integers(20, size=9)])
        for row in labels
    ]
    parts = [(texts[begin:end], labels[begin:end]) for begin, end in ((0, 500), (500, 600), (600, 900))]
    usual = np.mean(labels) * 2 / (np.mean(labels) + 1)  # of all labels for every document
    assert tfidf_multilabel_baseline(*parts, seed=0)["micro_f1"] > 1.5 * usual


def test_a_label_that_says_always_or_never_the_same_is_learned_too():
    known = ["sun", "rain"] * 5, np.array([[1, 0, 1], [1, 0, 0]] * 5)
    baseline = tfidf_multilabel_baseline(known, known, known, seed=0)
    assert (baseline["micro_f1"], baseline["macro_f1"]) == (1.0, 1.0)
    nothing = ["!"] * 3, [[1], [1], [0]]
    without_words = tfidf_multilabel_baseline(nothing, nothing, (["?"] * 2, [[1], [0]]), seed=0)
    assert without_words["micro_f1"] == pytest.approx(2 / 3)  # each is given the label


def test_many_labels_are_learned_from_fewer_documents(monkeypatch):
    monkeypatch.setattr(tfidf_baselines, "MAX_DECISIONS", 400)
    parts = several_labels(120, 0), several_labels(20, 2), several_labels(110, 1)
    baseline = tfidf_multilabel_baseline(*parts, seed=0)
    assert (baseline["documents"], baseline["test_documents"]) == (120, 110)


@pytest.mark.parametrize("baseline", [tfidf_regression_baseline, tfidf_multilabel_baseline])
def test_every_draw_is_bounded_and_repeatable(baseline, monkeypatch):
    texts, labels = several_labels(80, 0)
    answers = labels[:, 0] if baseline is tfidf_regression_baseline else labels
    known = (texts, answers)
    monkeypatch.setattr(tfidf_baselines, "_MAX_DOCUMENTS", 60)
    first = baseline(known, known, known, seed=3)
    assert (first["documents"], first["test_documents"]) == (120, 60)
    assert baseline(known, known, known, seed=3) == first
    assert baseline(known, known, known, seed=4) != first
    with pytest.raises(ValueError, match="test needs documents and an answer for each, got 79 and 80"):
        baseline(known, known, (texts[1:], answers), seed=0)


@pytest.mark.parametrize("labels", [np.zeros(2), np.zeros((2, 0)), np.zeros((2, 3))], ids=["flat", "none", "others"])
def test_labels_of_another_shape_are_refused(labels):
    others = labels[:, :2] if labels.ndim > 1 else labels
    parts = (["a", "b"], labels), (["a", "b"], others), (["a", "b"], others)
    with pytest.raises(ValueError, match=r"labels must be of shape \(documents, labels\), got \(2,"):
        tfidf_multilabel_baseline(*parts, seed=0)

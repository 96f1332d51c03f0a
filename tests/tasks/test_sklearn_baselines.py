"""What scikit-learn alone makes of documents with one label each."""

import random
import warnings

import numpy as np
import pytest

from torch_linformer.tasks.baselines import sklearn_baselines


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


def test_words_alone():
    (known, labels), (scored, true) = corpus(360, 0), corpus(90, 1)
    found = sklearn_baselines([known, scored], labels)
    assert list(found) == ["tfidf"] and np.mean(found["tfidf"] == np.array(true)) > 0.95


def test_pairs_of_words_and_their_marks_are_told_apart():
    order = ["not good but bad", "not bad but good"]
    marks = ["पानी की बात", "पानी का बात"]
    for texts in (order, marks):
        assert sklearn_baselines([texts * 60, texts], [0, 1] * 60)["tfidf"].tolist() == [0, 1]


def test_text_without_spaces_and_names_with_underscores():
    texts = ["今日は雨が降る", "明日の試合に勝つ", "get_rain_mm", "set_goal_count"] * 10
    found = sklearn_baselines([texts, ["雨", "試合", "rain", "goal"]], ["weather", "sport"] * 20)
    assert found["tfidf"].tolist() == ["weather", "sport", "weather", "sport"]


def test_the_stack_has_words_and_vectors():
    """Half of the documents tell their label by a word, all by a vector that is right nine times of ten."""
    draw, parts = np.random.default_rng(0), []
    for documents in (400, 200):
        labels = draw.integers(2, size=documents)
        texts = [f"{('wet', 'dry')[label] if draw.random() < 0.5 else 'the'} of of" for label in labels]
        seen = np.where(draw.random(documents) < 0.9, labels, 1 - labels)
        states = np.stack([seen + draw.normal(scale=0.1, size=documents), draw.normal(size=documents)], axis=1)
        parts.append((texts, labels, states.astype(np.float32)))
    (known, labels, states), (scored, true, others) = parts
    found = sklearn_baselines([known, scored], labels.tolist(), [states, others])
    words, both = (np.mean(found[name] == true) for name in ("tfidf", "stack"))
    assert 0.6 < words < 0.9 < both
    assert found["tfidf"].tolist() == sklearn_baselines([known, scored], labels.tolist())["tfidf"].tolist()


def test_a_label_that_few_have():
    (known, labels), (scored, _) = corpus(120, 0), corpus(9, 1)
    states = [np.random.default_rng(len(part)).normal(size=(len(part), 3)) for part in (known, scored)]
    found = sklearn_baselines([known, scored], [*labels[:-1], "rare"], states)
    assert all(len(row) == 9 for row in found.values())


@pytest.mark.parametrize(
    ("texts", "labels"),
    [(["a b", "c d"], ["x", "x"]), (["...", "!?", ""], ["x", "x", "y"])],
    ids=["one label", "no words"],
)
def test_where_nothing_can_be_learned_the_majority_remains(texts, labels):
    assert sklearn_baselines([texts, ["", "of"]], labels)["tfidf"].tolist() == ["x", "x"]

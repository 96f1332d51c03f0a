"""Baselines that are honest and quiet."""

import random
import warnings

import numpy as np
import pytest
from datasets import Dataset

from torch_linformer.tasks.baselines import sklearn_baselines
from torch_linformer.tasks.language_modeling import CausalLanguageModeling, _first_bytes
from torch_linformer.tasks.metrics import tagging_metrics
from torch_linformer.tasks.tagging import Tagging
from torch_linformer.tasks.whole_documents import Classification, Regression


@pytest.fixture(autouse=True)
def _no_warning_escapes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def baseline(kind, known, scored):
    """The scores of a task's only baseline; it reads no tokens."""
    task = object.__new__(kind)
    task.seed = 0
    known, scored = (Dataset.from_dict(part) for part in (known, scored))
    (scores,) = task.baselines(known, scored).values()
    return scores


def test_majority_is_the_training_set_s():
    labels = {"label": ["a", "a", "b"]}, {"label": ["a", "b", "b", "b"]}
    assert baseline(Classification, *labels) == {"accuracy": 0.25}
    assert baseline(Classification, {"label": ["1"]}, {"label": ["2"]}) == {"accuracy": 0.0}


def test_the_mean_is_the_training_set_s():
    scores = baseline(Regression, {"label": [1.0, 2.0, 6.0]}, {"label": [3.0, 5.0]})
    assert (scores["mae"], scores["r2"], scores["pearson"]) == (1.0, -1.0, 0.0)


def test_each_word_is_given_its_most_frequent_tag():
    def documents(tags, *texts):
        ends = [np.cumsum([len(word) + 1 for word in text.split()]) - 1 for text in texts]
        starts = [[0, *(row[:-1] + 1)] for row in ends]
        return {"text": texts, "word_starts": starts, "word_ends": ends, "label": tags}

    tags = [["O", "B-Y", "B-X"], ["B-X", "O", "O", "O", "O"]]
    # a is B-X twice of three times, b is B-Y and O once each and was B-Y first, d is new: O is most frequent.
    true, expected = [["B-X"], ["O", "O", "B-X"]], [["B-X"], ["B-Y", "O", "O"]]
    scores = baseline(Tagging, documents(tags, "a b a", "a b c c c"), documents(true, "a", "b c d"))
    assert scores == {name: tagging_metrics(true, expected)[name] for name in ("f1", "accuracy")}


def test_what_training_documents_repeat_costs_few_bits():
    def bits(known, scored):
        return baseline(CausalLanguageModeling, {"text": [known]}, {"text": [scored]})["bits_per_byte"]

    rng = random.Random(0)
    known, other = ("".join(rng.choices("abcdefgh", k=20_000)) for _ in range(2))
    assert bits(known, known[5_000:15_000]) < 2.5
    assert bits(other, known[5_000:15_000]) == pytest.approx(3, rel=0.05)  # eight letters
    assert bits("é" * 9, "é") >= 0


def test_the_texts_compressed_are_the_first_that_a_model_is_scored_on():
    texts = ["a" * 10, "b" * 10, "c" * 10]
    order = "".join(texts[i][:4] for i in np.random.default_rng(5).permutation(3))
    assert _first_bytes(texts, 6, 5, most_of_each=4) == order[:6].encode()


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
    two = ["wet" if label == labels[0] else "dry" for label in labels]
    found = sklearn_baselines([known, scored], [*two[:-1], "rare"], states)  # a fold without it has only two labels
    assert [*found] == ["tfidf"] and len(found["tfidf"]) == 9


@pytest.mark.parametrize(
    ("texts", "labels"),
    [(["a b", "c d"], ["x", "x"]), (["...", "!?", ""], ["x", "x", "y"])],
    ids=["one label", "no words"],
)
def test_where_nothing_can_be_learned_the_majority_remains(texts, labels):
    assert sklearn_baselines([texts, ["", "of"]], labels)["tfidf"].tolist() == ["x", "x"]

"""Baselines that are honest and quiet."""

import random
import warnings

import numpy as np
import pytest

from torch_linformer.tasks import baselines as baselines
from torch_linformer.tasks.baselines import (
    compression_baseline,
    majority_baseline,
    mean_baseline,
    most_frequent_tag_baseline,
)
from torch_linformer.tasks.metrics import tagging_metrics


@pytest.fixture(autouse=True)
def _no_warning_escapes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_majority_is_the_training_set_s():
    assert majority_baseline(["a", "a", "b"], ["a", "b", "b", "b"]) == 0.25
    assert majority_baseline([1], [2]) == 0.0
    with pytest.raises(ValueError, match="both splits need answers, got 0 and 1"):
        majority_baseline([], ["a"])


def test_the_mean_is_the_training_set_s():
    assert mean_baseline([1, 2, 6], [3, 5])["mae"] == 1.0
    assert mean_baseline([1, 2, 6], [3, 5])["r2"] == -1.0
    assert mean_baseline([1], [1])["pearson"] == 0.0
    with pytest.raises(ValueError, match="both splits need answers, got 0 and 1"):
        mean_baseline([], [1])


def test_each_word_is_given_its_most_frequent_tag():
    words = [["a", "b", "a"], ["a", "b", "c", "c", "c"]]
    tags = [["B-X", "B-Y", "O"], ["B-X", "O", "O", "O", "O"]]
    # a is B-X twice of three times, b is B-Y and O once each and was B-Y first, d is new: O is most frequent.
    expected = [["B-X"], ["B-Y", "O", "O"]]
    true = [["B-X"], ["O", "O", "B-X"]]
    assert most_frequent_tag_baseline((words, tags), ([["a"], ["b", "c", "d"]], true)) == tagging_metrics(
        true, expected
    )


def test_what_training_documents_repeat_costs_few_bits():
    rng = random.Random(0)
    known, other = ("".join(rng.choices("abcdefgh", k=20_000)) for _ in range(2))
    assert compression_baseline([known], [known[5_000:15_000]], seed=0) < 2.5
    assert compression_baseline([other], [known[5_000:15_000]], seed=0) == pytest.approx(3, rel=0.05)  # eight letters
    assert compression_baseline(["é" * 9], ["é"], seed=0) >= 0


def test_the_texts_compressed_are_the_first_that_a_model_is_scored_on():
    texts = ["a" * 10, "b" * 10, "c" * 10]
    order = "".join(texts[i][:4] for i in np.random.default_rng(5).permutation(3))
    assert baselines._first_bytes(texts, 6, 5, most_of_each=4) == order[:6].encode()


def test_words_without_their_tags_are_refused():
    with pytest.raises(ValueError, match="train needs documents of words and a tag for each word, got 2 and 2"):
        most_frequent_tag_baseline(([["a", "b"], []], [["O"], ["O"]]), ([["a"]], [["O"]]))
    with pytest.raises(ValueError, match="test needs documents of words and a tag for each word, got 0 and 0"):
        most_frequent_tag_baseline(([["a"]], [["O"]]), ([[]], [[]]))

"""Scores against values worked out by hand."""

import json
import math
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rouge_score.rouge_scorer import RougeScorer
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import sequence_labeling as seqeval
from sklearn.metrics import accuracy_score, f1_score, log_loss, mean_absolute_error, mean_squared_error, r2_score

from torch_linformer.tasks.metrics import (
    answer_metrics,
    calibration_metrics,
    classification_metrics,
    is_more_than_chance,
    language_model_metrics,
    multilabel_metrics,
    paired_difference,
    regression_metrics,
    tagging_metrics,
    tally,
    target_metrics,
)


@pytest.fixture(autouse=True)
def _no_warning_escapes():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_scores_by_hand():
    # a: 2 true, both found, 1 false alarm. b: 3 true, 1 found. c: never true, predicted once. d: not there.
    scores = classification_metrics([0, 0, 1, 1, 1], [0, 0, 1, 0, 2], ["a", "b", "c", "d"])
    assert json.loads(json.dumps(scores)) == scores
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert scores["confusion_matrix"] == [[2, 0, 0, 0], [1, 1, 1, 0], [0, 0, 0, 0], [0, 0, 0, 0]]
    by_label = {entry.pop("label"): entry for entry in scores["per_label"]}
    assert by_label["a"] == pytest.approx({"precision": 2 / 3, "recall": 1.0, "f1": 0.8, "support": 2})
    assert by_label["b"] == pytest.approx({"precision": 1.0, "recall": 1 / 3, "f1": 0.5, "support": 3})
    assert by_label["c"] == by_label["d"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    assert scores["macro_f1"] == pytest.approx((0.8 + 0.5 + 0.0) / 3)  # c counts, d does not


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40))
def test_the_matrix_holds_every_document_once(pairs):
    true, predicted = zip(*pairs, strict=True)
    scores = classification_metrics(true, predicted, list("abcde"))
    matrix = scores["confusion_matrix"]
    assert sum(map(sum, matrix)) == len(pairs)
    assert [sum(row) for row in matrix] == [entry["support"] for entry in scores["per_label"]]
    assert sum(matrix[i][i] for i in range(5)) / len(pairs) == pytest.approx(scores["accuracy"])
    assert 0 <= scores["macro_f1"] <= 1


def test_entities_by_hand():
    true = [["B-PER", "I-PER", "O", "B-LOC"], ["B-LOC", "O"]]
    predicted = [["B-PER", "I-PER", "O", "B-PER"], ["B-LOC", "I-LOC"]]
    scores = tagging_metrics(true, predicted)
    # One of three entities found has the right ends and type; 4 of the 6 tags are right.
    assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx((1 / 3, 1 / 3, 1 / 3))
    assert scores["accuracy"] == pytest.approx(4 / 6)
    assert scores["per_label"] == [
        {"label": "LOC", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 2},
        {"label": "PER", "precision": 0.5, "recall": 1.0, "f1": pytest.approx(2 / 3), "support": 1},
    ]
    assert scores["macro_f1"] == pytest.approx(1 / 3)
    assert json.loads(json.dumps(scores)) == scores


def test_an_entity_ends_with_its_document_and_begins_at_an_inside_tag():
    assert tagging_metrics([["B-A"], ["I-A"]], [["I-A"], ["B-A"]])["f1"] == 1.0
    assert tagging_metrics([["B-A"], ["I-A"]], [["B-A"], ["I-A"]])["per_label"][0]["support"] == 2
    assert tagging_metrics([[], ["O", "B-A"]], [[], ["O", "O"]])["recall"] == 0.0


@pytest.mark.parametrize(
    "scheme",
    [
        ["B-A", "L-A", "U-A", "U-A", "O", "B-B", "I-B", "L-B"],
        ["B-A", "E-A", "S-A", "S-A", "O", "B-B", "M-B", "E-B"],
        ["B-A", "I-A", "B-A", "B-A", "O", "B-B", "I-B", "I-B"],
    ],
    ids=["BILOU", "BMES", "IOB"],
)
def test_schemes_spell_the_same_entities(scheme):
    supports = {entry["label"]: entry["support"] for entry in tagging_metrics([scheme], [scheme])["per_label"]}
    assert supports == {"A": 3, "B": 1}
    untyped = [tag[0] for tag in scheme]
    assert tagging_metrics([untyped], [untyped])["per_label"][0]["support"] == 4


def test_tags_without_prefixes_are_counted_by_the_token():
    # Three tags right of five; of NOUN and VERB 2 are right, 4 true and 3 predicted.
    true, predicted = [["NOUN", "VERB", "O"], ["NOUN", "VERB"]], [["NOUN", "VERB", "O"], ["O", "NOUN"]]
    scores = tagging_metrics(true, predicted)
    assert scores["accuracy"] == pytest.approx(3 / 5)
    assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx((2 / 3, 2 / 4, 4 / 7))
    assert [(entry["label"], entry["f1"], entry["support"]) for entry in scores["per_label"]] == [
        ("NOUN", 0.5, 2),
        ("VERB", pytest.approx(2 / 3), 2),
    ]
    assert scores["macro_f1"] == pytest.approx((1 / 2 + 2 / 3) / 2)


@pytest.mark.parametrize("letters", [["I", "S"], ["B", "N", "S"]])
def test_parts_of_speech_of_one_letter_are_no_entities(letters):
    assert [entry["label"] for entry in tagging_metrics([letters], [letters])["per_label"]] == letters


def test_nothing_but_outside_tags():
    scores = tagging_metrics([["O", "O"]], [["O", "O"]])
    assert scores.pop("accuracy") == 1.0
    assert scores == {"f1": 0.0, "precision": 0.0, "recall": 0.0, "macro_f1": 0.0, "per_label": []}


TAGS = st.sampled_from(["O", "B-A", "I-A", "B-B", "I-B", "E-A", "S-B", "B", "odd"])


@given(st.lists(st.lists(st.tuples(TAGS, TAGS), min_size=1, max_size=6), min_size=1, max_size=6))
def test_entities_are_those_of_seqeval(pairs):
    true, predicted = ([["O", "B-A", "O"], *([pair[side] for pair in row] for row in pairs)] for side in (0, 1))
    scores = tagging_metrics(true, predicted)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = seqeval.precision_recall_fscore_support(true, predicted, average="micro", zero_division=0)
        each = seqeval.precision_recall_fscore_support(true, predicted, average=None, zero_division=0)
    assert (scores["precision"], scores["recall"], scores["f1"]) == pytest.approx(theirs[:3])
    assert scores["accuracy"] == pytest.approx(seqeval.accuracy_score(true, predicted))
    assert scores["macro_f1"] == pytest.approx(np.mean(each[2]))
    ours = [[entry[key] for entry in scores["per_label"]] for key in ("precision", "recall", "f1", "support")]
    assert np.array(ours) == pytest.approx(np.array(each))


@pytest.mark.parametrize(
    ("golds", "predicted", "exact_match", "f1"),
    [
        (["The  Eiffel-Tower!"], "eiffeltower", 1.0, 1.0),
        (["a cat, an owl"], "Cat the OWL.", 1.0, 1.0),
        (["theatre"], "atre", 0.0, 0.0),
        (["Paris, France"], "in Paris", 0.0, 1 / 2),  # 1 shared word of 2 and 2
        (["b b c"], "b b b d", 0.0, 4 / 7),  # b counts twice
        (["x", "in Paris now", "Paris"], "in Paris", 0.0, 4 / 5),
        (["x", "Paris"], "paris", 1.0, 1.0),
        (["Paris"], "", 0.0, 0.0),
        ([], "", 1.0, 1.0),
        ([], "Paris", 0.0, 0.0),
        ([], "the .", 1.0, 1.0),
        (["the"], "", 1.0, 1.0),
        (["the", "Paris"], "", 0.0, 0.0),
    ],
)
def test_answers_by_hand(golds, predicted, exact_match, f1):
    assert answer_metrics([golds], [predicted]) == {"exact_match": exact_match, "f1": pytest.approx(f1)}


def test_questions_with_and_without_answers_are_told_apart():
    scores = answer_metrics([["Paris"], ["Paris, France"], [], [], []], ["Paris", "in Paris", "", "x", "y"])
    assert scores == pytest.approx(
        {
            "exact_match": 2 / 5,
            "f1": 2.5 / 5,
            "has_answer_exact_match": 1 / 2,
            "has_answer_f1": 1.5 / 2,
            "no_answer_accuracy": 1 / 3,
        }
    )
    assert json.loads(json.dumps(scores)) == scores


def test_regression_by_hand():
    # Errors 1, -1, 0, 2. Deviations from the means: -1.5, -0.5, 0.5, 1.5 and -1, -2, 0, 3. Two ranks differ by 1.
    scores = regression_metrics([1, 2, 3, 4], [2, 1, 3, 6])
    assert scores == pytest.approx(
        {"mse": 6 / 4, "mae": 4 / 4, "r2": 1 - 6 / 5, "pearson": 7 / math.sqrt(5 * 14), "spearman": 1 - 6 * 2 / 60}
    )
    assert json.loads(json.dumps(scores)) == scores


def test_equal_numbers_share_their_rank():
    # Ranks 1.5, 1.5, 3 and 1, 2, 3.
    assert regression_metrics([5, 5, 9], [1, 2, 80])["spearman"] == pytest.approx(math.sqrt(3) / 2)


@given(st.lists(st.tuples(st.integers(-9, 9), st.integers(-9, 9)), min_size=2, max_size=30))
def test_regression_is_that_of_scipy_and_sklearn(pairs):
    true, predicted = zip(*pairs, strict=True)
    scores = regression_metrics(true, predicted)
    assert scores["mse"] == pytest.approx(mean_squared_error(true, predicted))
    assert scores["mae"] == pytest.approx(mean_absolute_error(true, predicted))
    if len(set(true)) > 1:
        assert scores["r2"] == pytest.approx(r2_score(true, predicted))
    if len(set(true)) > 1 and len(set(predicted)) > 1:
        assert scores["pearson"] == pytest.approx(pearsonr(true, predicted).statistic, abs=1e-12)
        assert scores["spearman"] == pytest.approx(spearmanr(true, predicted).statistic, abs=1e-12)


@pytest.mark.parametrize(
    ("true", "predicted"), [([0.1] * 3, [0.3, 0.4, 0.5]), ([1.0], [2.0]), ([7, 7], [7, 7]), ([1e-200, 2e-200], [1, 2])]
)
def test_what_is_not_defined_is_zero(true, predicted):
    scores = regression_metrics(true, predicted)
    assert scores["r2"] == 0.0
    assert [scores["spearman"], scores["pearson"]] == pytest.approx([float(len(set(true)) > 1)] * 2)
    assert regression_metrics([0.3, 0.4, 0.5], [0.1] * 3)["pearson"] == 0.0  # the mean of three 0.1 is not 0.1


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300])
def test_predictions_of_a_model_that_has_diverged_are_scored_without_a_sound(value):
    assert not math.isfinite(regression_metrics([1, 2, 3], [1, value, 2])["mse"])


def test_several_labels_by_hand():
    true = np.array([[1, 1, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]])
    predicted = np.array([[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]])
    scores = multilabel_metrics(true, predicted, ["a", "b", "c", "d"])
    assert scores.pop("per_label") == [
        {"label": "a", "precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 1},
        {"label": "b", "precision": 1.0, "recall": 0.5, "f1": pytest.approx(2 / 3), "support": 2},
        {"label": "c", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0},
        {"label": "d", "precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0},
    ]
    # 2 right of 3 predicted and 3 true; c counts in the mean, d does not.
    assert scores == pytest.approx({"micro_f1": 2 / 3, "macro_f1": (1 + 2 / 3 + 0) / 3, "exact_match": 1 / 3})
    assert json.loads(json.dumps(scores)) == scores


def test_several_labels_where_some_are_unknown():
    """Each label is scored on the documents of which it is known, and documents by the labels that are."""
    true = np.array([[1, np.nan], [0, 1], [np.nan, 0], [1, 0]])
    predicted = np.array([[1, 1], [1, 1], [1, 0], [0, 0]])
    scores = multilabel_metrics(true, predicted, ["a", "b"])
    known = [(true[rows, label].astype(int), predicted[rows, label]) for label, rows in enumerate(~np.isnan(true).T)]
    assert [row["f1"] for row in scores["per_label"]] == [f1_score(*sides) for sides in known]
    assert [row["support"] for row in scores["per_label"]] == [2, 1]
    assert scores["micro_f1"] == f1_score(*map(np.concatenate, zip(*known, strict=True)))
    assert scores["exact_match"] == 2 / 4
    assert json.loads(json.dumps(scores)) == scores


def test_several_labels_of_which_none_occurs():
    scores = multilabel_metrics(np.zeros((3, 2)), np.zeros((3, 2)), ["a", "b"])
    assert (scores["micro_f1"], scores["macro_f1"], scores["exact_match"]) == (0.0, 0.0, 1.0)


@given(st.integers(2, 4).flatmap(lambda n: st.lists(st.lists(st.integers(0, 1), min_size=2 * n, max_size=2 * n))))
def test_several_labels_are_scored_as_by_sklearn(rows):
    if not rows:
        return
    true, predicted = np.split(np.array(rows), 2, axis=1)
    labels = true.shape[1]
    scores = multilabel_metrics(true, predicted, [str(label) for label in range(labels)])
    each = f1_score(true, predicted, average=None, zero_division=0)
    assert scores["micro_f1"] == pytest.approx(f1_score(true, predicted, average="micro", zero_division=0))
    assert [entry["f1"] for entry in scores["per_label"]] == pytest.approx(each)
    assert scores["exact_match"] == pytest.approx(accuracy_score(true, predicted))


def test_a_language_model_by_hand():
    # Two tokens of probability 1/4 and 1/16: 6 bits together, over 8 bytes.
    scores = language_model_metrics(math.log(4) + math.log(16), 2, 8)
    assert scores == pytest.approx({"perplexity": 8.0, "bits_per_byte": 0.75})


def test_a_perfect_and_a_hopeless_language_model():
    assert language_model_metrics(0.0, 5, 9) == {"perplexity": 1.0, "bits_per_byte": 0.0}
    assert language_model_metrics(1e6, 1, 4)["perplexity"] == math.inf
    assert math.isnan(language_model_metrics(math.nan, 1, 4)["perplexity"])


@pytest.mark.parametrize(("tokens", "size"), [(0, 4), (3, 0)])
def test_a_language_model_that_predicted_nothing_is_refused(tokens, size):
    with pytest.raises(ValueError, match=f"nothing was predicted: got {tokens} tokens of {size} bytes"):
        language_model_metrics(1.0, tokens, size)


def test_written_texts_by_hand():
    assert target_metrics(["The cat sat.", "x"], ["the  cat sat", "x"])["rouge_l"] == 1.0
    # The longest common subsequence of "a b c d" and "a c x" is "a c": recall 2/4, precision 2/3.
    assert target_metrics(["a b c d"], ["a c x"])["rouge_l"] == pytest.approx(4 / 7)
    assert target_metrics(["Он идёт домой"], ["он идёт"])["rouge_l"] == pytest.approx(4 / 5)
    assert target_metrics(["की में"], ["का में"])["rouge_l"] == pytest.approx(1 / 2)
    assert target_metrics(["a"], [""]) == {"chrf": 0.0, "rouge_l": 0.0}
    # "ab" and "abc": unigrams 2 of 2 and 2 of 3, bigrams 1 of 1 and 1 of 2, the mean of the orders that both have.
    precision, recall = (2 / 3 + 1 / 2) / 2, 1.0
    assert target_metrics(["ab"], ["abc"])["chrf"] == pytest.approx(5 * precision * recall / (4 * precision + recall))


@given(st.lists(st.tuples(*[st.text("ab .", max_size=9)] * 2), min_size=1, max_size=4))
def test_rouge_is_that_of_rouge_score_on_plain_letters(pairs):
    scorer = RougeScorer(["rougeL"])
    theirs = [scorer.score(*pair)["rougeL"].fmeasure for pair in pairs]
    assert target_metrics(*map(list, zip(*pairs, strict=True)))["rouge_l"] == pytest.approx(float(np.mean(theirs)))


@pytest.mark.parametrize(
    ("highest", "right", "ece", "bins"),
    [
        ([1.0, 1.0], [True, True], 0.0, 1),
        ([1.0, 1.0], [True, False], 0.5, 1),
        ([0.9, 0.9, 0.6], [True, False, True], (2 * 0.4 + 0.4) / 3, 2),
        ([0.81, 0.85], [True, False], 0.33, 1),  # one bin, from 12/15 to 13/15: its means are compared
        ([0.79, 0.81], [True, False], (0.21 + 0.81) / 2, 2),  # 12/15 divides them
        ([0.8, 0.75], [True, False], 0.275, 1),  # a bin has its upper edge
    ],
)
def test_the_error_is_the_mean_distance_of_bins(highest, right, ece, bins):
    probabilities = np.array([[p, 1 - p] for p in highest])
    labels = [0 if is_right else 1 for is_right in right]
    scores = calibration_metrics(labels, probabilities)
    assert scores["ece"] == pytest.approx(ece)
    assert len(scores["reliability"]) == bins and sum(row["documents"] for row in scores["reliability"]) == len(right)
    assert json.loads(json.dumps(scores)) == scores


def test_the_loss_is_that_of_the_true_labels():
    probabilities = np.array([[0.7, 0.2, 0.1], [0.1, 0.1, 0.8], [0.25, 0.5, 0.25]])
    scores = calibration_metrics([0, 2, 2], probabilities)
    assert scores["nll"] == pytest.approx(log_loss([0, 2, 2], probabilities, labels=range(3)))
    assert scores["nll"] == pytest.approx(-(math.log(0.7) + math.log(0.8) + math.log(0.25)) / 3)
    assert math.isfinite(calibration_metrics([1], np.array([[1.0, 0.0]]))["nll"])


DRAW = np.random.default_rng(0)
LABELS = DRAW.integers(3, size=(2, 200))
SETS = (DRAW.random((2, 200, 4)) < 0.4).astype(int)
UNKNOWN = np.where(DRAW.random((200, 4)) < 0.3, np.nan, SETS[0])
NUMBERS = DRAW.normal(size=(2, 200))


@pytest.mark.parametrize(
    ("score", "answers", "metrics"),
    [
        ("accuracy", LABELS, lambda true, given: classification_metrics(true, given, "abc")),
        ("macro_f1", LABELS, lambda true, given: classification_metrics(true, given, "abc")),
        ("micro_f1", SETS, lambda true, given: multilabel_metrics(true, given, "abcd")),
        ("micro_f1", (UNKNOWN, SETS[1]), lambda true, given: multilabel_metrics(true, given, "abcd")),
        ("mse", NUMBERS, regression_metrics),
    ],
)
def test_the_sums_of_the_documents_give_the_score(score, answers, metrics):
    of, out_of = tally(score, *answers).sum(axis=0)
    assert of / out_of == pytest.approx(metrics(*answers)[score])


@pytest.mark.parametrize("score", ["accuracy", "micro_f1"])
def test_the_error_is_that_of_drawing_the_documents_again(score):
    true = DRAW.random((300, 3)) < 0.3
    one, other = (np.where(DRAW.random(true.shape) < share, true, ~true) for share in (0.8, 0.75))
    if score == "accuracy":
        true, one, other = (side[:, 0] for side in (true, one, other))
    first, second = tally(score, true, one), tally(score, true, other)
    difference, error = paired_difference(first, second)
    drawn = draws(300, 2000)
    again = [np.divide(*first[rows].sum(axis=0)) - np.divide(*second[rows].sum(axis=0)) for rows in drawn]
    assert difference == pytest.approx(np.divide(*first.sum(axis=0)) - np.divide(*second.sum(axis=0)))
    assert error == pytest.approx(np.std(again), rel=0.08)


def test_the_error_of_macro_f1_is_that_of_drawing_the_documents_again():
    true = DRAW.integers(4, size=400)
    one, other = (np.where(DRAW.random(400) < share, true, DRAW.integers(4, size=400)) for share in (0.7, 0.6))
    difference, error = paired_difference(tally("macro_f1", true, one), tally("macro_f1", true, other))
    f1 = [[f1_score(true[rows], given[rows], average="macro") for given in (one, other)] for rows in draws(400, 500)]
    assert difference == pytest.approx(f1_score(true, one, average="macro") - f1_score(true, other, average="macro"))
    assert error == pytest.approx(np.std(np.diff(f1)), rel=0.1)


def draws(documents, number):
    return [DRAW.integers(documents, size=documents) for _ in range(number)]


def test_two_standard_errors_are_more_than_chance_either_way():
    assert is_more_than_chance(0.021, 0.01) and is_more_than_chance(-0.021, 0.01)
    assert not is_more_than_chance(0.02, 0.01) and not is_more_than_chance(0.0, 0.0)


def test_what_is_hard_for_both_says_nothing():
    counted = tally("accuracy", LABELS[0], LABELS[1])
    assert paired_difference(counted, counted) == (0.0, 0.0)
    better = counted.copy()
    better[:8, 0] = 1
    difference, error = paired_difference(better, counted)
    alone = np.sqrt(counted[:, 0].var() / 200 + better[:, 0].var() / 200)
    assert difference > 0 and error < alone / 2

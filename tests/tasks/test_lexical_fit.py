"""A fitted lexical head gives what scikit-learn gives on the same tokens and pairs."""

import random
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import Ridge

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models.lexical_parts import LexicalHead
from torch_linformer.tasks.lexical_fit import (
    NUMBER,
    ONE,
    SEVERAL,
    HeadChoice,
    Labeled,
    buckets_for,
    choose_head,
    fit_head,
)
from torch_linformer.tasks.linear_classifiers import LinearClassifier, RidgeRegression

USUAL = LinearClassifier()
WORDS = ["warm", "sand", "sea", "wet", "grey", "mud", "ice", "cold", "white", "the", "of", "and"]


@pytest.fixture(scope="module")
def texts():
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(3, 12))) for _ in range(150)]


@pytest.fixture(scope="module")
def encoder(texts):
    return DocumentEncoder(build_tokenizer("bpe:400", texts, max_length=64), 64)


@pytest.fixture(scope="module")
def tokenizer(texts):
    return build_tokenizer("bpe:400", texts, max_length=64)


def fitted(tokenizer, encoder, texts, known, problem, labels, buckets=4096, model=USUAL, **options):
    head = LexicalHead(len(tokenizer), buckets, labels)
    fit_head(head, tokenizer, Labeled(encoder.ids(texts), known), problem, HeadChoice(True, model, 2.0), **options)
    return head


@torch.no_grad()
def logits(head, encoder, texts):
    return torch.cat([head(torch.tensor([ids])) for ids in encoder.ids(texts)]).double().numpy()


def by_scikit_learn(texts, others):
    """TF-IDF of single words and of the pairs that two documents have."""
    pairs = [{" ".join(pair) for pair in pairwise(text.split())} for text in texts]
    known = sorted({pair for row in pairs for pair in row if sum(pair in others_ for others_ in pairs) >= 2})
    vectorizer = TfidfVectorizer(vocabulary=[*WORDS, *known], ngram_range=(1, 2), sublinear_tf=True)
    return vectorizer.fit_transform(texts), vectorizer.transform(others)


@pytest.mark.parametrize("labels", [2, 3])
@pytest.mark.parametrize("model", [LinearClassifier(cost=3.0), LinearClassifier("logistic", 30.0, ratios=True)])
def test_one_label(tokenizer, encoder, texts, labels, model):
    """What the model makes of scikit-learn's TF-IDF of the same words and pairs, times the factor of the logits."""
    known = [len(text) % labels for text in texts]
    head = fitted(tokenizer, encoder, texts[:120], known[:120], ONE, labels, model=model)
    features, others = by_scikit_learn(texts[:120], texts[120:])
    expected = model.fit(features, np.eye(labels, dtype=int)[known[:120]]).decisions(others)
    np.testing.assert_allclose(logits(head, encoder, texts[120:]), 2 * expected, atol=5e-3)


def test_several_labels_and_those_that_none_or_all_have(tokenizer, encoder, texts):
    known = np.array([["sea" in text, "mud" in text, False, True] for text in texts]).astype(float)
    head = fitted(tokenizer, encoder, texts[:120], known[:120], SEVERAL, 4)
    features, others = by_scikit_learn(texts[:120], texts[120:])
    found = logits(head, encoder, texts[120:])
    expected = LinearClassifier().fit(features, known[:120]).decisions(others)
    np.testing.assert_allclose(found, 2 * expected, atol=5e-3)
    assert (found[:, 2] < -5).all() and (found[:, 3] > 5).all()


def test_a_label_is_learned_from_the_documents_of_which_it_is_known(tokenizer, encoder, texts):
    """As if the others were not there, their words aside."""
    known = np.array([["sea" in text, "mud" in text, True] for text in texts]).astype(float)
    unknown = np.arange(120) % 3 == 0
    known[:120, 1][unknown] = known[:, 2] = np.nan
    head = fitted(tokenizer, encoder, texts[:120], known[:120], SEVERAL, 3)
    features, others = by_scikit_learn(texts[:120], texts[120:])
    expected = np.hstack(
        [
            LinearClassifier().fit(features[rows], known[:120][rows][:, [label]]).decisions(others)
            for label, rows in ((0, unknown >= 0), (1, ~unknown))
        ]
    )
    found = logits(head, encoder, texts[120:])
    np.testing.assert_allclose(found[:, :2], 2 * expected, atol=5e-3)
    assert (found[:, 2] < -5).all()  # nobody knows it of any


def test_a_number(tokenizer, encoder, texts):
    known = [float(len(text)) for text in texts]
    head = fitted(tokenizer, encoder, texts[:120], known[:120], NUMBER, 1, model=RidgeRegression())
    features, others = by_scikit_learn(texts[:120], texts[120:])
    expected = Ridge().fit(features, known[:120]).predict(others)
    np.testing.assert_allclose(logits(head, encoder, texts[120:])[:, 0], 2 * expected, rtol=1e-4)


def chosen(tokenizer, encoder, parts, problem, labels, **options):
    labeled = [Labeled(encoder.ids(texts), known) for texts, known in parts]
    return choose_head(tokenizer, (len(tokenizer), labels), *labeled, problem, **options)


def test_pairs_are_counted_where_the_order_of_words_tells(tokenizer, encoder, texts):
    order = ["the warm sea and mud", "the warm mud and sea"] * 40, [0, 1] * 40
    assert chosen(tokenizer, encoder, (order, order), ONE, 2).pairs
    words = ["warm sand sea", "ice cold white"] * 40, [0, 1] * 40
    found = chosen(tokenizer, encoder, (words, words), ONE, 2)
    assert not found.pairs and str(found) == "tokens: squared hinge, C = 1"


def test_the_factor_makes_the_validation_documents_likely(tokenizer, encoder, texts):
    """Labels that are right in two of three documents make the logits small, and clear ones large."""
    words = ["warm sand sea", "ice cold white", "wet grey mud"] * 30
    clear = words, [0, 1, 2] * 30
    blurred = words, [0, 1, 2] * 20 + [1, 2, 0] * 10
    factors = [chosen(tokenizer, encoder, (clear, part), ONE, 3).scale for part in (clear, blurred)]
    assert 12 > factors[0] > 2 * factors[1]  # however clear they are
    several = [(words, np.eye(3)[known]) for _, known in (clear, blurred)]
    factors = [chosen(tokenizer, encoder, (several[0], part), SEVERAL, 3).scale for part in several]
    assert factors[0] > 2 * factors[1]
    partly = [(words, np.hstack([known, np.full_like(known, np.nan)])) for words, known in several]
    unlike = [chosen(tokenizer, encoder, (partly[0], part), SEVERAL, 6).scale for part in partly]
    assert unlike == pytest.approx(factors, rel=1e-4)


def test_the_penalty_of_numbers_is_chosen(tokenizer, encoder, texts):
    part = texts, [float(text.split().count("sea")) for text in texts]
    found = chosen(tokenizer, encoder, (part, part), NUMBER, 1)
    assert found.scale == 1.0 and found.model == RidgeRegression(0.1)


def test_a_label_that_is_missing_is_never_the_answer(tokenizer, encoder, texts):
    known = [2 * (len(text) % 2) for text in texts]
    assert set(logits(fitted(tokenizer, encoder, texts, known, ONE, 4), encoder, texts).argmax(-1)) == {0, 2}
    alone = fitted(tokenizer, encoder, texts, [1] * len(texts), ONE, 3)
    assert set(logits(alone, encoder, texts).argmax(-1)) == {1}


def test_rare_labels_with_more_weight(tokenizer, encoder, texts):
    known = [int(text.startswith("sea")) for text in texts]
    plain, balanced = (
        logits(
            fitted(
                tokenizer, encoder, texts, known, ONE, 2, model=LinearClassifier("logistic", 30.0), balanced=balanced
            ),
            encoder,
            texts,
        )
        for balanced in (False, True)
    )
    assert (balanced[:, 1] - balanced[:, 0]).mean() > (plain[:, 1] - plain[:, 0]).mean() + 0.5


def test_case_spaces_and_punctuation_do_not_count(tokenizer, encoder, texts):
    head = fitted(tokenizer, encoder, texts, [len(text) % 2 for text in texts], ONE, 2, buckets=0)
    same = logits(head, encoder, ["wet sea", " WET, (Sea) ...", "wet; sea!"])
    # Letters that the tokenizer has only seen small are bytes of their own, which are counted as the small ones too.
    np.testing.assert_allclose(same[2], same[0])
    assert head.counts_as[tokenizer.all_special_ids].tolist() == [-1] * len(tokenizer.all_special_ids)
    upper, lower = (tokenizer.convert_tokens_to_ids(letter) for letter in "Ww")
    assert head.counts_as[upper] == head.counts_as[lower] != -1


def test_pairs_of_many_documents_come_first(tokenizer, encoder):
    texts = ["wet sea mud"] * 3 + ["wet sea"] * 5 + ["grey ice"] * 2
    head = fitted(tokenizer, encoder, texts, [0, 1] * 5, ONE, 2, buckets=1)
    ids = encoder.ids(["wet sea"])[0]
    counted = head.counts_as[torch.tensor(ids)]
    assert int(head.pairs[0]) in {int(head.codes(one, other)) for one, other in pairwise(counted)}


def test_buckets_leave_room_for_labels():
    assert [buckets_for(tokens, 8192, 2) for tokens in (5, 9_000, 10**9)] == [2**10, 2**13, 2**18]
    assert (8192 + buckets_for(10**9, 8192, 500)) * 500 <= 10_000_000
    assert buckets_for(10**9, 50_000, 10_000) == 2**10


def test_documents_without_words(tokenizer, encoder):
    head = fitted(tokenizer, encoder, ["...", "", "!!", "?"], [0, 1, 1, 1], ONE, 2)
    assert set(logits(head, encoder, ["..."]).argmax(-1)) == {1}

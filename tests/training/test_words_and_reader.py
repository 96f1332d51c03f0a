"""Two parts of a model, each judged by fits that have not seen a document, and weighed by what that says."""

import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.tasks.linear_classifiers import LinearClassifier, Weights
from torch_linformer.tasks.word_features import WordCounts
from torch_linformer.training import words_and_reader
from torch_linformer.training.words_and_reader import (
    LEAST,
    RIDGES,
    LinearPart,
    Targets,
    fit_factors,
    fit_reader,
    fit_words,
    weigh,
)

NUMBER = 120


def cross_entropy(logits, labels):
    return F.cross_entropy(logits.float(), labels)


def cross_entropy_of_several(logits, labels):
    known = ~labels.isnan()
    return F.binary_cross_entropy_with_logits(logits.float()[known], labels[known])


def square(logits, labels):
    return F.mse_loss(logits.float().squeeze(-1), labels)


@pytest.fixture
def labels():
    return torch.randint(3, (NUMBER,), generator=torch.Generator().manual_seed(0))


@pytest.fixture
def targets(labels):
    return Targets(labels, 3, cross_entropy, seed=1)


def noisy(labels, scale, seed, classes=3):
    """Logits that know the labels a little."""
    draw = torch.Generator().manual_seed(seed)
    return F.one_hot(labels, classes).double() + scale * torch.randn(len(labels), classes, generator=draw).double()


def part(name, judged):
    return LinearPart(name, "", judged, judged[:4], None)


def test_folds_judge_each_document_once_and_keep_the_shares_of_labels(targets, labels):
    judged = np.concatenate([rows for _, rows in targets.folds])
    assert sorted(judged.tolist()) == list(range(NUMBER)) == sorted(targets.judged.tolist())
    expected = StratifiedKFold(5, shuffle=True, random_state=1).split(np.zeros(NUMBER), targets.known)
    for (learned, rows), (others, expected_rows) in zip(targets.folds, expected, strict=True):
        assert not set(learned) & set(rows) and rows.tolist() == expected_rows.tolist() == rows.tolist()
        assert others.tolist() == learned.tolist()
    assert torch.equal(targets.known, labels[torch.from_numpy(targets.judged)])


@pytest.mark.parametrize("groups", ["few", "each its own"])
def test_documents_of_a_group_stay_together(labels, groups):
    of = [f"g{number % 7}" if groups == "few" else f"g{number}" for number in range(NUMBER)]
    targets = Targets(labels, 3, cross_entropy, groups=of)
    for learned, rows in targets.folds:
        shared = {of[targets.judged[row]] for row in learned} & {of[targets.judged[row]] for row in rows}
        assert not shared
    assert len(targets.folds) == 5


@pytest.mark.parametrize("labels", [[0, 1], [0, 1, 2, 0], [0, 0, 0, 1]])
def test_few_documents_have_folds(labels):
    targets = Targets(torch.tensor(labels), 3, cross_entropy)
    assert sum(len(rows) for _, rows in targets.folds) == len(labels) and len(targets.folds) <= len(labels)


def test_the_best_factors():
    labels = torch.randint(2, (400,), generator=torch.Generator().manual_seed(3))
    logits = noisy(labels, 1.0, 5, classes=2) * 0.01
    (factor,), bias, loss = fit_factors([logits], cross_entropy, labels)
    tried = [cross_entropy(logits * factor * by + bias, labels).item() for by in (0.8, 0.9, 1.1, 1.25)]
    assert factor > 50 and loss < min(tried), "the spread of the logits makes no difference"
    assert loss == pytest.approx(cross_entropy(logits * factor + bias, labels).item())


def test_a_bias_that_is_wrong_is_made_right():
    """As one is that a support vector machine gives rare labels."""
    labels = torch.randint(2, (400,), generator=torch.Generator().manual_seed(3))
    logits = noisy(labels, 1.0, 5, classes=2)
    wrong = logits + torch.tensor([3.0, 0.0])
    loss = fit_factors([wrong], cross_entropy, labels).loss
    assert loss == pytest.approx(fit_factors([logits], cross_entropy, labels).loss, abs=0.02)
    assert loss < min(cross_entropy(wrong * factor, labels).item() for factor in np.linspace(0.1, 2, 20)) - 0.05


def test_a_part_that_knows_nothing_has_little_weight_and_one_that_errs_has_none(targets, labels):
    known = labels[torch.from_numpy(targets.judged)]
    knows, noise = part("words", noisy(known, 0.5, 0)), part("noise", torch.randn(NUMBER, 3).double())
    errs = part("errs", noisy((known + 1) % 3, 0.5, 1))
    factors = [each.factor for each in weigh([knows, noise, errs], targets)]
    assert factors[0] > 1 and abs(factors[1]) < 0.15 * factors[0] and factors[2] == 0
    assert weigh([errs], targets)[0].factor == pytest.approx(LEAST / float(errs.judged.std())), "its order stays"


def test_two_parts_are_better_than_each(targets, labels):
    known = labels[torch.from_numpy(targets.judged)]
    parts = [part(str(seed), noisy(known, 1.0, seed)) for seed in range(2)]
    both = weigh(parts, targets)
    assert targets.loss(*(each.judged for each in parts)) < min(targets.loss(each.judged) for each in parts) - 0.05
    summed = sum(each.judged for each in both)
    assert cross_entropy(summed, targets.known).item() == pytest.approx(
        targets.loss(*(p.judged for p in parts)), abs=1e-6
    )
    assert_close(both[0].unseen, parts[0].unseen * both[0].factor + both[0].bias)
    assert_close(both[1].unseen, parts[1].unseen * both[1].factor)


def states_of(labels, channels=6, seed=0):
    draw = torch.Generator().manual_seed(seed)
    states = torch.randn(len(labels), channels, generator=draw)
    states[:, :3] += 1.5 * F.one_hot(labels, 3)
    return states * torch.tensor([1.0, 2.0, 0.1, 30.0, 1.0, 1.0]) + 5


def test_the_reader_is_the_best_ridge_regression_on_standardized_states(targets, labels, monkeypatch):
    monkeypatch.setattr(words_and_reader, "RIDGES", (0.1,))
    states, unseen = states_of(labels), states_of(labels[:30], seed=9)
    found = fit_reader(states, unseen, targets)
    z = (states - states.mean(0)) / states.std(0, correction=0)
    learned, rows = targets.folds[0]
    model = LogisticRegression(C=1 / (0.1 * len(learned)), tol=1e-8, max_iter=1000)  # in folds and among all the same
    expected = model.fit(z, labels)
    logits = torch.from_numpy(expected.decision_function((unseen - states.mean(0)) / states.std(0, correction=0)))
    assert_close(
        found.unseen - found.unseen.mean(1, True), logits.float() - logits.float().mean(1, True), atol=2e-3, rtol=1e-2
    )
    weight, bias = found.layer
    assert_close(found.unseen, unseen @ weight.T + bias)
    order = torch.from_numpy(targets.judged)
    by_fold = model.fit(z[order][learned], labels[order][learned]).decision_function(z[order][rows])
    by_fold = torch.from_numpy(by_fold).float()
    judged = found.judged[rows]
    assert_close(judged - judged.mean(1, True), by_fold - by_fold.mean(1, True), atol=2e-3, rtol=1e-2)


def test_the_ridge_is_chosen_by_cross_validation(targets, labels):
    chosen = fit_reader(states_of(labels), states_of(labels), targets)
    losses = {}
    for ridge in RIDGES:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(words_and_reader, "RIDGES", (ridge,))
            losses[f"ridge {ridge:g}"] = targets.loss(fit_reader(states_of(labels), states_of(labels), targets).judged)
    assert losses[chosen.chosen] < min(losses.values()) + 1e-4


def test_a_channel_that_is_all_but_constant_has_no_weight(targets, labels):
    states = states_of(labels)
    states[:, 4] = 7 + 1e-5 * states[:, 4]
    weight, _ = fit_reader(states, states, targets).layer
    assert weight[:, 4].abs().max() == 0 and weight.isfinite().all()


def test_numbers(labels):
    numbers = (labels.float() - 1) + 0.1 * torch.randn(NUMBER, generator=torch.Generator().manual_seed(2))
    targets = Targets(numbers, 1, square)
    states = states_of(labels)
    found = fit_reader(states, states, targets)
    assert square(found.judged, targets.known) < 0.6 * numbers.var()
    (weighed,) = weigh([found], targets)
    assert square(weighed.judged, targets.known) <= square(found.judged, targets.known) + 1e-4


TOPICS = ["sun sand sea", "rain wet mud", "ice cold snow"]


@pytest.fixture(scope="module")
def texts():
    draw = random.Random(0)
    labels = [draw.randrange(3) for _ in range(NUMBER)]
    words = [[*TOPICS[label].split(), *["the", "of", "and"]] for label in labels]
    return [" ".join(draw.choices(those, k=6)) for those in words], torch.tensor(labels)


@pytest.fixture(scope="module")
def counted(texts):
    tokenizer = build_tokenizer("bpe:300", texts[0], max_length=64)
    ids = DocumentEncoder(tokenizer, 64).ids([*texts[0], *TOPICS])
    return WordCounts(tokenizer, len(tokenizer), ids, NUMBER, characters=False), ids


def test_words_are_judged_by_fits_that_have_not_seen_them(texts, counted, monkeypatch):
    model = LinearClassifier()
    monkeypatch.setattr(words_and_reader, "CLASSIFIERS", (model,))
    counts, ids = counted
    targets = Targets(texts[1], 3, cross_entropy)
    found = fit_words(counts, targets)
    kind = found.chosen.split(":")[0]
    x, columns = counts.features(kind, 3).x, targets.columns
    for learned, rows in targets.folds:
        learned, rows = targets.judged[learned], targets.judged[rows]
        decisions = model.fit(x[learned], columns[learned]).decisions(x[rows])
        where = [targets.judged.tolist().index(row) for row in rows]
        np.testing.assert_allclose(found.judged[where], decisions, atol=1e-9)
    everything = model.fit(x[:NUMBER], columns).decisions(x[NUMBER:])
    np.testing.assert_allclose(found.unseen, everything, atol=1e-9)
    assert found.unseen.argmax(1).tolist() == [0, 1, 2] and isinstance(found.layer, LexicalHead)
    by_head = torch.cat([found.layer(torch.tensor([row])) for row in ids[NUMBER:]])
    assert_close(by_head.double(), found.unseen, atol=1e-4, rtol=1e-4)


@dataclass(frozen=True)
class Guess:
    """Knows nothing of the features."""

    def fit(self, features, targets, *, balanced=False):
        return Weights(np.zeros((targets.shape[1], features.shape[1])), np.zeros(targets.shape[1]))


def test_the_words_model_is_the_one_with_the_least_loss_out_of_fold(texts, counted, monkeypatch):
    good, bad = LinearClassifier(), Guess()
    targets = Targets(texts[1], 3, cross_entropy)
    for models in ((bad, good), (good, bad)):
        monkeypatch.setattr(words_and_reader, "CLASSIFIERS", models)
        assert fit_words(counted[0], targets).chosen.endswith(str(good))


def test_several_labels_some_of_them_unknown(texts, counted):
    known = F.one_hot(texts[1], 3).float()
    known[::7, 1] = torch.nan
    targets = Targets(known, 3, cross_entropy_of_several)
    words = fit_words(counted[0], targets)
    reader = fit_reader(states_of(texts[1]), states_of(texts[1]), targets)
    both = weigh([words, reader], targets)
    assert all(each.judged.isfinite().all() and each.factor >= 0 for each in both)
    assert words.unseen.argmax(1).tolist() == [0, 1, 2]


def test_numbers_by_words(texts, counted):
    numbers = texts[1].float() - 1
    found = fit_words(counted[0], Targets(numbers, 1, square))
    assert "ridge" in found.chosen
    assert np.corrcoef(found.judged[:, 0], numbers[Targets(numbers, 1, square).judged])[0, 1] > 0.8
    assert isinstance(found.layer, LexicalHead)


def test_of_many_documents_some_choose(monkeypatch):
    monkeypatch.setattr(words_and_reader, "searched", lambda labels: 40)
    labels = torch.arange(90) % 3
    targets = Targets(labels, 3, cross_entropy)
    assert len(targets.judged) == 40 == sum(len(rows) for _, rows in targets.folds)
    found = fit_reader(states_of(labels), states_of(labels[:5]), targets)
    assert found.judged.shape == (40, 3) and found.unseen.shape == (5, 3)

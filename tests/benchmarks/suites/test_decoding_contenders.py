"""Contenders of decoding: the past they have read, what a step adds to it, and that every step is the same."""

from dataclasses import replace
from operator import attrgetter

import pytest
import torch

from runner.suite import Case
from runner.timing import Step
from suites import decoding

NAME = attrgetter("name")
CASE = Case(step="decoding", length=133, k=7, batch=2, width=24, heads=3, layers=2, feedforward=48)
CONTENDERS = decoding.contenders()
OURS, TWIN = CONTENDERS


def step(contender, **changes):
    return Step(contender, replace(CASE, k=CASE.k if contender.has_slots else 0, **changes))


@pytest.mark.parametrize("contender", CONTENDERS, ids=NAME)
@pytest.mark.parametrize("piece", [50, 1024])
def test_a_token_behind_a_past_is_scored_as_in_one_pass(contender, piece, monkeypatch):
    monkeypatch.setattr(decoding, "PIECE", piece)
    made = step(contender)
    output = made.run()
    assert output.shape == (2, 1, decoding.VOCABULARY)
    made.check(output)
    assert made.workload.expected is not None


@pytest.mark.parametrize("contender", CONTENDERS, ids=NAME)
def test_the_past_is_seen(contender):
    """Other tokens long before change the scores: nothing is compared with a model that forgot them."""
    made = step(contender)
    torch.manual_seed(0)
    alone = made.workload.module(*made.workload.inputs, use_cache=False).logits
    assert (made.run() - alone).abs().max() > 1e-3


@pytest.mark.parametrize("contender", CONTENDERS, ids=NAME)
def test_every_step_begins_at_the_same_past(contender):
    made, seen = step(contender), []
    hook = made.workload.module.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["past_key_values"].tokens.tolist()), with_kwargs=True
    )
    first, second = made.run(), made.run()
    hook.remove()
    assert seen == [[133, 133], [133, 133]]
    assert torch.equal(first, second)


@pytest.mark.parametrize("length", [70, 133])
def test_what_is_kept(length):
    """Ours: K means of keys and values with their masses, 63 recent tokens, a count; the twin: every token."""
    numbers_of_heads = 7 * (2 * 8 + 2) + 63 * 2 * 8
    assert step(OURS, length=length).workload.cache == 2 * 2 * (3 * 4 * numbers_of_heads + 8)
    assert step(TWIN, length=length).workload.cache == 2 * 2 * length * 3 * 4 * 2 * 8


def test_the_model_is_one_for_all_lengths():
    first, second = (step(OURS, length=length).workload.module for length in (70, 133))
    assert first.config.to_dict() == second.config.to_dict()
    assert all(torch.equal(x, y) for x, y in zip(first.parameters(), second.parameters(), strict=True))


def test_the_twin_differs_only_in_the_attention():
    ours, twin = (step(contender).workload.module.config.to_dict() for contender in CONTENDERS)
    assert {name for name in ours if ours[name] != twin[name]} == {"attention", "k", "window"}


def test_what_takes_too_long_is_not_compared(monkeypatch):
    monkeypatch.setattr(decoding, "LONGEST_PASS", 132)
    assert step(OURS).workload.expected is None


@pytest.mark.parametrize("contender", CONTENDERS, ids=NAME)
def test_low_precision_keeps_its_tolerance(contender):
    made = step(contender, dtype="bfloat16")
    made.check(made.run())

"""Rounds that are long enough, whatever the first calls took. No clock runs: steps tell what they take."""

import pytest

from runner.timing import calls_in_a_round
from torch_linformer.measuring import step as measuring


@pytest.fixture
def step(monkeypatch):
    """A function: a step whose calls take the given seconds, the last of them forever on."""
    clock = [0.0]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: clock[0])

    def make(*seconds):
        calls = []

        def run():
            clock[0] += seconds[min(len(calls), len(seconds) - 1)]
            calls.append(None)

        return run

    return make


def test_the_mean_of_several_calls(step):
    assert measuring.mean_seconds(step(1.0, 3.0), "cpu", calls=2) == pytest.approx(2.0)


@pytest.mark.parametrize("first", [(), (2.0,), (0.01, 0.04, 0.02)])
def test_a_round_is_long_enough_however_slow_the_first_calls_were(step, first):
    calls, seconds = calls_in_a_round(step(*first, 0.001), "cpu", at_least=0.05)
    assert calls * seconds >= 0.05 and calls >= 10


def test_a_long_step_is_a_round(step):
    assert calls_in_a_round(step(0.2), "cpu", at_least=0.05) == (1, 0.2)


def test_a_step_too_short_for_the_clock_grows_tenfold(step):
    calls, _ = calls_in_a_round(step(*[0.0] * 1112, 1.0), "cpu", at_least=0.5)
    assert calls == 10_000

"""Steps in processes of their own, which import them from here by the name of a module."""

import sys
from pathlib import Path

import pytest

from torch_linformer.measuring.workers import StepRequest, measure_in_turn

STEPS = """
import time

def sleeping(seconds):
    return lambda: time.sleep(seconds)

def holding(megabytes):
    import torch
    kept = torch.ones(20, 1_000_000, dtype=torch.uint8)
    return lambda: torch.ones(megabytes, 1_000_000, dtype=torch.uint8)

def killed():
    import os, signal
    return lambda: os.kill(os.getpid(), signal.SIGKILL)

def failing(after):
    calls = iter(range(after))
    return lambda: next(calls)
"""


@pytest.fixture
def request_step(tmp_path, monkeypatch):
    """A function: the request of a step of the module above."""
    (tmp_path / "steps_of_a_test.py").write_text(STEPS)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(__file__).parents[2] / 'src'}")
    return lambda name, **arguments: StepRequest(f"steps_of_a_test:{name}", arguments, "cpu")


def test_seconds_and_peak_memory_of_each_step_beside_those_that_fail(request_step):
    failing = [request_step(name, after=2) for name in ("failing", "not_there")]
    sleeping = [request_step("sleeping", seconds=seconds) for seconds in (0.2, 0.02)]
    *failed, slow, quick, holding = measure_in_turn([*failing, *sleeping, request_step("holding", megabytes=60)])
    assert failed[0] == "StopIteration: " and failed[1].startswith("AttributeError: module ")
    assert slow.seconds >= 0.2 and quick.seconds >= 0.02  # of one step, however many are in a turn
    assert quick.seconds < slow.seconds
    if Path("/proc/self/status").exists():
        assert holding.peak_bytes == pytest.approx(60e6, rel=0.2)


def test_a_step_that_takes_too_long_is_not_waited_for(request_step):
    slow, quick = measure_in_turn([request_step("sleeping", seconds=s) for s in (20, 0.01)], patience=2)
    assert slow == "took over 2.0 s" and quick.seconds >= 0.01


def test_why_a_step_failed(request_step):
    killed, hungry = measure_in_turn([request_step("killed"), request_step("holding", megabytes=10**9)])
    assert (killed, hungry) == ("its process was killed", "out of memory")


def test_all_turns_together_end_in_time(request_step):
    """A first turn is stopped, and another begins only if it would be over."""
    quick, slow = measure_in_turn([request_step("sleeping", seconds=s) for s in (0.01, 2.0)], seconds=4)
    assert quick.seconds >= 0.01 and slow == "no time left"
    assert measure_in_turn([request_step("sleeping", seconds=9999)], seconds=0.5) == ["no time left"]


@pytest.mark.usefixtures("no_fresh_process")
def test_where_no_process_starts_nobody_waits(request_step):
    assert sys.executable
    assert measure_in_turn([request_step("sleeping", seconds=9999)]) == ["no process started"]

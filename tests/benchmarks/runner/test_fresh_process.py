import warnings
from pathlib import Path

import pytest
from small_suites import MEGABYTE, SmallSuite, case

from runner import processes
from runner.processes import Peak, probe

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")


@needs_proc
@pytest.mark.parametrize("name", ["200 MB", "200 MB after much"])
def test_the_peak_of_a_step_that_holds_200_mb(name):
    peak = probe(SmallSuite(name), name, case(), threads=1)
    assert peak.error is None
    assert peak.memory == pytest.approx(200 * MEGABYTE, rel=0.1)


@needs_proc
@pytest.mark.parametrize("step", ["forward", "training"])
def test_a_step_that_holds_nothing_has_next_to_no_peak(step):
    peak = probe(SmallSuite("right"), "right", case(step=step), threads=1)
    assert peak.error is None and 0 <= peak.memory < MEGABYTE


@pytest.mark.parametrize(
    ("name", "error"),
    [
        pytest.param("eating", "out of memory", marks=needs_proc),
        ("killed", "out of memory"),
        ("crashing", "its process died (SIGABRT)"),
        ("raising", "ValueError: no such thing"),
        ("refusing", "NotImplementedError: not for length 7"),
    ],
)
def test_what_went_wrong_is_told(name, error):
    assert probe(SmallSuite(name), name, case(), threads=1) == Peak(error=error)


def test_ctrl_c_is_left_to_the_process_that_waits():
    assert probe(SmallSuite("interrupted"), "interrupted", case(), threads=1).error is None


@pytest.mark.parametrize("name", ["right", "raising"])
def test_a_process_whose_answer_nobody_waits_for_ends_in_silence(name):
    suite = SmallSuite(name)
    context = processes.fresh_processes(suite)
    receiver, sender = context.Pipe(duplex=False)
    receiver.close()  # as where Ctrl-C comes while the process is being started
    process = context.Process(target=processes._serve_probe, args=(sender, suite, name, case(), 1))
    process.start()
    process.join()
    assert process.exitcode == 0  # or there was a traceback


def test_warnings_are_left_to_the_process_that_measures_time(capfd):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert probe(SmallSuite("right"), "right", case(), threads=1).error is None
    assert capfd.readouterr().err == ""

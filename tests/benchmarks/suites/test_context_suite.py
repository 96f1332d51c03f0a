"""The context suite: who is measured over how many processes, and what is computed from it for more."""

from dataclasses import replace

import pytest

from runner.suite import Case, Grid, Measurement
from suites.context import COMPUTED, LATENCY, LINK, ContextSuite, estimate, ring_bytes
from torch_linformer.reporting.report import Report, render_markdown

SUITE = ContextSuite()
CASE = Case(step="training", length=800, k=16, batch=1, width=24, heads=3, layers=4, ranks=4)


def test_long_rows_go_over_1_2_and_4_processes_and_their_pieces_over_one():
    cases = SUITE.cases(Grid())
    assert {case.ranks for case in cases if case.length >= 65536} == {1, 2, 4}
    pieces = {case.length for case in cases if case.length < 65536}
    assert pieces == {262144 // ranks for ranks in COMPUTED}
    assert all(case.ranks == 1 for case in cases if case.length in pieces)


def test_all_numbers_of_processes_take_turns():
    here, there = (case for case in SUITE.cases(Grid(lengths=[640], ks=[32])) if case.ranks in (1, 4))
    assert SUITE.turn(here) == SUITE.turn(there)


def test_more_processes_than_gpus_are_left_out(monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    (contender, *_) = SUITE.contenders()
    skipped = [SUITE.reason_to_skip(contender, replace(CASE, ranks=n, device="cuda")) for n in (1, 2, 4)]
    assert skipped == [None, None, "4 processes need a GPU each, and there are 2"]
    assert SUITE.reason_to_skip(contender, CASE) is None


def test_ring_attention_gives_keys_and_values_and_their_gradients():
    assert ring_bytes(CASE) == 4 * 800 * 24 * 4 * 3 / 4 * 4
    assert ring_bytes(replace(CASE, ranks=1)) == 0


@pytest.mark.parametrize(("name", "waiting"), [("means", 1.0), ("causal", 11 / 4)])
def test_an_estimate_by_hand(name, waiting):
    piece = Measurement(contender=name, case=replace(CASE, length=100, ranks=1), seconds=0.2)
    shared = Measurement(contender=name, case=CASE, seconds=1.0, sent=1000, messages=6)
    found = estimate(piece, shared, 8)
    assert found.seconds == pytest.approx(0.2 * waiting + 2 * 7 / 8 * 1000 / LINK + 6 * LATENCY)
    assert (found.length, found.ranks, found.sent) == (800, 8, 1000)


def test_the_report_says_what_was_computed(rows_of):
    rows = [replace(row, sent=5000, messages=3) for row in rows_of(SUITE, lambda name, case: 1e-6 * case.length)]
    summary = SUITE.summarize(rows)
    computed = summary.derived["computed"]
    assert {entry["length"] // entry["ranks"] for entry in computed} == {4096, 8192, 16384, 32768}
    report = Report(title="t", lead="", headlines=summary.headlines, sections=summary.sections)
    page = render_markdown(report)
    assert "Computed, not measured" in page and "Computed for 8 to 64 processes" in page
    assert "| means | 262,144 | 4 | 262 ms | 1.0× |" in page


def test_an_interrupted_run_has_a_report_too():
    failed = Measurement(contender="means", case=CASE, error="out of memory")
    summary = SUITE.summarize([failed])
    assert [section.heading for section in summary.sections] == ["Measured"]
    assert "means at 800 tokens: out of memory." in summary.sections[0].text

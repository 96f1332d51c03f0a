"""The causal suite: who takes part where, and what is made of the rows."""

import json
from dataclasses import replace

import pytest

from runner.suite import Case, Contender, Grid, Measurement
from suites import causal, decoding
from suites.causal import READ_LIMIT, CausalSuite

SUITE = CausalSuite()
LEAKING = Contender(name="linformer-pytorch 0, causal=True (leaks the future)", build=lambda case: None)


def seconds(name, case):
    if case.step == "decoding":
        return 0.02 * (1 + case.length / 1e6) if name == decoding.OURS else 1e-5 * case.length
    return {causal.OURS: 2e-6, causal.SDPA: 5e-6}.get(name, 1e-6) * case.length * (3 if case.step == "training" else 1)


@pytest.fixture(scope="module")
def rows(rows_of):
    return with_caches(rows_of(SUITE, seconds))


@pytest.fixture(scope="module")
def summary(rows):
    return SUITE.summarize(rows)


def with_caches(rows, ours=lambda case: 8 * 128 * case.k):
    """Rows whose decoders kept something: ours as much as ``ours`` says, the twin a kilobyte a token."""
    size = {decoding.OURS: ours, decoding.TWIN: lambda case: 1000 * case.length}
    return [
        replace(row, cache=size[row.contender](row.case)) if row.case.step == "decoding" and not row.error else row
        for row in rows
    ]


def test_attention_and_decoding_have_cases_of_their_own():
    pairs = [(case, c.name) for case in SUITE.cases(Grid()) for c in SUITE.contenders() if SUITE.takes_part(c, case)]
    decoders = {decoding.OURS, decoding.TWIN}
    for case, name in pairs:
        assert (case.step == "decoding") == (name in decoders) == (case.layers == 4)
    for name, lengths in (
        (causal.OURS, [1024, 4096, 16384, 65536]),
        (causal.WINDOW_ALONE, [1024, 4096, 16384, 65536]),
        (causal.SDPA, [1024, 4096, 16384, 65536]),
        (decoding.OURS, [1000, 10000, 100000]),
        (decoding.TWIN, [1000, 10000, 100000]),
    ):
        found = [(case.length, case.step) for case, who in pairs if who == name]
        steps = ["decoding"] if name in decoders else ["forward", "training"]
        assert found == [(length, step) for length in lengths for step in steps]


def test_who_has_no_slots_is_measured_once_a_length():
    cases = SUITE.cases(Grid(lengths=[512], ks=[16, 32]))
    ks = {c.name: [case.k for case in cases if SUITE.takes_part(c, case)] for c in SUITE.contenders()}
    assert ks[causal.OURS] == [16, 16, 32, 32] and ks[decoding.OURS] == [16, 32]
    assert ks[causal.WINDOW_ALONE] == ks[causal.SDPA] == [0, 0] and ks[decoding.TWIN] == [0]


def test_decoding_is_timed_after_all_pasts_in_turn():
    cases = [case for case in SUITE.cases(Grid(lengths=[512, 1024], ks=[16, 32]))]
    turns = {(case.step, case.length): SUITE.turn(case) for case in cases}
    assert turns["decoding", 512] == turns["decoding", 1024]
    assert len(set(turns.values())) == 5  # two steps of two lengths each, and decoding


def test_what_no_patience_allows_has_a_reason():
    case = Case(step="decoding", length=READ_LIMIT + 1, k=0, batch=1, width=256, heads=4)
    skipped = {contender.name: SUITE.reason_to_skip(contender, case) for contender in SUITE.contenders()}
    assert skipped[decoding.TWIN] == "reading more than 131,072 tokens takes too long on a CPU"
    assert skipped[causal.SDPA] == "more than 65,536 tokens take too long on a CPU"
    assert skipped[decoding.OURS] is skipped[causal.OURS] is skipped[causal.WINDOW_ALONE] is None
    _, twin = decoding.contenders()
    assert SUITE.reason_to_skip(twin, replace(case, length=READ_LIMIT)) is None
    assert SUITE.reason_to_skip(twin, replace(case, device="cuda")) is None


def test_tables_and_figures(summary):
    json.dumps(summary.derived)
    names = ["causal_forward_k64", "causal_training_k64", "decoding_time_k64", "decoding_cache_k64"]
    assert list(summary.figures) == names
    assert all(png.startswith(b"\x89PNG") for png in summary.figures.values())
    sections = {section.heading: section for section in summary.sections}
    assert list(sections) == [
        "Forward, K = 64: time", "Forward, K = 64: peak memory",
        "Training, K = 64: time", "Training, K = 64: peak memory",
        "Decoding, K = 64: time", "Decoding, K = 64: cache", "Decoding, K = 64: peak memory",
        "What a longer past costs",
    ]  # fmt: skip
    cache = {name: cells for name, *cells in sections["Decoding, K = 64: cache"].rows}
    assert cache[decoding.OURS] == ["65.5 kB", "65.5 kB", "65.5 kB"]
    assert cache[decoding.TWIN] == ["1 MB 15.3×", "10 MB 153×", "100 MB 1,526×"]
    assert sections["Forward, K = 64: time"].columns[1:] == ["N = 1,024", "N = 4,096", "N = 16,384", "N = 65,536"]
    ratios = {(r["contender"], r["step"], r["length"]): r["time"] for r in summary.derived["ratios"]}
    assert ratios[causal.SDPA, "training", 65536] == pytest.approx(2.5)
    assert ratios[causal.WINDOW_ALONE, "forward", 1024] == pytest.approx(0.5)


def test_what_a_longer_past_costs(summary):
    assert summary.sections[-1].rows == [
        [f"{decoding.OURS}, K = 64", "1,000–100,000", "1.10×", "65.5 kB to 65.5 kB", "0 B"],
        [decoding.TWIN, "1,000–100,000", "100×", "1 MB to 100 MB", "99 MB"],
    ]
    ours, twin = summary.derived["decoding_growth"]
    assert (ours["lengths"], ours["caches"], ours["more_cache"]) == ((1000, 100000), (65536, 65536), 0)
    assert ours["time_ratio"] == pytest.approx(1.1 / 1.001)
    assert twin["time_ratio"] == pytest.approx(100)
    time, cache = summary.headlines[-2:]
    assert time.name == "time of a token after 100,000 others, over one after 1,000"
    assert (time.value, time.note) == (
        "1.10×", "required: at most 1.10×, K = 64\nfull attention: 100× from 1,000 to 100,000"
    )  # fmt: skip
    assert cache.note.startswith("after 1,000: the same (required: the same)\nfull attention: 1 MB to 100 MB")


def test_a_cache_that_grows_by_a_byte_is_told(rows_of):
    summary = SUITE.summarize(with_caches(rows_of(SUITE, seconds), ours=lambda case: 65536 + (case.length > 50000)))
    assert "after 1,000: 1 B less (required: the same)" in summary.headlines[-1].note
    assert summary.sections[-1].rows[0][-1] == "1 B"


def test_a_twin_that_stopped_earlier_says_so(rows):
    rows = [
        replace(row, seconds=None, cache=None, error="out of memory")
        if row.contender == decoding.TWIN and row.case.length == 100000
        else row
        for row in rows
    ]
    summary = SUITE.summarize(rows)
    assert summary.headlines[-2].note.endswith("full attention: 10.0× from 1,000 to 10,000")
    text = next(section.text for section in summary.sections if section.heading == "Decoding, K = 64: time")
    assert f"{decoding.TWIN} at 100,000 tokens: out of memory." in text


def test_the_leak_is_told_where_it_takes_part(rows):
    case = next(row.case for row in rows if row.contender == causal.OURS)
    rows = [row for row in rows if row.contender == causal.OURS]  # as the package may be installed
    assert not any("is not causal" in section.text for section in SUITE.summarize(rows).sections)
    summary = SUITE.summarize([*rows, Measurement(contender=LEAKING.name, case=case, seconds=1.0, memory=1)])
    told = [section.heading for section in summary.sections if "is not causal: position t attends" in section.text]
    assert told == ["Forward, K = 64: time", "Training, K = 64: time"]

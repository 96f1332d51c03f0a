"""What suites measure and what they make of rows whose costs are given by a formula: worked out here by hand."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from runner.suite import Case, Grid, Measurement
from suites import SUITES, causal, context, decoding
from suites.attention import EAGER, OURS, PEERS, SDPA
from suites.encoder import EAGER_LAYER, LAYER, TWIN
from suites.grids import CAUSAL_LIMIT, EAGER_LIMIT, SDPA_LIMIT, beyond_full_attention, grid_cases
from suites.least_time import COPIED, MATRIX_PRODUCT, MEMORY_COPY, machine_case, share_headline, shares
from suites.measurements import (
    LengthComparison,
    Measurements,
    failures_text,
    fit_exponent,
    fit_quadratic,
    headline_ratio,
    ratio_records,
)
from suites.scaling import ATTENTION, ENCODER, REVERSIBLE
from suites.table3 import MEMORY_SAVED, TIME_SAVED
from torch_linformer.reporting.report import Report, render_html

CASE = Case(step="forward", length=512, k=128, batch=1, width=24, heads=3)
LENGTHS = [512, 1024, 2048, 4096, 8192]
EVERY_SUITE = pytest.mark.parametrize("suite", SUITES.values(), ids=list(SUITES))


def row(contender="ours", seconds=1.0, memory=None, error=None, **changed):
    return Measurement(contender=contender, case=replace(CASE, **changed), seconds=seconds, memory=memory, error=error)


def cells(summary, heading):
    (section,) = (section for section in summary.sections if section.heading.startswith(heading))
    return {(row[0], column): cell for row in section.rows for column, cell in zip(section.columns, row, strict=True)}


def ratios(summary):
    return {(r["contender"], r["step"], r["length"], r["k"]): r["time"] for r in summary.derived["ratios"]}


# Every suite


def test_each_length_and_batch_has_a_case_without_slots_and_one_for_each_k_that_fits():
    grid = Grid(batches=[16, 3], device="cuda", dtype="bfloat16")
    cases = list(grid_cases(grid, [64, 16], [32, 8], step="forward", width=24, heads=3))
    expected = [(16, b, k) for b in (3, 16) for k in (0, 8)] + [(64, b, k) for b in (3, 16) for k in (0, 8, 32)]
    assert [(case.length, case.batch, case.k) for case in cases] == expected
    assert {(case.device, case.dtype, case.width) for case in cases} == {("cuda", "bfloat16", 24)}


@EVERY_SUITE
def test_grids_and_contenders(suite):
    chosen = [case for case in suite.cases(Grid(lengths=[640, 1280], ks=[32, 64], batches=[2])) if case.heads]
    assert [{getattr(case, name) for case in chosen} - {0} for name in ("length", "k", "batch")] == [
        {640, 1280}, {32, 64}, {2},
    ]  # fmt: skip
    quick, whole = (suite.cases(Grid(quick=quick)) for quick in (True, False))
    for cases in (quick, whole):  # cheap ones first, and none twice
        lengths = [case.length for case in cases if case.heads]
        assert lengths == sorted(lengths) and len(cases) == len(set(cases))
    assert sum(case.length for case in quick) < sum(case.length for case in whole) / 3
    with pytest.raises(ValueError, match=r"no length of \[64\] is long enough for a K of \[512\]"):
        suite.cases(Grid(lengths=[64], ks=[512]))
    contenders = suite.contenders()
    assert len({contender.name for contender in contenders}) == len(contenders)
    assert all(any(suite.takes_part(contender, case) for case in whole) for contender in contenders)
    assert all(any(suite.takes_part(contender, case) for contender in contenders) for case in whole)


@EVERY_SUITE
def test_a_run_that_is_not_finished_or_failed_has_a_summary(rows_of, suite):
    rows = rows_of(suite, lambda _, case: 1e-6 * case.length)
    for count in (0, 1, 2, 5, 12):
        summary = suite.summarize(rows[:count])
        json.dumps(summary.derived)
        render_html(Report(title="Title", sections=summary.sections, headlines=summary.headlines))
    failed = [Measurement(contender=row.contender, case=row.case, error="broken") for row in rows]
    summary = suite.summarize(failed)
    assert (summary.headlines, summary.figures) == ([], {})
    name = f"{failed[-1].contender} at "
    assert any(name in section.text and "broken." in section.text for section in summary.sections)


@pytest.mark.parametrize(
    ("options", "limit"),
    [({"eager": True}, EAGER_LIMIT), ({"eager": False}, SDPA_LIMIT), ({"eager": False, "causal": True}, CAUSAL_LIMIT)],
)
def test_a_cpu_gives_up_beyond_a_length_or_where_memory_ends(options, limit):
    assert beyond_full_attention(replace(CASE, k=0, length=limit), **options) is None
    longer = replace(CASE, k=0, length=limit + 1)
    assert beyond_full_attention(longer, **options) == f"more than {limit:,} tokens take too long on a CPU"
    assert beyond_full_attention(replace(longer, device="cuda"), **options) is None  # which finds out by itself
    crowded = beyond_full_attention(replace(CASE, k=0, length=8192, batch=100_000), **options)
    assert (crowded is None) == (not options["eager"])  # it keeps no scores
    assert crowded is None or "scores and weights of all pairs need 161 TB" in crowded


def test_the_packages_compared_with_are_in_the_extra():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert set(PEERS) <= {line.partition(">")[0] for line in project["optional-dependencies"]["bench"]}


# Rows as readers want them

ROWS = [
    row(length=512, seconds=0.010, memory=1000),
    row(length=2048, seconds=0.020, memory=2000),
    row(length=2048, k=256, seconds=0.040, memory=2000),
    row("full", length=512, k=0, seconds=0.015, memory=3000),
    row("full", length=2048, k=0, seconds=0.160, memory=48000),
    row("slow", length=512, seconds=0.030, memory=1000),
    row("slow", None, length=2048, error="RuntimeError: it cannot"),
    row(length=512, seconds=9.0, step="training"),
]


def test_tables_and_ratios_have_everyone_beside_ours_the_best_first():
    beside = LengthComparison(results=Measurements(ROWS), ours="ours", step="forward", k=128)
    table = beside.table("seconds", "Text.")
    assert (table.heading, table.columns) == ("Forward, K = 128: time", ["", "N = 512", "N = 2,048"])
    assert table.rows == [
        ["ours", "10 ms", "20 ms"],
        ["full", "15 ms 1.5×", "160 ms 8.0×"],
        ["slow", "30 ms 3.0×", "–"],
    ]
    assert table.text == "Text.\n\nWithout a number: slow at 2,048 tokens: RuntimeError: it cannot."
    assert beside.table("memory").rows[1] == ["full", "3 kB 3.0×", "48 kB 24.0×"]
    assert replace(beside, k=256).table("seconds").rows == [["ours", "–", "40 ms"], ["full", "15 ms", "160 ms 4.0×"]]
    chart = beside.chart("seconds", "Title", ["ours", "slow", "nobody"])
    assert [(line.name, line.thick, len(line.points)) for line in chart.lines] == [
        ("ours", True, 2),
        ("slow", False, 1),
    ]
    records = {(each["contender"], each["length"], each["k"]): each for each in ratio_records(beside.results, "ours")}
    assert set(records) == {("full", 512, 128), ("full", 2048, 128), ("full", 2048, 256), ("slow", 512, 128)}
    assert records["full", 2048, 256]["time"] == pytest.approx(4.0)
    failed = [row("slow", None, length=2048, error="No."), row("slow", None, k=256, error="No.")]
    assert failures_text(failed) == "Without a number: slow at 512 and 2,048 tokens: No."
    headline = headline_ratio("name", {512: 1.5, 1024: 2.0, 2048: 8.0}, "K = 128")
    assert (headline.value, headline.note) == ("8.0×", "N = 2,048, K = 128\n2.0× at N = 1,024\n1.5× at N = 512")


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        ([0.02, 0.03, 0.05], "from N = 512 on"),
        ([0.02, 0.01, 0.05], "from N = 2,048 on"),
        ([0.02, 0.03, 0.01], "at none of these lengths"),
    ],
)
def test_where_ours_begins_to_win(seconds, sentence):
    rows = [row(length=length, seconds=0.015) for length in LENGTHS[:3]]
    rows += [row("full", taken, k=0, length=length) for length, taken in zip(LENGTHS, seconds, strict=False)]
    beside = LengthComparison(results=Measurements(rows), ours="ours", step="forward", k=128)
    assert sentence in beside.crossing("full") and beside.crossing("nobody") == ""


@pytest.mark.parametrize("terms", [(0.003, 2e-6, 4e-9), (0.0, 0.0, 1e-9), (0.5, 1e-5, 0.0)])
def test_fits_find_the_coefficients_that_made_the_points(terms):
    points = [(n, sum(term * n**power for power, term in enumerate(terms))) for n in LENGTHS]
    assert tuple(fit_quadratic(points).coef) == pytest.approx(terms, rel=1e-6, abs=1e-14)
    assert fit_quadratic([(n, 1e-6 * n**2 - 0.1) for n in LENGTHS]).coef.min() >= 0
    # Errors count relative to the cost.
    off = fit_quadratic([*((n, 1e-9 * n**2) for n in LENGTHS[:-1]), (8192, 1.1e-9 * 8192**2)])
    assert off(512) == pytest.approx(1e-9 * 512**2, rel=0.05)
    assert fit_quadratic([(512, 1.0), (512, 2.0), (1024, 3.0)]) is None
    for power in (0.0, 1.0, 1.5):
        assert fit_exponent([(n, 3e-5 * n**power) for n in LENGTHS]) == pytest.approx(power)
    assert fit_exponent([(512, 1.0), (512, 2.0)]) is None


MACHINE = machine_case(Grid(dtype="bfloat16"))
BIG = {"length": 4096, "k": 256, "batch": 2, "width": 768, "heads": 12, "dtype": "bfloat16"}


def rates(memory=1.0):
    """1e12 multiplications and 1e9 bytes a second, times ``memory``."""
    copied = 2 * COPIED * 4096**2 * 2 / 1e9 / memory
    return [
        Measurement(contender=MATRIX_PRODUCT, case=MACHINE, seconds=4096**3 / 1e12),
        Measurement(contender=MEMORY_COPY, case=MACHINE, seconds=copied),
    ]


def test_the_least_time_is_the_larger_of_two():
    (share,) = shares([*rates(), row(seconds=0.5, **BIG)], ["ours"])
    moved = 2 * (2 * 2 * 4096 * 768 + 4 * 768**2 + 2 * 4096 * 256)  # bytes: input, output and weights in bfloat16
    assert (share.seconds, share.bound) == (pytest.approx(moved / 1e9), "memory")
    assert share.share == pytest.approx(2 * moved / 1e9)
    rows = [row(**BIG), *(row(**{**BIG, "k": 0}, **more) for more in ({}, {"step": "training"}))]
    rows.append(row(**{**BIG, "k": 0}, layers=3, feedforward=512))
    ours, full, training, three = (share.seconds * 1e12 for share in shares([*rates(1e6), *rows], ["ours"]))
    assert ours == pytest.approx(2 * (2 * 4096 * 768**2 + 4 * 4096 * 256 * 768 + 2 * 256 * 768**2))
    assert full == pytest.approx(2 * (4 * 4096 * 768**2 + 2 * 4096**2 * 768)) and training == pytest.approx(3 * full)
    assert three == pytest.approx(3 * (full + 2 * 2 * 4096 * 768 * 512))
    for known in ([], rates()[:1], rates()[1:]):
        assert shares([*known, row(**BIG)], ["ours"]) == []
    (headline,) = share_headline(shares([*rates(), *rows], ["ours"]), "ours")
    assert headline.note.startswith("forward, N = 4,096, K = 256, B = 2; memory")


# Suites


def test_attention_and_gpu(rows_of):
    machine = {MATRIX_PRODUCT: 1.0, MEMORY_COPY: 1e-6}

    def seconds(name, case):
        eager = name.removesuffix(", compiled").removesuffix(", CUDA graphs")
        factor = (0.5 if eager != name else 1) * (3 if case.step == "training" else 1)
        per_token = {OURS: 1e-6, SDPA: 3e-6, EAGER: 5e-6}.get(eager, 2e-6)
        return machine.get(name, factor * per_token * case.batch * case.length)

    suite, grid = SUITES["attention"], Grid(lengths=[512, 1024], ks=[64, 128])
    rows = rows_of(suite, seconds, grid)
    assert [(row.case.length, row.case.heads) for row in rows if row.contender in machine] == [(4096, 0)] * 2
    assert sorted(row.case.length for row in rows if row.contender == SDPA) == [512, 512, 1024, 1024]
    summary = suite.summarize(rows)
    assert ratios(summary)[SDPA, "forward", 1024, 128] == pytest.approx(3.0)
    assert ratios(summary)[EAGER, "training", 512, 64] == pytest.approx(5.0)
    # 2·N·C² + 4·N·K·C + 2·K·C² multiplications in N microseconds, against 4096³ in a second
    first = next(share for share in summary.derived["share_of_least_time"] if share["contender"] == OURS)
    products = 2 * 512 * 768**2 + 4 * 512 * 64 * 768 + 2 * 64 * 768**2
    assert first["share"] == pytest.approx(products / 512e-6 / 4096**3)
    assert set(summary.figures) == {f"attention_{step}_k{k}" for step in ("forward", "training") for k in (64, 128)}

    suite, grid = SUITES["gpu"], Grid(device="cuda", dtype="bfloat16", compile=True)
    assert (suite.minutes, suite.dtype) == (9, "bfloat16")
    rows = rows_of(suite, seconds, grid)
    calls = {(row.case.batch, row.case.length) for row in rows if row.case.heads and not row.case.layers}
    assert calls == {(1, 4096), (1, 16384), (1, 65536), (16, 4096), (16, 16384)}
    assert {row.case.batch for row in rows if row.contender == f"{OURS}, CUDA graphs"} == {1}
    summary = suite.summarize(rows)
    assert {"gpu_attention_forward_k256_b16", "gpu_encoder_training_k128"} <= set(summary.figures)
    assert ratios(summary)[f"{OURS}, compiled", "training", 4096, 256] == pytest.approx(0.5)


def test_encoders(rows_of):
    suite = SUITES["encoder"]
    for grid, lengths in ((Grid(), [512, 2048]), (Grid(quick=True), [512])):  # training stops earlier
        assert [case.length for case in suite.cases(grid) if case.step == "training" and case.k] == lengths
    summary = suite.summarize(rows_of(suite, lambda name, case: {OURS: 1e-5, TWIN: 4e-5}.get(name, 3e-5) * case.length))
    assert ratios(summary)[TWIN, "forward", 8192, 128] == pytest.approx(4.0)
    names = [headline.name.split()[2].rstrip(",") for headline in summary.headlines if "forward" in headline.name]
    assert names == ["torch-linformer", "BERT", "ModernBERT"]


def test_scaling(rows_of):
    suite = SUITES["scaling"]
    powers = {ATTENTION: 1.0, ENCODER: 1.1, REVERSIBLE: 1.2}

    def seconds(name, case):  # and what a call costs whatever its length
        return (1e-3 if case.length < 4096 else 0.0) + 1e-6 * case.length ** powers[name]

    rows = rows_of(suite, seconds)
    longest = {name: max(row.case.length for row in rows if row.contender == name) for name in powers}
    assert longest == {ATTENTION: 65536, ENCODER: 1048576, REVERSIBLE: 131072}
    summary = suite.summarize(rows)
    assert {entry["contender"]: entry["time"] for entry in summary.derived["exponents"]} == pytest.approx(powers)
    assert summary.derived["attention_time_65536_over_4096"] == pytest.approx(16.0)
    assert set(summary.figures) == {"scaling_time", "scaling_memory"}
    several = suite.summarize(rows_of(suite, seconds, Grid(lengths=[4096, 8192], ks=[64, 128])))
    assert f"{ATTENTION}, K = 128" in several.sections[0].figure
    for contender in suite.contenders():
        sizes = {} if contender.name == ATTENTION else {"layers": 2, "feedforward": 48}
        step = "training" if contender.name == REVERSIBLE else "forward"
        workload = contender.build(replace(CASE, length=96, k=16, step=step, **sizes))
        assert workload.run(*workload.inputs).isfinite().all()


def with_caches(rows, ours=lambda case: 8 * 128 * case.k):
    """Rows whose decoders kept something: ours as much as ``ours`` says, the twin a kilobyte a token."""
    size = {decoding.OURS: ours, decoding.TWIN: lambda case: 1000 * case.length}
    return [
        replace(row, cache=size[row.contender](row.case)) if row.case.step == "decoding" and not row.error else row
        for row in rows
    ]


def test_causal_attention_and_decoding(rows_of):
    suite = SUITES["causal"]

    def seconds(name, case):
        if case.step == "decoding":
            return 0.02 * (1 + case.length / 1e6) if name == decoding.OURS else 1e-5 * case.length
        factor = 3 if case.step == "training" else 1
        return {causal.OURS: 2e-6, causal.SDPA: 5e-6}.get(name, 1e-6) * case.length * factor

    rows = rows_of(suite, seconds)
    decoders = {decoding.OURS, decoding.TWIN}
    assert all((row.case.step == "decoding") == (row.contender in decoders) for row in rows)
    turns = {(case.step, case.length): suite.turn(case) for case in suite.cases(Grid(lengths=[512, 1024], ks=[16, 32]))}
    assert len(set(turns.values())) == 5  # two steps of two lengths each, and decoding after all pasts
    summary = suite.summarize(with_caches(rows))
    assert list(summary.figures) == [
        "causal_forward_k64", "causal_training_k64", "decoding_time_k64", "decoding_cache_k64",
    ]  # fmt: skip
    assert cells(summary, "Decoding, K = 64: cache")[decoding.TWIN, "N = 100,000"] == "100 MB 1,526×"
    assert ratios(summary)[causal.SDPA, "training", 65536, 64] == pytest.approx(2.5)
    assert summary.sections[-1].rows == [
        [f"{decoding.OURS}, K = 64", "1,000–100,000", "1.10×", "65.5 kB to 65.5 kB", "0 B"],
        [decoding.TWIN, "1,000–100,000", "100×", "1 MB to 100 MB", "99 MB"],
    ]
    time, cache = summary.headlines[-2:]
    assert (time.value, cache.note.partition("\n")[0]) == ("1.10×", "after 1,000: the same (required: the same)")
    grown = suite.summarize(with_caches(rows, ours=lambda case: 65536 + (case.length > 50000)))
    assert "after 1,000: 1 B less (required: the same)" in grown.headlines[-1].note
    leaking = row("linformer-pytorch 0, causal=True (leaks the future)", memory=1, length=1024, k=64)
    told = suite.summarize([row for row in rows if row.contender == causal.OURS] + [leaking])
    assert "is not causal: position t attends" in told.sections[0].text
    twin = next(contender for contender in suite.contenders() if contender.name == decoding.TWIN)
    assert "takes too long" in suite.reason_to_skip(twin, replace(CASE, step="decoding", length=causal.READ_LIMIT + 1))


def test_one_sequence_over_several_processes(rows_of, monkeypatch):
    suite = SUITES["context"]
    shared = Case(step="training", length=800, k=16, batch=1, width=24, heads=3, layers=4, ranks=4)
    assert context.ring_bytes(shared) == 4 * 800 * 24 * 4 * 3 / 4 * 4
    for name, waiting in (("means", 1.0), ("causal", 11 / 4)):
        piece = Measurement(contender=name, case=replace(shared, length=100, ranks=1), seconds=0.2)
        whole = Measurement(contender=name, case=shared, seconds=1.0, sent=1000, messages=6)
        found = context.estimate(piece, whole, 8)
        expected = 0.2 * waiting + 2 * 7 / 8 * 1000 / context.LINK + 6 * context.LATENCY
        assert (found.seconds, found.length, found.ranks) == (pytest.approx(expected), 800, 8)
    rows = [replace(row, sent=5000, messages=3) for row in rows_of(suite, lambda name, case: 1e-6 * case.length)]
    assert {row.case.ranks for row in rows if row.case.length >= 65536} == {1, 2, 4}
    assert len({suite.turn(row.case) for row in rows if row.case.length == 65536}) == 1
    summary = suite.summarize(rows)
    assert {entry["length"] // entry["ranks"] for entry in summary.derived["computed"]} == set(context.PIECES)
    assert ["means", "262,144", 4, "262 ms", "1.0×"] in [row[:5] for row in summary.sections[0].rows]
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    reason = suite.reason_to_skip(suite.contenders()[0], replace(shared, device="cuda"))
    assert reason == "4 processes need a GPU each, and there are 2"


def test_table3(rows_of):
    suite = SUITES["table3"]
    assert (TIME_SAVED[65536, 2048], MEMORY_SAVED[4096, 256], TIME_SAVED[1024, 512]) == (7.9, 13, 1.3)
    assert {(case.length, case.k) for case in suite.cases(Grid()) if case.k} == set(TIME_SAVED) == set(MEMORY_SAVED)

    def seconds(name, case):
        n = case.length
        return (
            1e-6 * n * (1 + case.k / 128) if name == OURS else 4e-6 * n + (2e-9 if name == EAGER_LAYER else 1e-9) * n**2
        )

    # One core may have too little memory for the longest eager case: rows do not depend on the machine.
    rows = [row for row in rows_of(suite, seconds) if row.error is None]
    assert max(row.case.length for row in rows if row.contender == LAYER) == SDPA_LIMIT
    summary = suite.summarize(rows)
    saved = "Time saved against ordinary attention, "
    eager = cells(summary, f"{saved}eager")
    # (4 + 2e-3 · N) / 2 and, with K = 2,048, over 17; what nobody measured is extrapolated and marked
    assert (eager["2,048", "K = 128"], eager["512", "K = 2,048"]) == ("4.0× (2.6×)", "–")
    assert (eager["65,536", "K = 128"], eager["65,536", "K = 2,048"]) == ("~67.5× (20.0×)", "~7.9× (7.9×)")
    assert cells(summary, f"{saved}SDPA")["16,384", "K = 128"] == "10.2× (8.6×)"
    assert "N = 8,192, K = 128" in summary.headlines[0].note and "paper: 5.5×" in summary.headlines[0].note
    assert set(summary.figures) == {"figure2_time", "time_saved"}
    n, k, c = 65536, 128, 768
    counted = (12 * n * c**2 + 2 * n**2 * c) / (10 * n * c**2 + 3 * n * k * c + 2 * k * c**2)
    assert cells(summary, "What counting allows")["65,536", "K = 128"].startswith(f"{counted:.1f}×")
    gap = suite.summarize([row for row in rows if row.contender == OURS or row.case.length != 2048])
    assert cells(gap, f"{saved}eager")["2,048", "K = 128"] == "– (2.6×)"
    two = suite.summarize([row for row in rows if row.contender == OURS or row.case.length <= 1024])
    assert cells(two, f"{saved}eager")["65,536", "K = 128"] == "– (20.0×)"  # two lengths are not extrapolated

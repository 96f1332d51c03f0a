"""The attention suite: who takes part where, and what is made of the rows."""

import pytest

from runner.suite import Grid
from suites.attention import DYNAMIC, EAGER, OURS, SDPA, AttentionSuite
from suites.least_time import MATRIX_PRODUCT, MEMORY_COPY
from torch_linformer.reporting.report import Report, render_html

SUITE = AttentionSuite()
GRID = Grid(lengths=[512, 1024], ks=[64, 128])


def seconds(name, case):
    if name in (MATRIX_PRODUCT, MEMORY_COPY):
        return 1.0 if name == MATRIX_PRODUCT else 1e-6
    return {OURS: 1e-6, SDPA: 3e-6, EAGER: 5e-6}.get(name, 2e-6) * case.length * (3 if case.step == "training" else 1)


@pytest.fixture
def rows(rows_of):
    return rows_of(SUITE, seconds, GRID)


def test_the_machines_rates_are_measured_once():
    pairs = [(case, c.name) for case in SUITE.cases(GRID) for c in SUITE.contenders() if SUITE.takes_part(c, case)]
    machine = [case for case, name in pairs if name == MATRIX_PRODUCT]
    assert machine == [case for case, name in pairs if name == MEMORY_COPY]
    assert [(case.length, case.width, case.heads) for case in machine] == [(4096, 4096, 0)]
    assert [name for case, name in pairs if case == machine[0]] == [MATRIX_PRODUCT, MEMORY_COPY]


def test_ordinary_attention_is_measured_once_a_length():
    pairs = [(case, c.name) for case in SUITE.cases(GRID) for c in SUITE.contenders() if SUITE.takes_part(c, case)]
    assert [(case.step, case.length) for case, name in pairs if name == SDPA] == [
        ("forward", 512), ("training", 512), ("forward", 1024), ("training", 1024),
    ]  # fmt: skip
    assert sorted({case.k for case, name in pairs if name == OURS}) == [64, 128]


def test_long_sequences_are_skipped_by_ordinary_attention_alone():
    case = next(case for case in SUITE.cases(Grid(lengths=[20000], ks=[64])) if case.length == 20000)
    skipped = [contender.name for contender in SUITE.contenders() if SUITE.reason_to_skip(contender, case)]
    assert skipped == [SDPA, EAGER, f"{SDPA}, compiled", f"{SDPA}, CUDA graphs"]


def test_ratios_shares_and_figures(rows):
    summary = SUITE.summarize(rows)
    ratios = {(r["contender"], r["step"], r["length"], r["k"]): r["time"] for r in summary.derived["ratios"]}
    assert ratios[SDPA, "forward", 1024, 128] == pytest.approx(3.0)
    assert ratios[EAGER, "training", 512, 64] == pytest.approx(5.0)
    first, *_ = (share for share in summary.derived["share_of_least_time"] if share["contender"] == OURS)
    # 2·N·C² + 4·N·K·C + 2·K·C² multiplications in N microseconds, against 4096³ in a second
    share = (2 * 512 * 768**2 + 4 * 512 * 64 * 768 + 2 * 64 * 768**2) / 512e-6 / 4096**3
    assert (first["length"], first["k"], first["batch"], first["bound"]) == (512, 64, 1, "multiplications")
    assert first["share"] == pytest.approx(share)
    assert set(summary.figures) == {f"attention_{step}_k{k}" for step in ("forward", "training") for k in (64, 128)}
    assert all(png.startswith(b"\x89PNG") for png in summary.figures.values())
    assert f"time of {SDPA} over ours, training" in [headline.name for headline in summary.headlines]
    headings = [section.heading for section in summary.sections]
    assert "Forward, K = 64: time" in headings and "Training, K = 128: peak memory" in headings
    table = next(section for section in summary.sections if section.heading == "Training, K = 128: time")
    assert set(DYNAMIC) < {row[0] for row in table.rows} and all(name in table.figure for name in DYNAMIC)
    assert "<svg" in render_html(Report(title="Title", sections=summary.sections, headlines=summary.headlines))

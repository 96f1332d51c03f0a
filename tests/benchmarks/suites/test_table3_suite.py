"""Table 3: factors beside the paper's, and what nobody measured extrapolated and marked."""

import pytest

from runner.suite import Grid
from suites.encoder import EAGER_LAYER, LAYER, OURS
from suites.grids import EAGER_LIMIT, SDPA_LIMIT
from suites.table3 import TIME_SAVED, Table3Suite

SUITE = Table3Suite()


def seconds(name, case):
    n = case.length
    if name == OURS:
        return 1e-6 * n * (1 + case.k / 128)
    return 4e-6 * n + (2e-9 if name == EAGER_LAYER else 1e-9) * n**2


@pytest.fixture(scope="module")
def summary(rows_of):
    # One core may have too little memory for the longest eager case: rows do not depend on the machine.
    return SUITE.summarize([row for row in rows_of(SUITE, seconds) if row.error is None])


def cells(summary, heading):
    (section,) = (section for section in summary.sections if section.heading.startswith(heading))
    return {(row[0], column): cell for row in section.rows for column, cell in zip(section.columns, row, strict=True)}


def test_the_grid_is_the_papers():
    assert {(case.length, case.k) for case in SUITE.cases(Grid()) if case.k} == set(TIME_SAVED)
    assert {(case.width, case.heads, case.layers, case.feedforward) for case in SUITE.cases(Grid())} == {
        (768, 12, 1, 3072)
    }


def test_ordinary_attention_stops_and_ours_goes_on():
    skipped = {
        (contender.name, case.length)
        for case in SUITE.cases(Grid())
        for contender in SUITE.contenders()
        if SUITE.takes_part(contender, case) and SUITE.reason_to_skip(contender, case)
    }
    assert {(EAGER_LAYER, 2 * EAGER_LIMIT), (LAYER, 2 * SDPA_LIMIT), (EAGER_LAYER, 65536)} <= skipped
    assert not {(OURS, 65536), (LAYER, SDPA_LIMIT)} & skipped


def test_measured_cells_stand_beside_the_papers(summary):
    table = cells(summary, "Time saved against ordinary attention, eager")
    # (4 + 2e-3 · 2048) / 2 = 4.0
    assert table["2,048", "K = 128"] == "4.0× (2.6×)"
    assert table["512", "K = 2,048"] == "–"


def test_cells_that_nobody_measured_are_extrapolated_and_marked(summary):
    table = cells(summary, "Time saved against ordinary attention, eager")
    # (4 + 2e-3 · 65536) / 2 = 67.5, and with K = 2,048 over 17
    assert table["65,536", "K = 128"] == "~67.5× (20.0×)"
    assert table["65,536", "K = 2,048"] == "~7.9× (7.9×)"
    measured = cells(summary, "Time saved against ordinary attention, SDPA")["16,384", "K = 128"]
    assert measured == "10.2× (8.6×)"
    assert cells(summary, "Memory saved against ordinary attention, eager")["65,536", "K = 128"].endswith("(60.0×)")


def test_derived_numbers_say_what_is_an_estimate(summary):
    records = {(record["length"], record["k"]): record for record in summary.derived["time_saved_eager"]}
    assert records[65536, 128] == {
        "length": 65536, "k": 128, "factor": pytest.approx(67.536, rel=1e-6), "estimated": True, "paper": 20.0,
    }  # fmt: skip
    assert records[2048, 256]["estimated"] is False


def test_headlines_were_measured(summary):
    eager = summary.headlines[0]
    assert eager.name == "Time saved against ordinary attention, eager"
    assert "N = 8,192, K = 128" in eager.note
    assert "paper: 5.5×" in eager.note


def test_figures_draw_estimates_dashed(summary):
    assert set(summary.figures) == {"figure2_time", "time_saved"}
    (section,) = (section for section in summary.sections if section.heading == "Inference time of a layer")
    assert "stroke-dasharray" in section.figure
    assert "batch × length" in section.caption


def test_counting_stands_beside(summary):
    # 4·N·C² + 2·N²·C over 2·N·C² + 3·N·K·C + 2·K·C², a feed-forward of 8·N·C² on both sides
    n, k, c = 65536, 128, 768
    factor = (12 * n * c**2 + 2 * n**2 * c) / (10 * n * c**2 + 3 * n * k * c + 2 * k * c**2)
    assert cells(summary, "What counting allows")["65,536", "K = 128"].startswith(f"{factor:.1f}×")


def test_a_gap_between_measured_lengths_stays_one(rows_of):
    rows = [row for row in rows_of(SUITE, seconds) if row.contender == OURS or row.case.length != 2048]
    table = cells(SUITE.summarize(rows), "Time saved against ordinary attention, eager")
    assert table["2,048", "K = 128"] == "– (2.6×)"


def test_two_lengths_are_not_extrapolated(rows_of):
    rows = [row for row in rows_of(SUITE, seconds) if row.contender == OURS or row.case.length <= 1024]
    table = cells(SUITE.summarize(rows), "Time saved against ordinary attention, eager")
    assert table["1,024", "K = 128"] == "3.0× (1.7×)"
    assert table["65,536", "K = 128"] == "– (20.0×)"

"""Tables, ratios and failures of rows, whatever rows there are."""

from dataclasses import replace

import pytest

from runner.suite import Case, Measurement
from suites.measurements import LengthComparison, Measurements, failures_text, headline_ratio, ratio_records

CASE = Case(step="forward", length=512, k=128, batch=1, width=24, heads=3)


def row(contender, length, k, seconds, memory=None, error=None, step="forward"):
    case = replace(CASE, length=length, k=k, step=step)
    return Measurement(contender=contender, case=case, seconds=seconds, memory=memory, error=error)


ROWS = [
    row("ours", 512, 128, 0.010, 1000),
    row("ours", 2048, 128, 0.020, 2000),
    row("ours", 2048, 256, 0.040, 2000),
    row("full", 512, 0, 0.015, 3000),
    row("full", 2048, 0, 0.160, 48000),
    row("slow", 512, 128, 0.030, 1000),
    row("slow", 2048, 128, None, error="RuntimeError: it cannot"),
    row("ours", 512, 128, 9.0, step="training"),
]


@pytest.fixture
def results():
    return Measurements(ROWS)


def comparison(results, k=128):
    return LengthComparison(results=results, ours="ours", step="forward", k=k)


def test_the_table_has_everyone_beside_ours_the_best_first(results):
    table = comparison(results).table("seconds", "Text.")
    assert table.heading == "Forward, K = 128: time"
    assert table.columns == ["", "N = 512", "N = 2,048"]
    assert table.rows == [
        ["ours", "10 ms", "20 ms"],
        ["full", "15 ms 1.5×", "160 ms 8.0×"],
        ["slow", "30 ms 3.0×", "–"],
    ]
    assert table.text == "Text.\n\nWithout a number: slow at 2,048 tokens: RuntimeError: it cannot."


def test_who_has_no_slots_stands_beside_every_k(results):
    rows = {name: cells for name, *cells in comparison(results, k=256).table("seconds").rows}
    assert rows["ours"] == ["–", "40 ms"]
    assert rows["full"] == ["15 ms", "160 ms 4.0×"]
    assert "slow" not in rows


def test_memory_has_its_own_table(results):
    rows = {name: cells for name, *cells in comparison(results).table("memory").rows}
    assert rows["full"] == ["3 kB 3.0×", "48 kB 24.0×"]


def test_the_chart_draws_what_was_measured(results):
    chart = comparison(results).chart("seconds", "Title", ["ours", "slow", "nobody"])
    assert [(line.name, line.points, line.thick) for line in chart.lines] == [
        ("ours", [(512, 0.010), (2048, 0.020)], True),
        ("slow", [(512, 0.030)], False),
    ]
    assert comparison(results).chart("seconds", "Title", ["nobody"]).lines == []


def test_failures_are_told_once_for_all_their_lengths():
    failed = [row("slow", 2048, 128, None, error="No."), row("slow", 512, 256, None, error="No.")]
    assert failures_text(failed) == "Without a number: slow at 512 and 2,048 tokens: No."
    assert failures_text([]) == ""


def test_ratios_for_machines(results):
    records = {(each["contender"], each["length"], each["k"]): each for each in ratio_records(results, "ours")}
    assert set(records) == {("full", 512, 128), ("full", 2048, 128), ("full", 2048, 256), ("slow", 512, 128)}
    assert records["full", 2048, 256]["time"] == pytest.approx(4.0)
    assert records["full", 2048, 128]["memory"] == pytest.approx(24.0)


def test_a_measurement_of_nothing_is_no_point():
    assert Measurements([row("ours", 512, 128, 0.1, memory=0)]).points("memory", "ours", "forward", 128) == {}


@pytest.mark.parametrize(
    ("seconds", "sentence"),
    [
        ([0.02, 0.03, 0.05], "from N = 512 on"),
        ([0.02, 0.01, 0.05], "from N = 2,048 on"),
        ([0.02, 0.03, 0.01], "at none of these lengths"),
    ],
)
def test_where_ours_begins_to_win(seconds, sentence):
    lengths = (512, 1024, 2048)
    rows = [row("ours", length, 128, 0.015) for length in lengths]
    rows += [row("full", length, 0, taken) for length, taken in zip(lengths, seconds, strict=True)]
    beside = comparison(Measurements(rows))
    assert sentence in beside.crossing("full")
    assert beside.crossing("nobody") == ""


def test_the_headline_is_the_greatest_length():
    headline = headline_ratio("name", {512: 1.5, 1024: 2.0, 2048: 8.0}, "K = 128")
    assert (headline.value, headline.note) == ("8.0×", "N = 2,048, K = 128\n2.0× at N = 1,024\n1.5× at N = 512")

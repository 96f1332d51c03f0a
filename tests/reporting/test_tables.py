"""Numbers as people read them, and tables of them for the terminal."""

import io
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from torch_linformer.reporting import tables
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_table


def shown(title, columns, rows, width=100) -> str:
    console = Console(file=io.StringIO(), width=width, no_color=True)
    Screen(console).table(title, columns, rows)
    return console.file.getvalue()


@pytest.mark.parametrize(
    ("function", "value", "expected"),
    [
        ("count", 0, "0"),
        ("count", 1399, "1,399"),
        ("count", 14_213_390, "14,213,390"),
        ("count", -1000, "-1,000"),
        ("score", 0.92344, "0.9234"),
        ("score", -1e-9, "0.0000"),
        ("score", -0.25, "-0.2500"),
        ("percent", 0.9234, "92.3 %"),
        ("percent", 1, "100.0 %"),
        ("ratio", 0.476, "0.48×"),
        ("ratio", 0.999, "1.0×"),
        ("ratio", 2.71, "2.7×"),
        ("ratio", 99.97, "100×"),
        ("ratio", 1234.5, "1,234×"),
        ("duration", 0, "0 ms"),
        ("duration", 8.5e-5, "85 µs"),
        ("duration", 0.00099999, "1 ms"),
        ("duration", 0.0423, "42.3 ms"),
        ("duration", 0.9999, "1.0 s"),
        ("duration", 8.44, "8.4 s"),
        ("duration", 59.99, "1 min 00 s"),
        ("duration", 192, "3 min 12 s"),
        ("duration", 3599.7, "1 h 00 min"),
        ("duration", 7500, "2 h 05 min"),
        ("duration", 86_399, "1 d 00 h"),
        ("duration", 97_200, "1 d 03 h"),
        ("bytes", 512, "512 B"),
        ("bytes", 999.6, "1 kB"),
        ("bytes", 43_100_000, "43.1 MB"),
        ("bytes", 139_400_000, "139 MB"),
        ("bytes", 999_700_000, "1 GB"),
        ("bytes", 1_390_000_000, "1.39 GB"),
        ("bytes", 2.5e16, "25,000 TB"),
    ],
)
def test_formats(function, value, expected):
    assert getattr(tables, f"format_{function}")(value) == expected


@pytest.mark.parametrize("function", ["count", "percent", "ratio", "duration", "bytes", "cell"])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_a_dash(function, value):
    assert getattr(tables, f"format_{function}")(value) == tables.MISSING


SECONDS = {"µs": 1e-6, "ms": 1e-3, "s": 1, "min": 60, "h": 3600, "d": 86_400}


@given(st.floats(1e-6, 8e7))
def test_a_duration_says_the_time_and_no_unit_overflows(seconds):
    parts = tables.format_duration(seconds).split()
    amounts, units = [float(amount) for amount in parts[::2]], parts[1::2]
    limits = {"µs": 1000, "ms": 1000, "s": 60, "min": 60, "h": 24, "d": math.inf}
    assert all(amount < limits[unit] for amount, unit in zip(amounts, units, strict=True))
    said = sum(amount * SECONDS[unit] for amount, unit in zip(amounts, units, strict=True))
    assert said == pytest.approx(seconds, rel=0.05)


@given(st.floats(1e3, 9e14))
def test_bytes_stay_below_a_thousand_units(count):
    amount, unit = tables.format_bytes(count).split()
    assert 1 <= float(amount) < 1000
    scale = 1000 ** ("B", "kB", "MB", "GB", "TB").index(unit)
    assert float(amount) * scale == pytest.approx(count, rel=0.006)


@pytest.mark.parametrize(
    ("value", "expected"),
    [(None, "–"), (True, "yes"), (False, "no"), (8192, "8,192"), (5e-4, "0.0005"), (0.123456, "0.1235"), ("x", "x")],
)
def test_cells(value, expected):
    assert tables.format_cell(value) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"),
    [
        (4527 / 2895, "1.6× more memory"),
        (2895 / 4527, "1.6× less memory"),
        (0.5, "2.0× less memory"),
        (1.03, "1.0×"),
        (0.97, "1.0×"),
        (0.001, "1,000× less memory"),
        (0.0, tables.MISSING),
        (math.nan, tables.MISSING),
    ],
)
def test_a_comparison_says_which_side_is_better(ratio, expected):
    assert tables.format_comparison(ratio, "more memory", "less memory") == expected


def test_columns_of_numbers_but_the_first_are_aligned_to_the_right():
    rows = [
        ["2019", "1,399", "92.3 %", "3 min 12 s", "1.39 GB", "6.9×", "1.6× more memory", "2 × AMD", "3.11.7", "1e-05"],
        ["2020", "–", "8.0 %", "42 ms", "512 B", "0.48×", "1.0×", "7", "5.23.0", "+0.5"],
    ]
    assert format_table(list("abcdefghij"), rows).right == [False, *[True] * 6, False, False, True]
    assert format_table(["a", "b"], [["x", None]]).right == [False, False]


def test_a_table_shows_its_title_and_every_cell():
    words = shown("Speed", ["attention", "tokens/s"], [["linformer", 31_224], ["full", None]]).split()
    assert [word for word in words if "─" not in word] == [
        "Speed", "attention", "tokens/s", "linformer", "31,224", "full", "–",
    ]  # fmt: skip


ADAPTED = ["tokens", "ours, tokens/s", "full, tokens/s", "ours is", "ours, MB", "full, MB", "ours takes"]


@pytest.mark.parametrize(
    ("width", "columns", "row"),
    [
        (
            40,
            ["tokens at once", "ours, in tokens a second", "full attention, in tokens a second"],
            ["8,192", 11_895, "30 min 03 s"],
        ),
        (80, ADAPTED, ["8,192", 9_986, 874, "11.4× faster", 222, 171, "1.3× more memory"]),
    ],
)
def test_where_it_is_too_wide_headings_are_broken_and_numbers_are_not(width, columns, row):
    text = shown("", columns, [row, ["128", *[None] * (len(columns) - 1)]], width)
    assert all((f"{cell:,}" if isinstance(cell, int) else cell) in text for cell in row)
    assert len(text.splitlines()) > 4 and max(map(len, text.splitlines())) <= width


def test_a_text_beside_numbers_is_broken_and_nothing_is_cut_off():
    rows = [["90 %", 0.32, "344, 308, 227, 71, 144, 9, 344, 308, 227, 71, 144, 9", 312, "1.2× (1.4×)", "1.8× (2.3×)"]]
    columns = ["energy", "ε", "K of the layers", "Theorem 2", "multiplications", "memory"]
    shown_cells = shown("", columns, rows, 80).split()
    assert [each for each in shown_cells if each in rows[0][2].split()] == rows[0][2].split()
    assert "(2.3×)" in shown_cells and "1.2×" in shown_cells


def test_no_markup_is_read_in_labels():
    text = shown("[b]t[/b]", ["[i]c", "n"], [["[red]spam[/red]", 1], ["[/]", 2]])
    for label in ("[b]t[/b]", "[i]c", "[red]spam[/red]", "[/]"):
        assert label in text


def test_a_row_of_the_wrong_width_is_refused():
    with pytest.raises(ValueError, match=r"every row needs 2 cells, one a column, got 1: \['x'\]"):
        format_table(["a", "b"], [["x"]])

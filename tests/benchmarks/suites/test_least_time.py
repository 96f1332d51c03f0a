"""The least time: the larger of two, by numbers worked out here."""

from dataclasses import replace

import pytest

from runner.suite import Case, Grid, Measurement
from suites.least_time import (
    COPIED,
    MATRIX_PRODUCT,
    MEMORY_COPY,
    machine_case,
    share_headline,
    shares,
    shares_records,
    shares_section,
)

MACHINE = machine_case(Grid(dtype="bfloat16"))
CASE = Case(step="forward", length=4096, k=256, batch=2, width=768, heads=12, dtype="bfloat16")
# 1e12 multiplications and 1e9 bytes a second
RATES = [
    Measurement(contender=MATRIX_PRODUCT, case=MACHINE, seconds=4096**3 / 1e12),
    Measurement(contender=MEMORY_COPY, case=MACHINE, seconds=2 * COPIED * 4096**2 * 2 / 1e9),
]


def row(contender="ours", seconds=1.0, **changed):
    return Measurement(contender=contender, case=replace(CASE, **changed), seconds=seconds)


def test_the_larger_of_the_two_times_is_the_least():
    (share,) = shares([*RATES, row(seconds=0.5)], ["ours"])
    moved = 2 * (2 * 2 * 4096 * 768 + 4 * 768**2 + 2 * 4096 * 256)  # bytes: input, output and weights in bfloat16
    assert (share.seconds, share.bound) == (pytest.approx(moved / 1e9), "memory")
    assert share.share == pytest.approx(2 * moved / 1e9)
    fast_memory = [RATES[0], replace(RATES[1], seconds=RATES[1].seconds / 1e6)]
    (share,) = shares([*fast_memory, row()], ["ours"])
    products = 2 * (2 * 4096 * 768**2 + 4 * 4096 * 256 * 768 + 2 * 256 * 768**2)
    assert (share.seconds, share.bound) == (pytest.approx(products / 1e12), "multiplications")


def test_full_attention_layers_and_training_have_least_times_of_their_own():
    rows = [row(k=0), row(k=0, step="training"), row(k=0, layers=3, feedforward=512)]
    fast_memory = [RATES[0], replace(RATES[1], seconds=RATES[1].seconds / 1e6)]
    one, training, three = (share.seconds * 1e12 for share in shares([*fast_memory, *rows], ["ours"]))
    full = 2 * (4 * 4096 * 768**2 + 2 * 4096**2 * 768)
    assert one == pytest.approx(full) and training == pytest.approx(3 * full)
    assert three == pytest.approx(3 * (full + 2 * 2 * 4096 * 768 * 512))
    slow_memory = [RATES[0], replace(RATES[1], seconds=RATES[1].seconds * 1e3)]
    forward, training, _ = (share.seconds for share in shares([*slow_memory, *rows], ["ours"]))
    assert training == pytest.approx(2 * forward)


@pytest.mark.parametrize("rates", [[], RATES[:1], RATES[1:], [replace(each, seconds=None) for each in RATES]])
def test_without_the_machines_rates_there_is_none(rates):
    assert shares([*rates, row()], ["ours"]) == []


def test_what_readers_see():
    rows = [*RATES, row(), row("other"), row("failed", seconds=None), row(length=8192)]
    found = shares(rows, ["ours", "failed"])
    assert [share.contender for share in found] == ["ours", "ours"]
    table = shares_section(found)
    assert table.rows[0][:5] == ["ours", "forward", "4,096", "256", "2"] and table.rows[0][-1].endswith("%")
    assert shares_records(found)[1]["length"] == 8192
    (headline,) = share_headline(found, "ours")
    assert headline.note.startswith("forward, N = 8,192, K = 256, B = 2; memory")
    assert share_headline(found, "other") == []

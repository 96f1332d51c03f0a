"""The suite for a GPU: who takes part where, and what is made of the rows. None of it runs on one here."""

import pytest

from runner.suite import Grid
from suites.attention import OURS, SDPA
from suites.gpu import ENCODER, MOST_TOKENS, GpuSuite
from suites.least_time import MATRIX_PRODUCT, MEMORY_COPY
from torch_linformer.reporting.report import Report, render_html

SUITE = GpuSuite()
GRID = Grid(device="cuda", dtype="bfloat16", compile=True)


def seconds(name, case):
    if name in (MATRIX_PRODUCT, MEMORY_COPY):
        return 1.0
    eager = name.removesuffix(", compiled").removesuffix(", CUDA graphs")
    factor = 1.0 if name == eager else 0.5
    return factor * {OURS: 1e-6, SDPA: 3e-6, ENCODER: 2e-6}.get(eager, 4e-6) * case.batch * case.length


@pytest.fixture
def rows(rows_of):
    return rows_of(SUITE, seconds, GRID)


def test_it_ends_in_nine_minutes_and_computes_in_bfloat16_unless_told():
    assert (SUITE.minutes, SUITE.dtype) == (9, "bfloat16")


def test_ours_and_its_rivals_are_eager_compiled_and_graphs():
    names = [contender.name for contender in SUITE.contenders()]
    for name in (OURS, SDPA, ENCODER):
        assert {name, f"{name}, compiled", f"{name}, CUDA graphs"} <= set(names)
    assert sum(name.startswith("BERT") for name in names) == 3


def test_batches_are_an_axis_and_calls_are_not_too_large(rows):
    calls = {(row.case.batch, row.case.length) for row in rows if row.case.heads and not row.case.layers}
    assert calls == {(1, 4096), (1, 16384), (1, 65536), (16, 4096), (16, 16384)}
    assert all(batch * length <= MOST_TOKENS for batch, length in calls)
    assert {row.case.batch for row in rows if row.contender == f"{OURS}, CUDA graphs"} == {1}


def test_each_batch_has_its_own_tables_and_ratios(rows):
    summary = SUITE.summarize(rows)
    headings = [section.heading for section in summary.sections]
    for heading in ("Forward, K = 256, B = 1: time", "Training, K = 256, B = 16: time", "Forward, K = 128: time"):
        assert heading in headings
    table = next(section for section in summary.sections if section.heading == "Forward, K = 256, B = 16: time")
    assert table.columns == ["", "N = 4,096", "N = 16,384"]
    assert {"gpu_attention_forward_k256_b16", "gpu_encoder_training_k128"} <= set(summary.figures)
    ratios = {(r["contender"], r["step"], r["length"], r["batch"]): r["time"] for r in summary.derived["ratios"]}
    assert ratios[SDPA, "forward", 4096, 16] == pytest.approx(3.0)
    assert ratios[f"{OURS}, compiled", "training", 4096, 1] == pytest.approx(0.5)
    assert {record["contender"] for record in summary.derived["share_of_least_time"]} >= {OURS, SDPA, ENCODER}
    render_html(Report(title="Title", sections=summary.sections, headlines=summary.headlines))

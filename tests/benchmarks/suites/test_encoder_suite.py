"""The encoder suite: its cases, and what is made of the rows."""

import pytest

from runner.suite import Grid
from suites.encoder import OURS, TWIN, EncoderSuite

SUITE = EncoderSuite()


def seconds(name, case):
    return {OURS: 1e-5, TWIN: 4e-5}.get(name, 3e-5) * case.length


def test_training_stops_earlier_unless_the_user_chooses():
    for grid, lengths in ((Grid(), [512, 2048]), (Grid(quick=True), [512])):
        assert [case.length for case in SUITE.cases(grid) if case.step == "training" and case.k] == lengths
    chosen = SUITE.cases(Grid(lengths=[4096]))
    assert {case.step for case in chosen} == {"forward", "training"}


def test_every_case_is_the_same_encoder():
    sizes = {(case.width, case.layers, case.heads, case.feedforward) for case in SUITE.cases(Grid())}
    assert sizes == {(384, 6, 12, 1536)}


def test_headlines_are_against_what_users_pick(rows_of):
    summary = SUITE.summarize(rows_of(SUITE, seconds))
    names = [headline.name for headline in summary.headlines if headline.name.endswith("forward")]
    assert [name.split()[2].rstrip(",") for name in names] == ["torch-linformer", "BERT", "ModernBERT"]
    ratios = {(r["contender"], r["length"]): r["time"] for r in summary.derived["ratios"]}
    assert ratios[TWIN, 8192] == pytest.approx(4.0)
    assert set(summary.figures) == {"encoder_forward_k128", "encoder_training_k128"}

"""The scaling suite: its ladder of lengths, and how growth is read off the rows."""

import pytest
import torch

from runner.suite import Case, Grid
from suites.scaling import ATTENTION, ENCODER, REVERSIBLE, ScalingSuite

SUITE = ScalingSuite()


def seconds(name, case):
    baseline = 1e-3 if case.length < 4096 else 0.0  # what a call costs whatever its length
    return baseline + 1e-6 * case.length ** {ATTENTION: 1.0, ENCODER: 1.1, REVERSIBLE: 1.2}[name]


def test_who_goes_how_far():
    longest = {
        contender.name: max(case.length for case in SUITE.cases(Grid()) if SUITE.takes_part(contender, case))
        for contender in SUITE.contenders()
    }
    assert longest == {ATTENTION: 65536, ENCODER: 1048576, REVERSIBLE: 131072}
    assert max(case.length for case in SUITE.cases(Grid(quick=True))) == 16384


def test_each_case_has_one_contender():
    for case in SUITE.cases(Grid()):
        (name,) = (contender.name for contender in SUITE.contenders() if SUITE.takes_part(contender, case))
        assert (name == ATTENTION) == (case.layers == 0)
        assert (name == REVERSIBLE) == (case.step == "training")


@pytest.mark.parametrize("name", [ATTENTION, ENCODER, REVERSIBLE])
def test_every_contender_runs(name):
    step = "training" if name == REVERSIBLE else "forward"
    sizes = {} if name == ATTENTION else {"layers": 2, "feedforward": 48}
    case = Case(step=step, length=96, k=16, batch=1, width=24, heads=3, **sizes)
    (contender,) = (contender for contender in SUITE.contenders() if contender.name == name)
    torch.manual_seed(0)
    workload = contender.build(case)
    output = workload.run(*workload.inputs)
    assert output.shape == workload.output_shape
    assert output.isfinite().all()
    if step == "training":
        output.sum().backward()


def test_the_reversible_encoder_keeps_no_layers_activations():
    (contender,) = (contender for contender in SUITE.contenders() if contender.name == REVERSIBLE)
    kept = []
    for layers in (2, 6):
        case = Case(step="training", length=96, k=16, batch=1, width=24, heads=3, layers=layers, feedforward=48)
        workload, sizes = contender.build(case), []
        own = {parameter.data_ptr() for parameter in workload.module.parameters()}

        def keep(saved, own=own, sizes=sizes):
            sizes.append(0 if saved.data_ptr() in own else saved.numel())
            return saved

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
            workload.run(*workload.inputs)
        kept.append(sum(sizes))
    assert kept[1] < 1.2 * kept[0]


def test_the_encoder_is_the_one_described():
    (contender,) = (contender for contender in SUITE.contenders() if contender.name == ENCODER)
    case = Case(step="forward", length=96, k=16, batch=1, width=24, heads=3, layers=2, feedforward=48)
    config = contender.build(case).module.config
    assert (config.sharing, config.position_embedding, config.norm_first) == ("layerwise", "sinusoidal", True)


def test_exponents_are_fitted_where_the_length_counts(rows_of):
    summary = SUITE.summarize(rows_of(SUITE, seconds))
    exponents = {entry["contender"]: entry for entry in summary.derived["exponents"]}
    found = [exponents[name]["time"] for name in (ATTENTION, ENCODER, REVERSIBLE)]
    assert found == pytest.approx([1.0, 1.1, 1.2])
    assert exponents[ENCODER]["memory"] == pytest.approx(1.1, abs=0.02)
    assert summary.derived["attention_time_65536_over_4096"] == pytest.approx(16.0)
    assert summary.headlines[-1].value == "16.0×"
    assert set(summary.figures) == {"scaling_time", "scaling_memory"}


def test_several_k_are_lines_of_their_own(rows_of):
    summary = SUITE.summarize(rows_of(SUITE, seconds, Grid(lengths=[4096, 8192], ks=[64, 128])))
    found = {(entry["contender"], entry["k"]) for entry in summary.derived["exponents"]}
    assert found == {(name, k) for name in (ATTENTION, ENCODER, REVERSIBLE) for k in (64, 128)}
    assert f"{ATTENTION}, K = 128" in summary.sections[0].figure

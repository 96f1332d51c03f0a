"""The packages that the benchmarks compare with: each runs as they build it, and computes what it should."""

from dataclasses import replace
from importlib.metadata import version

import pytest
import torch

from runner.suite import Case
from runner.timing import Step
from suites import attention, causal

CASE = Case(step="training", length=256, k=32, batch=2, width=24, heads=3)
PEERS = {contender.name.split()[0]: contender for contender in attention.peers()}


def built(name, **changes):
    contender = PEERS[name]
    torch.manual_seed(0)
    return contender.build(replace(CASE, k=CASE.k if contender.has_slots else 0, **changes))


def test_all_are_there_with_their_versions():
    names = ["linformer", "linformer-pytorch", "nystrom-attention", "performer-pytorch", "reformer-pytorch"]
    assert [contender.name for contender in attention.peers()] == [f"{name} {version(name)}" for name in names]


@pytest.mark.parametrize("name", PEERS)
def test_every_one_trains_and_sees_the_whole_sequence(name):
    """None is causal: the first output depends on the last input."""
    workload = built(name)
    output = workload.run(*workload.inputs)
    output[0, 0].sum().backward()
    assert output.shape == workload.output_shape == (2, 256, 24) and output.isfinite().all()
    seen = workload.inputs[0].grad[0].abs().sum(dim=-1) > 0
    assert bool(seen.any()) and (name == "reformer-pytorch" or bool(seen.all()))  # it looks into a few buckets
    if name == "nystrom-attention":
        with pytest.raises(ValueError, match="cannot compute in bfloat16"):
            built(name, dtype="bfloat16")
        return
    workload = built(name, dtype="bfloat16", step="forward")
    assert workload.run(*workload.inputs).dtype == torch.bfloat16


def test_the_settings_are_the_cases():
    for name in ("linformer", "linformer-pytorch"):  # headwise: one E and one F for all heads, each 256 × 32
        assert len({id(p) for p in built(name).module.parameters() if sorted(p.shape) == [32, 256]}) == 2
    assert built("nystrom-attention").module.num_landmarks == 32
    assert built("performer-pytorch").module.fast_attention.nb_features == 32
    assert {built(name).module.heads for name in ("linformer", "nystrom-attention", "reformer-pytorch")} == {3}
    assert len(built("linformer-pytorch").module.heads) == 3
    with pytest.raises(ValueError, match="takes multiples of 128 tokens, got 192"):
        built("reformer-pytorch", length=192)


def test_the_causal_option_of_linformer_pytorch_is_its_own_formula_and_leaks():
    from linformer_pytorch import Linformer

    (contender,) = (each for each in causal.contenders() if "leaks" in each.name)
    assert contender.name == f"linformer-pytorch {version('linformer-pytorch')}, causal=True (leaks the future)"
    for step in ("forward", "training"):
        made = Step(contender, replace(CASE, step=step))
        assert made.workload.expected is not None
        made.check(made.run())
    workload = contender.build(CASE)
    workload.run(*workload.inputs)[0, 0].sum().backward()
    assert (workload.inputs[0].grad[0].abs().sum(dim=-1) > 0).all()
    theirs = Linformer(256, 24, dim_k=32, nhead=3, depth=1, causal=True).seq[0].fn
    assert torch.equal(workload.module.causal_mask, theirs.causal_mask)

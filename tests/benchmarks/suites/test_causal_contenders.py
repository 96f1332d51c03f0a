"""Contenders of one causal attention: outputs against the plain computation, and who sees what comes later."""

import math
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
from torch import nn

from runner.suite import Case
from suites import causal
from suites.plain import plain_leaking_attention
from torch_linformer.functional import reference

NAME = attrgetter("name")
CASE = Case(step="training", length=133, k=7, batch=2, width=24, heads=3)
EVERYONE = [contender for contender in causal.contenders() if "leaks" not in contender.name]
OURS = EVERYONE[:2]


def built(contender, **changes):
    workload = contender.build(replace(CASE, k=CASE.k if contender.has_slots else 0, **changes))
    with torch.no_grad():
        for name, parameter in workload.module.named_parameters():
            if name.endswith("bias"):  # they begin alike, where a lost one goes unseen
                parameter.normal_()
    return workload


@pytest.mark.parametrize("contender", EVERYONE, ids=NAME)
@pytest.mark.parametrize("length", [133, 128, 7])
def test_the_output_is_the_plain_one(contender, length):
    workload = built(contender, length=length)
    workload.module.double()
    states = workload.inputs[0].detach().double()
    output, expected = workload.run(states), workload.expected(states)
    assert output.shape == workload.output_shape == (2, length, 24)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("contender", EVERYONE, ids=NAME)
def test_nobody_sees_what_comes_later(contender):
    workload = built(contender)
    workload.run(*workload.inputs)[:, 70].sum().backward()
    seen = workload.inputs[0].grad.abs().sum(dim=-1) > 0
    assert not seen[:, 71:].any()
    assert seen[:, 70].all()
    # Without slots there is nothing but the window.
    assert bool(seen[:, 0].any()) == (contender.name != causal.WINDOW_ALONE)


@pytest.mark.parametrize("contender", EVERYONE, ids=NAME)
def test_a_training_step_reaches_the_input(contender):
    workload = built(contender)
    workload.run(*workload.inputs).sum().backward()
    assert workload.module.training
    assert workload.inputs[0].grad.abs().max() > 0


@pytest.mark.parametrize("contender", EVERYONE, ids=NAME)
def test_low_precision_keeps_its_tolerance(contender):
    workload = built(contender, step="forward", dtype="bfloat16")
    output, expected = workload.run(*workload.inputs), workload.expected(*workload.inputs)
    assert output.dtype == torch.bfloat16
    assert (output - expected).abs().max() <= 2e-2 * expected.abs().max()


def test_the_plain_computation_is_the_definition():
    (contender, _) = OURS
    workload = built(contender, length=70, batch=1)
    module, states = workload.module.double(), workload.inputs[0].detach().double()
    heads = [
        linear(states).unflatten(-1, (3, 8)).transpose(1, 2) for linear in (module.q_proj, module.k_proj, module.v_proj)
    ]
    logits = heads[1][0] @ module.context.running.address
    weights = torch.exp(8 * torch.tanh(logits / 8))
    proj = (torch.exp(-module.context.running.log_time).clamp(max=0.5), weights)
    mixed = reference.causal_linformer_attention(
        *heads, proj, score_bias=module.context.running.score_bias, window=causal.WINDOW
    )
    expected = module.out_proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(workload.expected(states), expected)


def test_the_window_is_no_longer_than_the_sequence():
    assert built(OURS[0], length=7).module.window == 7
    assert built(OURS[0]).module.window == 64


@pytest.mark.parametrize("contender", EVERYONE, ids=NAME)
def test_what_takes_too_long_is_not_compared(contender):
    case = Case(step="forward", length=2**15, k=4 if contender.has_slots else 0, batch=1, width=4, heads=2)
    assert contender.build(case).expected is None


class Leaking(nn.Module):
    """Parameters as linformer-pytorch has them, for one head of width 2, four tokens and three slots."""

    def __init__(self):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.ModuleList([nn.Linear(2, 2, bias=False)]) for _ in range(3))
        head = nn.Module()
        head.E, head.F = nn.Linear(4, 3), nn.Linear(4, 3)
        self.heads, self.w_o = nn.ModuleList([head]), nn.Linear(2, 2)


def test_the_leaking_formula_is_what_it_says():
    module = Leaking().double()
    states = torch.randn(1, 4, 2, dtype=torch.float64)
    (head,), x = module.heads, states[0]
    slots_k = head.E.weight @ (x @ module.to_k[0].weight.T) + head.E.bias[:, None]
    slots_v = head.F.weight @ (x @ module.to_v[0].weight.T) + head.F.bias[:, None]
    for position, seen in enumerate((1, 2, 3, 3)):
        query = module.to_q[0].weight @ x[position]
        weights = torch.softmax(slots_k[:seen] @ query / math.sqrt(2), dim=-1)
        expected = module.w_o(weights @ slots_v[:seen])
        torch.testing.assert_close(plain_leaking_attention(module, states)[0, position], expected)

"""Contenders that are compiled: the same output and gradients, or an error; never a step that is eager in secret."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from runner.suite import Case, Contender
from runner.timing import time_in_turn
from suites import attention
from suites.contenders import call, compiled, sequence_workload
from torch_linformer.opening.devices import why_not_compile

CASE = Case(step="training", length=12, k=4, batch=2, width=8, heads=2)
reason = why_not_compile("cpu")
needs_compiler = pytest.mark.skipif(reason is not None, reason=reason or "")


@needs_compiler
@pytest.mark.filterwarnings("ignore")  # of the compiler, about this machine
def test_ours_is_compiled_and_checked_against_the_plain_computation():
    """The one test here that compiles: twenty seconds, most of them the compiler's start."""
    contender, _ = compiled(attention.ours()[0])
    (row,) = time_in_turn([(contender, CASE)], 2, 1.0)
    assert (row.contender, row.error, row.repeats) == ("torch-linformer, compiled", None, 2)
    assert row.first > row.seconds


class Breaking(nn.Linear):
    def forward(self, states):
        torch._dynamo.graph_break()
        return super().forward(states)


def test_what_does_not_fit_into_one_graph_is_an_error():
    broken = Contender(name="broken", build=lambda case: sequence_workload(Breaking(8, 8), case, call))
    (row,) = time_in_turn([(compiled(broken)[0], CASE)], 1, 1.0)
    assert row.contender == "broken, compiled" and row.seconds is None
    assert "graph_break" in row.error


def test_cuda_graphs_need_cuda():
    _, graphs = compiled(attention.ours()[0])
    assert (graphs.name, graphs.compilation) == ("torch-linformer, CUDA graphs", "CUDA graphs")
    with pytest.raises(ValueError, match="CUDA graphs need a CUDA device, not cpu"):
        graphs.build(replace(CASE, step="forward"))

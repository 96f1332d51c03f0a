"""A local window beside the slots of a whole sequence: `window=` of bidirectional attention."""

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder
from torch_linformer.nn.attention import FullAttention

DOUBLE = {"dtype": torch.float64}
LENGTH = 7


@pytest.mark.parametrize("window", [1, 2, 5, 40])
@pytest.mark.parametrize("queries", [3, LENGTH, 10])
def test_queries_stand_at_their_own_number_in_another_sequence(literal_attention, randomize, window, queries):
    module = randomize(LinformerAttention(12, 4, 11, 3, window=window, **DOUBLE))
    query, memory = torch.randn(2, queries, 12, **DOUBLE), torch.randn(2, LENGTH, 12, **DOUBLE)
    actual = module(query, memory, memory)[0]
    assert_close(actual, literal_attention(module, query, memory, memory)[0])


DYNAMIC = {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", "exact_first": 1}


@pytest.mark.parametrize("slots", [{}, DYNAMIC], ids=["linear", "dynamic"])
@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_saving_memory_changes_no_gradient(gradients, monkeypatch, take_at_once, memory, slots):
    take_at_once(monkeypatch, pooled_scores=100)  # blocks, computed again
    options = {"window": 4, "max_len": 13, "k": 5, "norm_first": True, "activation_memory": memory, **slots}
    model = LinformerEncoder(12, 4, 2, 17, 0.0, **options, **DOUBLE)
    x = torch.randn(2, 11, 12, requires_grad=True, **DOUBLE)
    wanted = [x, *model.parameters()]
    actual = model(x)
    found = gradients(actual, wanted)
    if memory == "checkpoint":
        model.activation_memory = "none"
    expected = model(x, need_layers=True)
    assert_close(actual, expected)
    assert_close(found, gradients(expected, wanted))


def test_identity_projections_and_a_window_over_everything_are_full_attention(randomize):
    full = randomize(FullAttention(12, 4, **DOUBLE))
    module = LinformerAttention(12, 4, LENGTH, LENGTH, window=2 * LENGTH, **DOUBLE)
    module.load_state_dict(full.state_dict(), strict=False)
    for projection in (module.context.proj_k, module.context.proj_v):
        torch.nn.init.eye_(projection.weight)
    x = torch.randn(2, LENGTH, 12, **DOUBLE)
    assert_close(module(x, x, x)[0], full(x, x, x)[0])  # every key and value stands there twice


def test_a_window_adds_no_parameter():
    plain, windowed = (LinformerAttention(12, 4, 11, 3, window=window) for window in (None, 5))
    windowed.load_state_dict(plain.state_dict())
    assert windowed.window == 5 and plain.window is None

"""Contenders of one attention: shapes, gradients, and outputs against the plain computation."""

import math
from dataclasses import replace
from operator import attrgetter

import pytest
import torch

from runner.suite import Case
from suites import attention, least_time
from suites.plain import plain_linformer_attention

NAME = attrgetter("name")
CASE = Case(step="training", length=53, k=7, batch=2, width=24, heads=3)
OURS = attention.ours()
FULL = attention.full_attention()


def case_for(contender, **changes):
    return replace(CASE, k=CASE.k if contender.has_slots else 0, **changes)


def random_biases(module):
    """Biases, and the places of chosen slots, begin at zero, where a lost one goes unseen."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("bias", "shift", "log_steepness")):
                parameter.normal_()


@pytest.mark.parametrize("contender", [*OURS, *FULL], ids=NAME)
@pytest.mark.parametrize("length", [53, 56, 7])
def test_the_output_is_the_plain_one(contender, length):
    workload = contender.build(case_for(contender, length=length))
    workload.module.double()
    random_biases(workload.module)
    states = workload.inputs[0].detach().double()
    output, expected = workload.run(states), workload.expected(states)
    assert output.shape == workload.output_shape == (2, length, 24)
    torch.testing.assert_close(output, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("contender", [*OURS, *FULL], ids=NAME)
def test_a_training_step_reaches_the_input(contender):
    workload = contender.build(case_for(contender))
    workload.run(*workload.inputs).sum().backward()
    assert workload.module.training
    assert workload.inputs[0].grad.abs().max() > 0


@pytest.mark.parametrize("contender", [*OURS, *FULL], ids=NAME)
def test_inference_wants_no_gradients(contender):
    workload = contender.build(case_for(contender, step="forward"))
    assert not workload.inputs[0].requires_grad


def test_the_plain_computation_is_the_formula():
    module = OURS[0].build(CASE).module.double()
    random_biases(module)
    states = torch.randn(1, 53, 24, dtype=torch.float64)
    queries, keys, values = (linear(states[0]) for linear in (module.q_proj, module.k_proj, module.v_proj))
    heads = []
    for head in range(3):
        own = slice(8 * head, 8 * head + 8)
        slots_k = module.context.proj_k.weight.T @ keys[:, own]
        slots_v = module.context.proj_v.weight.T @ values[:, own]
        heads.append(torch.softmax(queries[:, own] @ slots_k.T / math.sqrt(8), dim=-1) @ slots_v)
    expected = module.out_proj(torch.cat(heads, dim=-1))
    torch.testing.assert_close(plain_linformer_attention(module, states)[0], expected)


def test_eager_and_fused_full_attention_agree():
    fused, eager = (contender.build(case_for(contender)) for contender in FULL)
    eager.module.load_state_dict(fused.module.state_dict())
    torch.testing.assert_close(fused.run(*fused.inputs), eager.run(*fused.inputs))


def test_the_eager_one_keeps_its_weights_and_the_fused_one_does_not():
    sizes = []
    for contender in FULL:
        workload, saved = contender.build(case_for(contender)), []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, saved=saved: saved.append(x.shape) or x, lambda x: x):
            workload.run(*workload.inputs)
        sizes.append(any(tuple(shape[-2:]) == (53, 53) for shape in saved))
    assert sizes == [False, True]


def test_every_contender_gets_the_same_input():
    first, second = (contender.build(case_for(contender)).inputs[0] for contender in (OURS[0], FULL[0]))
    assert torch.equal(first, second)
    assert OURS[0].build(case_for(OURS[0], dtype="bfloat16")).inputs[0].dtype == torch.bfloat16


def test_each_form_of_ours_is_what_its_name_says():
    modules = {contender.name: contender.build(CASE).module for contender in OURS}
    assert modules["torch-linformer"].context.proj_v is not None
    assert modules["torch-linformer, sharing none"].context.proj_k.weight.shape == (3, 53, 7)
    assert modules["torch-linformer, sharing kv"].context.proj_v is None
    for projection in ("random", "conv", "mean", "max"):
        assert modules[f"torch-linformer, {projection}"].context.proj_k.projection == projection
    of_layer, of_heads = (modules[f"torch-linformer, dynamic, sharing {name}"] for name in ("kv", "kv_per_head"))
    assert (of_layer.context.proj_k.weight.shape, of_layer.context.proj_v) == ((7, 24), None)
    assert (of_heads.context.proj_k.weight.shape, of_heads.context.proj_v) == ((3, 7, 8), None)


def test_what_would_not_fit_is_not_compared():
    case = replace(CASE, step="forward", batch=2**10, length=2**10, k=2**8, width=4, heads=2)
    assert OURS[0].build(case).expected is None


def test_a_k_beyond_the_length_is_one_clear_line():
    with pytest.raises(ValueError, match="k must lie between 1 and max_len = 53, got 54"):
        OURS[0].build(replace(CASE, k=54))


def test_the_matrix_product_is_one():
    case = Case(step="forward", length=5, k=0, batch=1, width=5, heads=0)
    workload = least_time.matrix_product().build(case)
    output = workload.run(*workload.inputs)
    torch.testing.assert_close(output, workload.inputs[0] @ workload.module.weight.T)
    assert output.shape == workload.output_shape

"""``activation_memory="checkpoint"`` changes what is kept, and not one bit of a result."""

import pytest
import torch
from torch.func import functional_call
from torch.testing import assert_close

from torch_linformer.nn import LinformerEncoder

SIZES = {"max_len": 13, "k": 5}


def build(memory, **options):
    torch.manual_seed(0)
    return LinformerEncoder(12, 4, 3, 17, 0.25, activation_memory=memory, **{**SIZES, **options})


def step(model, src, mask, autocast):
    """The loss and every gradient, with the random numbers of a seed."""
    torch.manual_seed(3)
    src = src.clone().requires_grad_()
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16, enabled=autocast):
        loss = model(src, src_key_padding_mask=mask).float().square().sum()
    return [loss, *torch.autograd.grad(loss, [src, *model.parameters()])]


@pytest.mark.parametrize("options", [{}, {"norm_first": True, "sharing": "layerwise"}, {"chunk_size": 4}], ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["plain", "autocast"])
@pytest.mark.parametrize("kind", ["whole", "bool", "float"])
def test_loss_and_gradients_are_those_of_none_bit_for_bit(trailing_padding, options, autocast, kind):
    mask = None if kind == "whole" else trailing_padding([11, 4], 11)
    if kind == "float":
        mask = torch.zeros(2, 11).masked_fill(mask, float("-inf"))
    src = torch.randn(2, 11, 12)
    expected = step(build("none", **options), src, mask, autocast)
    actual = step(build("checkpoint", **options), src, mask, autocast)
    assert all(torch.equal(*both) for both in zip(actual, expected, strict=True))


@pytest.mark.parametrize(
    "options",
    [{}, {"norm_first": True, "sharing": "layerwise"}, {"projection": "random", "chunk_size": 4}],
    ids=str,
)
@pytest.mark.parametrize("memory", ["none", "checkpoint"])
def test_functional_call_computes_with_the_tensors_it_is_given(options, memory):
    model, others, src = build(memory, **options), build("none", **options), torch.randn(2, 11, 12)
    with torch.no_grad():
        for tensor in [*others.parameters(), *others.buffers()]:
            tensor.mul_(1.5)
    lent = {**others.state_dict(), **dict(others.named_parameters())}
    torch.manual_seed(3)
    loss = functional_call(model, lent, (src,)).square().sum()
    torch.manual_seed(3)
    expected = torch.autograd.grad(others(src).square().sum(), [*others.parameters()])
    for _ in range(2):  # the graph may be followed back again
        assert_close(torch.autograd.grad(loss, [*others.parameters()], retain_graph=True), expected, rtol=0, atol=0)


def test_a_layer_keeps_its_input_alone():
    kept = {}
    for memory in ("none", "checkpoint"):
        shapes = kept[memory] = []
        model, src = build(memory), torch.randn(2, 11, 12, requires_grad=True)
        hooks = torch.autograd.graph.saved_tensors_hooks(lambda x, s=shapes: (s.append(x.shape[-1]), x)[1], lambda x: x)
        with hooks:
            model(src)
    assert 17 in kept["none"] and 17 not in kept["checkpoint"]


def test_without_gradients_nothing_is_computed_again():
    model, calls = build("checkpoint"), []
    model.layers[0].linear1.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        model(torch.randn(2, 11, 12))
    assert len(calls) == 1
    model(torch.randn(2, 11, 12)).sum().backward()
    assert len(calls) == 3

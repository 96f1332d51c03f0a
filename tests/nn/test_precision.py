"""Low precision: compressing first may not cost more than twice the error of the plain order of products."""

import pytest
import torch
from budgets import TWICE
from map_choices import owned_maps
from torch import nn

from torch_linformer.nn import LinformerAttention
from torch_linformer.nn.attention.slot_maps import SlotMaps

LOW = [torch.bfloat16, torch.float16]


def run(module, x, mask, gradients, autocast=None):
    """Output, and the gradients to the input and every parameter, in float64."""
    x = x.clone().requires_grad_()
    with torch.autocast(x.device.type, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        output = module(x, x, x, mask)[0]
    return [t.double() for t in [output, *gradients(output, [x, *module.parameters()])]]


def rms(difference):
    return difference.square().mean().sqrt()


def relative_errors(module, x, dtype, gradients, **options):
    """Errors of the output and of the gradients to the input and to the maps of queries, keys, values and output."""

    def results():
        inputs = x.to(next(module.parameters()).dtype).requires_grad_()
        masks = {name: mask.to(inputs.dtype) for name, mask in options.items()}
        output = module(inputs, inputs, inputs, need_weights=False, **masks)[0]
        maps = [p for name, p in module.named_parameters() if name.endswith("proj_weight") or "_proj.weight" in name]
        to_input, *to_maps, to_out_map = gradients(output, [inputs, *maps])
        return [output.double(), to_input.double(), *torch.cat(to_maps).double().chunk(3), to_out_map.double()]

    x = x.to(dtype)
    low = (module.to(dtype), results())[1]
    exact = (module.double(), results())[1]
    return torch.stack([rms(one - other) / rms(other) for one, other in zip(low, exact, strict=True)])


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.bfloat16, marks=pytest.mark.cpu("elsewhere scores are in bfloat16")), torch.float16],
    ids=["bfloat16", "float16"],
)
@pytest.mark.parametrize(
    "options", [{"window": None}, {"window": 64}, {"window": 64, "k": 0}], ids=["slots", "slots-and-window", "window"]
)
def test_causal_attention_errs_no_more_than_twice_as_much_as_ordinary_attention(gradients, options, dtype):
    module = LinformerAttention(256, 4, 512, causal=True, **{"k": 64, **options})
    x = 4 * torch.randn(1, 512, 256)  # scores of several nats, as in a trained model
    future = torch.full((512, 512), float("-inf")).triu(1)
    allowed = relative_errors(nn.MultiheadAttention(256, 4, batch_first=True), x, dtype, gradients, attn_mask=future)
    assert (relative_errors(module, x, dtype, gradients) <= TWICE * allowed).all()


@torch.no_grad()
def windows_apart(module, number):
    """Windows of four tokens in which, in every channel, the largest key and value are far ahead of the next.

    The module's biases are set so that the maxima are 0 on average: gradients cancel a mean that slots have in common,
    and so lose digits.
    """
    windows = torch.randn(20_000, 4, module.embed_dim)
    ahead = []
    for linear in (module.k_proj, module.v_proj):
        largest, next_largest = linear(windows).topk(2, dim=1).values.unbind(dim=1)
        ahead.append(largest - next_largest)
    chosen = windows[torch.cat(ahead, dim=-1).amin(dim=-1).topk(number).indices]
    for linear in (module.k_proj, module.v_proj):
        linear.bias.sub_(linear(chosen).amax(dim=1).mean(dim=0))
    return chosen


@pytest.mark.parametrize("dtype", LOW, ids=["bfloat16", "float16"])
def test_maxima_that_stand_apart_err_no_more_than_twice_as_much_as_ordinary_attention(gradients, dtype):
    module = LinformerAttention(12, 2, 96, 24, projection="max")
    x = windows_apart(module, 4 * 24).reshape(4, 96, 12)
    allowed = relative_errors(nn.MultiheadAttention(12, 2, batch_first=True), x, dtype, gradients)
    assert (relative_errors(module, x, dtype, gradients) <= TWICE * allowed).all()


@pytest.mark.parametrize(("how", "dtype"), [("cast", torch.float16), ("autocast", torch.bfloat16)], ids=str)
@pytest.mark.parametrize(("projection", "sharing"), owned_maps(sharings=("headwise", "kv")))
def test_error_stays_within_twice_that_of_the_plain_order(
    gradients, monkeypatch, trailing_padding, projection, sharing, dtype, how
):
    module = LinformerAttention(48, 4, 128, 16, projection=projection, sharing=sharing)
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    x, mask = torch.randn(4, 96, 48), trailing_padding([96, 96, 50, 3], 96)
    if how == "cast":
        module, x = module.to(dtype), x.to(dtype)
    autocast = dtype if how == "autocast" else None
    fast = run(module, x, mask, gradients, autocast)
    monkeypatch.setattr(SlotMaps, "compresses_first", lambda *_: False)
    plain = run(module, x, mask, gradients, autocast)
    exact = run(module.double(), x.double(), mask, gradients)
    for truth, naive, actual in zip(exact, plain, fast, strict=True):
        rounding = torch.finfo(dtype).eps * rms(truth)
        assert rms(actual - truth) <= TWICE * rms(naive - truth) + rounding

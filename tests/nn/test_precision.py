"""Low precision: compressing first may not cost more than twice the error of the plain order of products."""

import pytest
import torch

from torch_linformer.nn import LinformerAttention, LinformerEncoderLayer

PROJECTIONS = ("linear", "random", "conv", "mean", "max")
LOW = [torch.bfloat16, torch.float16]


def run(module, x, mask, gradients, autocast=None):
    """Output, and the gradients to the input and every parameter, in float64."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        output = module(x, x, x, mask)[0]
    return [t.double() for t in [output, *gradients(output, [x, *module.parameters()])]]


def rms(difference):
    return difference.square().mean().sqrt()


@pytest.mark.parametrize("how", ["cast", "autocast"])
@pytest.mark.parametrize("dtype", LOW, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("sharing", ["headwise", "kv"])
@pytest.mark.parametrize("projection", PROJECTIONS)
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
    monkeypatch.setattr(LinformerAttention, "_compresses_first", lambda *_: False)
    plain = run(module, x, mask, gradients, autocast)
    exact = run(module.double(), x.double(), mask, gradients)
    for truth, naive, actual in zip(exact, plain, fast, strict=True):
        rounding = torch.finfo(dtype).eps * rms(truth)
        assert rms(actual - truth) <= 2 * rms(naive - truth) + rounding


@pytest.mark.parametrize("dtype", LOW, ids=["bfloat16", "float16"])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_padding_is_exact_in_low_precision_too(trailing_padding, projection, dtype):
    layer = LinformerEncoderLayer(16, 2, 16, 0.0, max_len=13, k=5, projection=projection, dtype=dtype)
    mask = trailing_padding([11, 7, 0], 11)
    x = torch.randn(3, 11, 16).to(dtype)
    output = layer(x, src_key_padding_mask=mask)
    poisoned = layer(x.masked_fill(mask[..., None], float("nan")), src_key_padding_mask=mask)
    assert output.dtype == dtype
    assert output.isfinite().all()
    assert torch.equal(poisoned, output)


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize("sharing", ["none", "headwise", "kv"])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_autocast_runs_forward_and_backward(trailing_padding, projection, sharing, need_weights):
    module = LinformerAttention(16, 2, 13, 5, projection=projection, sharing=sharing)
    x = torch.randn(3, 11, 16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, weights = module(x, x, x, trailing_padding([11, 7, 0], 11), need_weights=need_weights)
    assert output.dtype == torch.bfloat16
    assert weights is None or weights.isfinite().all()
    output.float().square().sum().backward()
    assert all(t.grad.dtype == torch.float32 and t.grad.isfinite().all() for t in [x, *module.parameters()])

"""Linear maps are plain modules that other tools can find, listen to and put others in the place of."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerDecoder, LinformerEncoder
from torch_linformer.nn.linear import run_linear

SIZES = {"max_len": 13, "k": 5}


def encoder(**options):
    return LinformerEncoder(12, 4, 2, 17, 0.0, gated=True, **{**SIZES, **options})


@pytest.mark.parametrize(
    "module",
    [encoder(), encoder(causal=True, window=3), LinformerDecoder(12, 4, 2, 17, 0.0, **SIZES)],
    ids=["encoder", "causal", "decoder"],
)
def test_every_linear_map_is_of_torchs_own_class(module):
    maps = [part for part in module.modules() if isinstance(part, nn.Linear)]
    assert len(maps) >= 12
    assert {type(part) for part in maps} == {nn.Linear}


@pytest.mark.cpu("torch's dynamic quantization")
@pytest.mark.filterwarnings("ignore")  # torch announces the successor of this quantisation
@pytest.mark.parametrize("options", [{}, {"window": 3}, {"projection": "mean"}, {"causal": True, "window": 3}], ids=str)
def test_dynamic_quantisation_quantises_every_linear_map(options):
    plain = encoder(**options).eval()
    quantised = torch.ao.quantization.quantize_dynamic(plain, {nn.Linear}, dtype=torch.qint8)
    maps = [part for part in quantised.modules() if type(part) is torch.ao.nn.quantized.dynamic.Linear]
    assert len(maps) == sum(type(part) is nn.Linear for part in plain.modules()) == 14
    x = torch.randn(2, 11, 12)
    mask = torch.arange(11) >= torch.tensor([[11], [4]])
    for padding in (None, mask):
        expected, actual = (module(x, src_key_padding_mask=padding) for module in (plain, quantised))
        # int8 keeps two to three digits of each product.
        assert_close(actual, expected, rtol=0, atol=0.15)
        assert not torch.equal(actual, expected)


def listen_forward(linear, seen):
    return linear.register_forward_hook(lambda *call: seen.append(call))


def listen_before(linear, seen):
    return linear.register_forward_pre_hook(lambda *call: seen.append(call))


def listen_backward(linear, seen):
    return linear.register_full_backward_hook(lambda *call: seen.append(call))


def listen_everywhere(linear, seen):
    return nn.modules.module.register_module_forward_hook(
        lambda module, *call: seen.append(call) if module is linear else None
    )


@pytest.mark.parametrize("listen", [listen_forward, listen_before, listen_backward, listen_everywhere])
@pytest.mark.parametrize("name", ["q_proj", "k_proj", "v_proj", "out_proj"])
def test_hooks_of_a_linear_map_run(name, listen):
    module, seen = LinformerAttention(12, 4, 13, 5), []
    handle = listen(module.get_submodule(name), seen)
    x = torch.randn(2, 11, 12, requires_grad=True)
    module(x, x, x)[0].sum().backward()
    handle.remove()
    assert len(seen) == 1


def test_what_stands_in_the_place_of_a_linear_map_is_called():
    linear, x = nn.Linear(3, 5), torch.randn(2, 3)
    expected = linear(x)
    assert torch.equal(run_linear(linear, x), expected)
    linear.forward = lambda x: expected + 1  # as offloading does it
    assert torch.equal(run_linear(linear, x), expected + 1)

    class Other(nn.Linear):
        def forward(self, input):
            return super().forward(input) * 2

    other = Other(3, 5)
    assert torch.equal(run_linear(other, x), nn.functional.linear(x, other.weight, other.bias) * 2)

"""Terms on the compressed keys and values, as imported models have: added last, whichever order the products take."""

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder
from torch_linformer.nn.attention.slot_maps import Pair, Source

DOUBLE = {"dtype": torch.float64}


def names_of(module):
    return {name.rpartition(".")[2] for name, _ in module.named_parameters()}


def test_both_orders_of_the_products_agree(gradients, randomize, trailing_padding):
    """One E for all heads is compressed first; the same E given to each head apart cannot be."""
    first = randomize(LinformerAttention(12, 4, 53, 3, slot_bias=True, **DOUBLE))
    plain = LinformerAttention(12, 4, 53, 3, slot_bias=True, sharing="none", **DOUBLE)
    state = first.state_dict()
    for name in ("context.proj_k.weight", "context.proj_v.weight"):
        state[name] = state[name].expand(4, -1, -1)
    plain.load_state_dict(state)
    x = torch.randn(2, 47, 12, requires_grad=True, **DOUBLE)
    mask = trailing_padding([47, 13], 47)
    orders, found = [], []
    for module in (first, plain):
        source = Source(Pair(x, x), None, module.head_maps)
        orders.append(module.context.maps().compresses_first(source, has_heads=False))
        output, _ = module(x, x, x, mask)
        biases = [module.context.slot_terms.bias_k, module.context.slot_terms.bias_v, module.k_proj.bias]
        found.append([output, *gradients(output, [x, *biases])])
    assert orders == [True, False]
    assert_close(*found)


def test_fresh_terms_change_nothing(randomize):
    plain = randomize(LinformerAttention(12, 4, 11, 3, **DOUBLE))
    biased = LinformerAttention(12, 4, 11, 3, slot_bias=True, **DOUBLE)
    missing, unexpected = biased.load_state_dict(plain.state_dict(), strict=False)
    assert missing == ["context.slot_terms.bias_k", "context.slot_terms.bias_v"] and not unexpected
    x = torch.randn(2, 7, 12, **DOUBLE)
    assert torch.equal(biased(x, x, x)[0], plain(x, x, x)[0])
    randomize(biased).reset_parameters()
    assert not biased.context.slot_terms.bias_k.any() and not biased.context.slot_terms.bias_v.any()


@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_every_layer_of_an_encoder_has_its_own(sharing):
    options = {"max_len": 11, "k": 3, "sharing": sharing, "num_kv_heads": 2}
    encoder = LinformerEncoder(12, 4, 2, 17, slot_bias=True, **options)
    biases = [p for name, p in encoder.named_parameters() if name.endswith((".bias_k", ".bias_v"))]
    assert [tuple(bias.shape) for bias in biases] == [(2, 3, 3)] * 4
    assert not {"bias_k", "bias_v"} & names_of(LinformerEncoder(12, 4, 2, 17, **options))


def test_resizing_keeps_them(randomize):
    module = randomize(LinformerAttention(12, 4, 11, 3, slot_bias=True))
    before = module.context.slot_terms.bias_k.clone()
    module.resize_max_len(19)
    assert torch.equal(module.context.slot_terms.bias_k, before)
    x = torch.randn(2, 19, 12)
    assert module(x, x, x)[0].isfinite().all()


@pytest.mark.parametrize("projection", ["conv", "mean", "max"])
def test_slots_of_no_token_have_no_bias(randomize, projection):
    module = randomize(LinformerAttention(12, 4, 11, 3, projection=projection, slot_bias=True, **DOUBLE))
    query, memory = torch.randn(2, 5, 12, **DOUBLE), torch.randn(2, 7, 12, **DOUBLE)
    output, _ = module(query, memory, memory, torch.ones(2, 7, dtype=torch.bool))
    assert_close(output, module(query, memory[:, :0], memory[:, :0])[0])
    assert_close(output, module.out_proj.bias.expand_as(output))


def test_a_final_norm_can_be_left_out():
    options = {"max_len": 11, "k": 3, "norm_first": True}
    assert LinformerEncoder(12, 4, 2, 17, **options).norm is not None
    encoder = LinformerEncoder(12, 4, 2, 17, final_norm=False, **options).eval()
    x = torch.randn(2, 9, 12)
    expected = x
    for layer in encoder.layers:
        expected = layer(expected)
    assert torch.equal(encoder(x), expected)

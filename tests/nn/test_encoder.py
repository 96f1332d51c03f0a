"""Layers and stacks: their formula, dropout, and how they are built, initialised and placed."""

import pytest
import torch
from map_choices import BESIDE_SLOTS, PROJECTIONS, owned_maps
from torch import nn
from torch.testing import assert_close

from torch_linformer.nn import (
    DynamicProjection,
    LinformerAttention,
    LinformerDecoder,
    LinformerEncoder,
    LinformerEncoderLayer,
    SequenceProjection,
)
from torch_linformer.nn.attention import FullAttention
from torch_linformer.nn.attention.slot_maps import build_map
from torch_linformer.nn.encoder import Encoder, EncoderLayer

SIZES = {"max_len": 13, "k": 5}


def test_a_stack_of_full_attention_is_torchs_encoder(trailing_padding):
    theirs = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(12, 4, 17, 0.0, batch_first=True), 2, enable_nested_tensor=False
    )
    ours = Encoder(EncoderLayer(FullAttention(12, 4), 17, 0.0) for _ in range(2))
    ours.load_state_dict(theirs.state_dict())
    mask = trailing_padding([11, 4], 11)
    x = torch.randn(2, 11, 12)
    actual, expected = ours(x, src_key_padding_mask=mask), theirs(x, src_key_padding_mask=mask)
    assert_close(actual[~mask], expected[~mask])


@pytest.mark.parametrize(
    ("options", "random_in_training"),
    [
        pytest.param({"dropout": 0.0}, False, id="none"),
        pytest.param({"dropout": 0.5}, True, id="everywhere"),
        pytest.param({"dropout": 0.5, "attention_dropout": 0.0}, True, id="not-in-attention"),
        pytest.param({"dropout": 0.0, "attention_dropout": 0.5}, True, id="in-attention-alone"),
    ],
)
def test_dropout_acts_in_training_alone(options, random_in_training):
    model = LinformerEncoder(12, 4, 2, 17, **options, **SIZES)
    calm = LinformerEncoder(12, 4, 2, 17, dropout=0.0, **SIZES)
    calm.load_state_dict(model.state_dict())
    x = torch.randn(2, 11, 12)
    assert torch.allclose(model(x), model(x)) != random_in_training
    assert_close(model.eval()(x), calm(x))


@pytest.mark.parametrize("place", ["self_attn", "dropout", "dropout1", "dropout2"])
def test_each_dropout_has_its_place(place):
    layer = LinformerEncoderLayer(12, 4, 17, 0.0, norm_first=True, **SIZES)
    x = torch.randn(2, 11, 12)
    before = layer(x)
    if place == "self_attn":
        layer.self_attn.dropout = 0.5
    else:
        layer.get_submodule(place).p = 0.5
    assert not torch.allclose(layer(x), before)
    assert_close(layer.eval()(x), before)


def build_all(**placement):
    """One of every module, all kinds of projection among them."""
    options = {**SIZES, **placement}
    running = {**options, "causal": True, "window": 3, "rotary_dim": 2}
    return nn.ModuleList(
        [
            *(build_map(width=4, projection=kind, num_heads=3, **options) for kind in PROJECTIONS),
            FullAttention(12, 4, **placement),
            LinformerAttention(12, 4, exact_first=1, num_kv_heads=2, head_dim=6, **running),
            *(LinformerAttention(12, 4, **{**options, **beside}) for beside in BESIDE_SLOTS.values()),
            *(
                LinformerAttention(12, 4, projection=kind, sharing=sharing, **options)
                for kind, sharing in owned_maps(sharings=("none", "headwise"))
            ),
            LinformerEncoderLayer(12, 4, 17, gated=True, projection="random", **options),
            LinformerEncoder(12, 4, 2, 17, norm_first=True, gated=True, **options),
            LinformerEncoder(12, 4, 2, 17, sharing="layerwise", projection="random", **options),
            *(LinformerDecoder(12, 4, 2, 17, sharing=sharing, **options) for sharing in ("headwise", "layerwise")),
        ]
    )


@pytest.mark.parametrize("how", ["argument", "context"])
def test_modules_built_on_meta_and_reset_are_as_if_built_anew(how):
    with torch.device("meta" if how == "context" else torch.get_default_device()):
        modules = build_all(**({"device": "meta"} if how == "argument" else {}))
    assert all(tensor.is_meta for tensor in modules.state_dict().values())
    modules.to_empty(device=torch.get_default_device())
    for tensor in modules.state_dict().values():
        tensor.fill_(float("nan"))
    for module in modules:
        module.reset_parameters()
    for (name, tensor), new in zip(modules.state_dict().items(), build_all().state_dict().values(), strict=True):
        if name.endswith("log_time") or (new == new.flatten()[0]).all():
            assert torch.equal(tensor, new), name
        else:
            assert tensor.isfinite().all() and not torch.equal(tensor, new), name
            assert tensor.numel() < 30 or 0.5 < tensor.std() / new.std() < 2, name


def test_reset_parameters_draws_as_the_constructor_does():
    built, reset = (
        [SequenceProjection(512, 8), DynamicProjection(512, 8, 64), LinformerAttention(64, 4, 512, 8)] for _ in range(2)
    )
    for module in reset:
        for tensor in module.parameters():
            nn.init.constant_(tensor, 7.0)
        module.reset_parameters()
    for ours, theirs in zip(built, reset, strict=True):
        for (name, expected), actual in zip(ours.named_parameters(), theirs.parameters(), strict=True):
            if expected.any():
                assert actual.std().item() == pytest.approx(expected.std().item(), rel=0.1), name
            else:
                assert not actual.any(), name


@pytest.mark.parametrize("placement", [{"dtype": torch.float64}, {"dtype": torch.bfloat16}, {"device": "meta"}])
def test_dtype_and_device_reach_every_tensor(placement):
    for name, tensor in build_all(**placement).state_dict().items():
        assert tensor.dtype == placement.get("dtype", torch.float32), name
        assert tensor.device.type == placement.get("device", torch.get_default_device().type), name


@pytest.mark.parametrize("bias", [True, False])
def test_bias_reaches_every_linear_map_and_norm(bias):
    model = LinformerEncoder(12, 4, 2, 17, norm_first=True, gated=True, bias=bias, **SIZES)
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.LayerNorm):
            assert (module.bias is not None) == bias, name


def test_arguments_of_a_stack_reach_its_layers():
    model = LinformerEncoder(
        12,
        4,
        2,
        17,
        0.25,
        torch.tanh,
        1e-3,
        False,
        True,
        num_kv_heads=2,
        head_dim=5,
        attention_dropout=0.125,
        **SIZES,
    )
    assert model.norm.eps == 1e-3
    for layer in model.layers:
        assert layer.norm_first and layer.activation is torch.tanh
        assert [layer.dropout.p, layer.dropout1.p, layer.dropout2.p] == [0.25] * 3
        assert [layer.norm1.eps, layer.norm2.eps] == [1e-3] * 2
        assert layer.self_attn.dropout == 0.125 and not layer.self_attn.batch_first
        assert layer.self_attn.q_proj.weight.shape == (20, 12)
        assert layer.self_attn.k_proj.weight.shape == (10, 12)
        assert layer.linear1.out_features == 17


@pytest.mark.parametrize("activation_memory", ["none", "checkpoint", "reversible"])
def test_a_stack_without_layers_is_its_norm(activation_memory):
    model = LinformerEncoder(12, 4, 0, norm_first=True, activation_memory=activation_memory, max_len=13, k=5)
    x = torch.randn(2, 7, 12)
    assert torch.equal(model(x, src_key_padding_mask=torch.arange(7) > torch.tensor([[7], [3]])), model.norm(x))


@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_weights_of_every_layer_come_out_through_hooks(trailing_padding, sharing):
    model = LinformerEncoder(12, 4, 2, 17, 0.0, sharing=sharing, **SIZES)
    recorded = []
    for layer in model.layers:
        layer.self_attn.register_forward_hook(lambda module, inputs, output: recorded.append(output[1]))
    x, mask = torch.randn(2, 11, 12), trailing_padding([11, 4], 11)
    expected = model(x, src_key_padding_mask=mask)
    assert recorded == [None, None]
    assert_close(model(x, src_key_padding_mask=mask, need_weights=True), expected)
    assert [weights.shape for weights in recorded[2:]] == [(2, 4, 11, 5)] * 2


@pytest.mark.parametrize("grad", [True, False])
def test_a_causal_layer_in_chunks_ignores_no_mask(grad):
    layer = LinformerEncoderLayer(12, 4, 17, 0.0, causal=True, chunk_size=4, **SIZES)
    x, mask = torch.randn(2, 7, 12), nn.Transformer.generate_square_subsequent_mask(7)
    with torch.set_grad_enabled(grad):
        assert_close(layer(x, mask, is_causal=True), layer(x))
        with pytest.raises(
            ValueError, match=r"an attn_mask of shape \(7, 7\).*pass is_causal=True for the causal mask"
        ):
            layer(x, mask)

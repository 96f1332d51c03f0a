"""Who owns E and F: the counts of the paper, one name for each, and nothing tied."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder, LinformerEncoderLayer

SHARINGS = ("none", "headwise", "kv", "layerwise")


def encoder(sharing, *, layers=12, heads=12, **options):
    return LinformerEncoder(24, heads, layers, 8, **{"max_len": 16, "k": 4, "sharing": sharing, **options})


def matrices(module, size):
    """How many E and F of ``size`` numbers there are, counted over distinct tensors."""
    owned = [t for name, t in module.state_dict().items() if ".proj_" in name or "shared_projection" in name]
    distinct = {tensor.data_ptr(): tensor.numel() for tensor in owned}
    assert sum(distinct.values()) % size == 0
    return sum(distinct.values()) // size


@pytest.mark.parametrize("projection", ["linear", "random", "conv"])
@pytest.mark.parametrize(("sharing", "expected"), [("none", 288), ("headwise", 24), ("kv", 12), ("layerwise", 1)])
def test_twelve_layers_of_twelve_heads_own_as_many_as_the_paper_says(sharing, projection, expected):
    module = encoder(sharing, projection=projection)
    assert matrices(module, 4 if projection == "conv" else 16 * 4) == expected
    learned = sum(parameter.numel() for parameter in module.parameters())
    without = sum(parameter.numel() for parameter in encoder("headwise", projection="mean").parameters())
    in_projections = 0 if projection == "random" else expected * (4 if projection == "conv" else 64)
    assert learned - without == in_projections


@pytest.mark.parametrize("projection", ["mean", "max"])
def test_pooling_owns_nothing(projection):
    module = encoder("headwise", projection=projection)
    assert matrices(module, 1) == 0
    assert not list(module.buffers())


@pytest.mark.parametrize(("num_kv_heads", "expected"), [(1, 24), (3, 72), (12, 288)])
def test_without_sharing_every_key_value_head_has_its_own(num_kv_heads, expected):
    assert matrices(encoder("none", num_kv_heads=num_kv_heads), 16 * 4) == expected


@pytest.mark.parametrize("sharing", SHARINGS)
def test_state_dict_names_every_tensor_once(sharing):
    module = encoder(sharing, layers=3, heads=2)
    state = module.state_dict()
    assert len({tensor.data_ptr() for tensor in state.values()}) == len(state)
    named = [id(parameter) for _, parameter in module.named_parameters(remove_duplicate=False)]
    assert len(set(named)) == len(named)


def test_layerwise_gives_every_layer_the_one_projection():
    module = encoder("layerwise", layers=3, heads=2, dropout=0.0).double()
    assert [name for name in module.state_dict() if "projection" in name] == ["shared_projection.weight"]
    twin = encoder("kv", layers=3, heads=2, dropout=0.0).double()
    state = {name: tensor for name, tensor in module.state_dict().items() if "shared" not in name}
    for layer in range(3):
        state[f"layers.{layer}.self_attn.context.proj_k.weight"] = module.state_dict()["shared_projection.weight"]
    twin.load_state_dict(state)
    x = torch.randn(2, 11, 24, dtype=torch.float64)
    output, expected = module(x), twin(x)
    assert_close(output, expected)
    output.square().sum().backward()
    expected.square().sum().backward()
    summed = sum(layer.self_attn.context.proj_k.weight.grad for layer in twin.layers)
    assert_close(module.shared_projection.weight.grad, summed)


def test_kv_gives_keys_and_values_the_one_projection():
    module = LinformerAttention(12, 3, 16, 4, sharing="kv")
    assert module.context.proj_v is None
    twin = LinformerAttention(12, 3, 16, 4)
    state = module.state_dict()
    twin.load_state_dict({**state, "context.proj_v.weight": state["context.proj_k.weight"]})
    x = torch.randn(2, 11, 12)
    assert_close(module(x, x, x)[0], twin(x, x, x)[0])


@pytest.mark.parametrize(
    "build",
    [
        lambda **options: LinformerAttention(12, 3, 16, 4, **options),
        lambda **options: LinformerEncoderLayer(12, 3, max_len=16, k=4, **options),
    ],
    ids=["attention", "layer"],
)
def test_a_lone_layer_cannot_share_among_layers(build):
    with pytest.raises(ValueError, match=r"sharing='layerwise'.*use LinformerEncoder, or sharing='kv'"):
        build(sharing="layerwise")
    with pytest.raises(ValueError, match="sharing must be one of none, kv_per_head, headwise, kv, layerwise, got"):
        build(sharing="heads")


def test_an_attention_that_owns_no_map_must_be_given_one():
    module = LinformerAttention(12, 3, 16, 4, projection=None)
    x = torch.randn(2, 11, 12)
    with pytest.raises(ValueError, match=r"owns no projection \(projection=None\): pass shared_projection"):
        module(x, x, x)
    owner = LinformerAttention(12, 3, 16, 4, sharing="kv")
    given = owner.context.proj_k
    owner_state = {name: tensor for name, tensor in owner.state_dict().items() if "proj_k." not in name}
    module.load_state_dict({**owner_state, "k_proj.weight": owner.k_proj.weight, "k_proj.bias": owner.k_proj.bias})
    assert_close(module(x, x, x, shared_projection=given)[0], owner(x, x, x)[0])


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv"])
def test_one_k_for_each_layer(sharing):
    module = encoder(sharing, layers=3, heads=2, k=[8, 4, 1])
    assert [layer.self_attn.context.proj_k.k for layer in module.layers] == [8, 4, 1]
    assert [layer.self_attn.context.proj_k.weight.shape[-1] for layer in module.layers] == [8, 4, 1]
    x = torch.randn(2, 11, 24)
    expected = x
    for layer in module.eval().layers:
        expected = layer(expected)
    assert_close(module(x), expected)


def test_lists_of_k_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match=r"sharing='layerwise'.*k must be one number, got \[8, 4, 1\]"):
        encoder("layerwise", layers=3, heads=2, k=[8, 4, 1])
    with pytest.raises(ValueError, match=r"k must be one number or one a layer \(3\), got 2 numbers"):
        encoder("kv", layers=3, heads=2, k=[8, 4])
    with pytest.raises(ValueError, match="sharing must be one of none, kv_per_head, headwise, kv, layerwise, got"):
        encoder("all", layers=3, heads=2)


def test_deep_copies_share_nothing():
    layer = LinformerEncoderLayer(12, 3, 8, max_len=16, k=4)
    stack = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)
    pointers = [tensor.data_ptr() for tensor in [*layer.state_dict().values(), *stack.state_dict().values()]]
    assert len(set(pointers)) == len(pointers)

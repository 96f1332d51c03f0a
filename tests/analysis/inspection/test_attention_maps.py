"""What an inspection says of an attention is what the attention computes."""

from itertools import product
from typing import get_args

import pytest
import torch

from torch_linformer.analysis.inspection.attention_maps import attention_of_layers, projection_matrix, spread_window
from torch_linformer.choices import Sharing
from torch_linformer.models import LinformerModel
from torch_linformer.nn import SequenceProjection
from torch_linformer.nn.attention.slot_maps import Pair
from torch_linformer.nn.options import ONE_MAP, PER_HEAD

SHARING = ("none", "headwise", "kv", "layerwise")
LINEAR = ("linear", "random", "conv", "mean")


@pytest.fixture
def ids():
    return torch.randint(4, 12, (1, 19), generator=torch.Generator().manual_seed(1))


def values_and_outputs(model, ids):
    """What the heads of each layer were given as values, and gave, ``(H, N, D)``."""
    seen, handles = {}, []
    for number, layer in enumerate(model.encoder.layers):
        attention = layer.self_attn

        def before(module, inputs, number=number):
            values = module.head_maps.split(Pair(module.v_proj(inputs[0]), module.v_proj(inputs[0]))).value[0]
            seen[number] = [values.repeat_interleave(module.num_heads // module.num_kv_heads, dim=0)]

        def behind(module, inputs, number=number, attention=attention):
            seen[number].append(inputs[0].unflatten(-1, (attention.num_heads, -1)).transpose(1, 2)[0])

        handles += [attention.register_forward_pre_hook(before), attention.out_proj.register_forward_pre_hook(behind)]
    with torch.no_grad():
        model(ids, output_attentions=True)
    for handle in handles:
        handle.remove()
    return seen


def check_token_maps(model, ids):
    layers = attention_of_layers(model, ids, range(2))
    for number, (values, outputs) in values_and_outputs(model, ids).items():
        for head in range(3):
            token_map = layers[number].token_map(head)
            torch.testing.assert_close(token_map @ values[head], outputs[head], rtol=1e-10, atol=1e-12)
    return layers


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize(("projection", "sharing"), [*product(LINEAR[:3], SHARING), ("mean", "headwise")])
def test_the_token_map_times_the_values_is_the_output(build, ids, projection, sharing, window):
    model = build(LinformerModel, projection=projection, sharing=sharing, window=window)
    assert list(check_token_maps(model, ids)) == [0, 1]


@pytest.mark.parametrize("window", [None, 1, 4])
@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("sharing", get_args(Sharing))
def test_slots_that_the_document_chooses(build, ids, sharing, norm_first, window):
    options = {"sharing": sharing, "norm_first": norm_first, "window": window, "slot_mass": "learned"}
    layers = check_token_maps(build(LinformerModel, projection="dynamic", exact_first=2, exact_last=1, **options), ids)
    for layer in layers.values():
        assert layer.exact.tolist() == [0, 1, 18]
        assert (layer.proj_k is layer.proj_v) == (sharing in ONE_MAP)
        assert (layer.proj_k.stride(0) == 0) == (sharing not in PER_HEAD)
        torch.testing.assert_close(layer.proj_k.sum(dim=1), torch.ones(3, 7, dtype=torch.float64))
    assert not layers[0].proj_k.allclose(layers[1].proj_k, atol=1e-3)


@pytest.mark.parametrize("window", [1, 4])
def test_a_window_without_slots(build, ids, window):
    layer = check_token_maps(build(LinformerModel, k=[0, 7], window=window, exact_last=2), ids)[0]
    assert (layer.num_slots, layer.proj_k, layer.is_ordinary) == (0, None, False)


def test_a_document_that_lacks_exact_tokens(build, ids):
    layer = check_token_maps(build(LinformerModel, projection="mean", exact_first=3, exact_last=2), ids[:, :2])[0]
    assert layer.weights.shape == (3, 2, 7 + 5) and not layer.exact_weights(0)[:, 2:].any()


def test_heads_that_share_keys_and_values(build, ids):
    for projection in ("linear", "dynamic"):
        layers = check_token_maps(
            build(LinformerModel, sharing="none", num_key_value_heads=1, projection=projection), ids
        )
        assert layers[0].proj_v.shape == (3, 19, 7)


def test_half_precision(build, ids):
    model = build(LinformerModel, projection="dynamic", exact_first=1, window=4).bfloat16()
    assert attention_of_layers(model, ids, [0])[0].token_map(0).dtype == torch.bfloat16


def test_ordinary_attention_is_its_own_token_map(build, ids):
    layer = check_token_maps(build(LinformerModel, attention="full"), ids)[1]
    assert (layer.num_slots, layer.proj_k, layer.proj_v, layer.is_ordinary) == (0, None, None, True)


@pytest.mark.parametrize("fields", [{}, {"window": 6}, {"attention": "full"}, {"projection": "max"}], ids=str)
def test_rows_of_the_weights_sum_to_one(build, ids, fields):
    for layer in attention_of_layers(build(LinformerModel, **fields), ids, range(2)).values():
        torch.testing.assert_close(layer.weights.sum(-1), torch.ones(3, 19, dtype=torch.float64))
        assert (layer.weights >= 0).all()


def test_the_projections_are_those_of_the_keys_and_of_the_values(build, ids):
    model = build(LinformerModel, sharing="headwise")
    attention = model.encoder.layers[1].self_attn
    layer = attention_of_layers(model, ids, [1])[1]
    factor = (29 / 19) ** 0.5
    torch.testing.assert_close(layer.proj_k[2], factor * attention.context.proj_k.weight[:19].data)
    torch.testing.assert_close(layer.proj_v[2], factor * attention.context.proj_v.weight[:19].data)


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("projection", LINEAR)
@pytest.mark.parametrize("length", [1, 13, 29])
def test_the_matrix_of_a_map_gives_its_slots(projection, heads, length, monkeypatch):
    # So that there are several pieces.
    monkeypatch.setattr("torch_linformer.analysis.inspection.attention_maps.COLUMNS", 5)
    torch.manual_seed(0)
    map_ = SequenceProjection(29, 7, projection=projection, num_heads=heads, dtype=torch.float64)
    shape = (length, 4) if map_.num_heads is None else (3, length, 4)
    sequence = torch.randn(1, *shape, dtype=torch.float64)
    matrix = projection_matrix(map_, length, sequence)
    torch.testing.assert_close(matrix.mT @ sequence[0], map_(sequence)[0])


def test_max_has_no_matrix_and_no_token_map(build, ids):
    with pytest.raises(ValueError, match="projection='max' is no linear map of the sequence"):
        projection_matrix(SequenceProjection(29, 7, projection="max"), 19, torch.zeros(1))
    layer = attention_of_layers(build(LinformerModel, projection="max"), ids, [0])[0]
    assert not layer.has_token_map and layer.num_slots == 7
    with pytest.raises(ValueError, match="projection='max' has no F"):
        layer.token_map(0)


def test_a_window_lies_about_the_diagonal():
    near = torch.tensor([[0.0, 1, 2], [3, 4, 5], [6, 7, 0]])
    assert spread_window(near).tolist() == [[1, 2, 0], [3, 4, 5], [0, 6, 7]]


def test_padding_reads_and_gives_nothing(build, ids):
    """The map of a padded document is that of the document: its rows for tokens, and no column for padding."""
    model = build(LinformerModel)
    alone = attention_of_layers(model, ids, [1])[1]
    padded = torch.cat([ids, torch.zeros_like(ids[:, :6])], dim=1)
    with torch.no_grad():
        weights = model(padded, attention_mask=(padded != 0).long(), output_attentions=True).attentions[1][0]
    torch.testing.assert_close(weights[:, :19], alone.weights)
    padding = torch.arange(25)[None] >= 19
    identity = torch.eye(25, dtype=torch.float64)[None]
    of_padded = model.encoder.layers[1].self_attn.context.proj_v(identity, padding)[0].mT.detach()
    torch.testing.assert_close(of_padded[:19], alone.proj_v[0])
    assert not of_padded[19:].any()


@pytest.mark.parametrize(
    "fields", [{"window": 4, "exact_first": 1}, {"projection": "max"}, {"projection": "conv"}], ids=str
)
def test_slots_that_a_short_document_does_not_reach_are_not_in_use(build, ids, fields):
    """29 positions in 7 windows of 5 leave one slot that stands for none at all; 8 tokens reach two."""
    layers = attention_of_layers(build(LinformerModel, **{"projection": "mean", **fields}), ids[:, :8], range(2))
    for layer in layers.values():
        used = layer.in_use()
        assert (layer.num_slots, used.num_slots) == (7, 2)
        torch.testing.assert_close(used.weights.sum(-1), torch.ones(3, 8, dtype=torch.float64))
        assert (used.proj_k is used.proj_v) == (layer.proj_k is layer.proj_v)
        if layer.proj_v is not None:
            torch.testing.assert_close(used.token_map(1), layer.token_map(1))


@pytest.mark.parametrize(
    "fields", [{}, {"projection": "dynamic"}, {"attention": "full"}, {"k": 0, "window": 4}], ids=str
)
def test_where_all_slots_are_in_use_nothing_changes(build, ids, fields):
    layer = attention_of_layers(build(LinformerModel, **fields), ids[:, :8], [0])[0]
    assert layer.in_use() is layer

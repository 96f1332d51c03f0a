"""What an inspection says of an attention is what the attention computes."""

from typing import get_args

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from torch_linformer import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.analysis.attention_maps import (
    attention_of_layers,
    attention_of_windows,
    projection_matrix,
    spread_window,
)
from torch_linformer.analysis.relevance import integrated_gradients
from torch_linformer.choices import Sharing
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.classes import windowed_config
from torch_linformer.encoders.positions import Positions
from torch_linformer.models import LinformerModel
from torch_linformer.models.row_windows import windows_of
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


CHOSEN = {"projection": "dynamic", "exact_first": 2, "exact_last": 1, "slot_mass": "learned"}
FIELDS = [
    *({"projection": p, "sharing": s, "window": w} for p in LINEAR[:3] for s in SHARING for w in (None, 4)),
    *({"projection": "mean", "window": w} for w in (None, 4)),
    *({**CHOSEN, "sharing": s, "window": w} for s in get_args(Sharing) for w in (None, 1, 4)),
    *({**CHOSEN, "sharing": s, "norm_first": True} for s in get_args(Sharing)),
    *({"k": [0, 7], "window": w, "exact_last": 2} for w in (1, 4)),
    *({"sharing": "none", "num_key_value_heads": 1, "projection": p} for p in ("linear", "dynamic")),
    {"attention": "full"},
]


@pytest.mark.parametrize("fields", FIELDS, ids=str)
def test_the_token_map_times_the_values_is_the_output(build, ids, fields):
    model = build(LinformerModel, **fields)
    layers = attention_of_layers(model, ids, range(2))
    for number, (values, outputs) in values_and_outputs(model, ids).items():
        layer = layers[number]
        assert_close(layer.weights.sum(-1), torch.ones(3, 19, dtype=torch.float64))
        for head in range(3):
            assert_close(layer.token_map(head) @ values[head], outputs[head], rtol=1e-10, atol=1e-12)
        exact = fields.get("exact_first", 0), fields.get("exact_last", 0)
        assert layer.exact.tolist() == [*range(exact[0]), *range(19 - exact[1], 19)]
        assert layer.is_ordinary == (fields.get("attention") == "full")
        assert layer.num_slots == (0 if layer.is_ordinary or ("k" in fields and number == 0) else 7)
        if "slot_mass" in fields:
            assert (layer.proj_k is layer.proj_v) == (fields["sharing"] in ONE_MAP)
            assert (layer.proj_k.stride(0) == 0) == (fields["sharing"] not in PER_HEAD)
            assert_close(layer.proj_k.sum(dim=1), torch.ones(3, 7, dtype=torch.float64))


def test_a_document_that_lacks_exact_tokens(build, ids):
    model = build(LinformerModel, projection="mean", exact_first=3, exact_last=2)
    layer = attention_of_layers(model, ids[:, :2], [0])[0]
    assert layer.weights.shape == (3, 2, 7 + 5) and not layer.exact_weights(0)[:, 2:].any()


def test_half_precision(build, ids):
    model = build(LinformerModel, projection="dynamic", exact_first=1, window=4).bfloat16()
    assert attention_of_layers(model, ids, [0])[0].token_map(0).dtype == torch.bfloat16


def test_the_projections_are_those_of_the_keys_and_of_the_values(build, ids):
    model = build(LinformerModel, sharing="headwise")
    attention = model.encoder.layers[1].self_attn
    layer = attention_of_layers(model, ids, [1])[1]
    factor = (29 / 19) ** 0.5
    assert_close(layer.proj_k[2], factor * attention.context.proj_k.weight[:19].data)
    assert_close(layer.proj_v[2], factor * attention.context.proj_v.weight[:19].data)


@pytest.mark.parametrize("heads", [None, 3])
@pytest.mark.parametrize("projection", LINEAR)
@pytest.mark.parametrize("length", [1, 13, 29])
def test_the_matrix_of_a_map_gives_its_slots(projection, heads, length, monkeypatch):
    # So that there are several pieces.
    monkeypatch.setattr("torch_linformer.analysis.attention_maps.COLUMNS", 5)
    torch.manual_seed(0)
    map_ = SequenceProjection(29, 7, projection=projection, num_heads=heads, dtype=torch.float64)
    shape = (length, 4) if map_.num_heads is None else (3, length, 4)
    sequence = torch.randn(1, *shape, dtype=torch.float64)
    matrix = projection_matrix(map_, length, sequence)
    assert_close(matrix.mT @ sequence[0], map_(sequence)[0])


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
    assert_close(weights[:, :19], alone.weights)
    padding = torch.arange(25)[None] >= 19
    identity = torch.eye(25, dtype=torch.float64)[None]
    of_padded = model.encoder.layers[1].self_attn.context.proj_v(identity, padding)[0].mT.detach()
    assert_close(of_padded[:19], alone.proj_v[0])
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
        assert_close(used.weights.sum(-1), torch.ones(3, 8, dtype=torch.float64))
        assert (used.proj_k is used.proj_v) == (layer.proj_k is layer.proj_v)
        if layer.proj_v is not None:
            assert_close(used.token_map(1), layer.token_map(1))


@pytest.mark.parametrize("fields", [{}, {"projection": "dynamic"}, {"attention": "full"}, {"k": 0, "window": 4}])
def test_where_all_slots_are_in_use_nothing_changes(build, ids, fields):
    layer = attention_of_layers(build(LinformerModel, **fields), ids[:, :8], [0])[0]
    assert layer.in_use() is layer


# An encoder that reads in windows

WINDOW, HEADS = 9, 2


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 53, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    encoder = BertModel(BertConfig(**sizes, intermediate_size=17, max_position_embeddings=23))
    config = LinformerConfig(
        backbone_config=windowed_config(encoder, Positions.of(base_of(encoder))),
        read_window=WINDOW,
        exact_first=1,
        exact_last=1,
        max_position_embeddings=999,
        num_labels=3,
    )
    return LinformerForSequenceClassification(config).eval()


@pytest.mark.parametrize("length", [31, 9, 6, 17])
@torch.no_grad()
def test_the_band_is_the_attention_of_each_window(model, length):
    ids = torch.randint(1, 53, (1, length))
    for layer, found in attention_of_windows(model.linformer, ids, [0, 1]).items():
        assert found.exact.tolist() == [0, length - 1] and found.reach == WINDOW - 1
        expected = torch.zeros(HEADS, length, length)
        body = model.linformer.body
        body.set_attn_implementation("eager")
        own = torch.arange(1, length - 1)
        for number, part in enumerate(parts := own.split(WINDOW - 2)):
            places = torch.cat([torch.tensor([0]), part, torch.tensor([length - 1])])
            weights = body(ids[:, places], output_attentions=True).attentions[layer][0]
            for row, place in enumerate(places.tolist()):
                if (place == 0 and number) or (place == length - 1 and number < len(parts) - 1):
                    continue  # the first window tells of the first token, the last one of the last
                expected[:, place, places] = weights[:, row]
        for head in range(HEADS):
            assert_close(found.token_map(head), expected[head])


@pytest.mark.parametrize("length", [31, 7])
def test_what_tokens_add_sums_to_the_change_of_the_score(model, length):
    ids = torch.randint(1, 53, (1, length))
    of_text = torch.ones(1, length, dtype=torch.bool)
    of_text[:, [0, -1]] = False
    body = model.linformer.body
    words, windows = body.get_input_embeddings(), windows_of(model.config, ids)
    assert (windows is None) == (length <= WINDOW)
    relevance = integrated_gradients(lambda: model(ids).logits[0], body.embeddings, words, of_text, windows)
    assert relevance.values.shape == (3, length) and torch.equal(relevance.scores, model(ids).logits[0].detach())
    assert_close(relevance.values.sum(-1), relevance.scores - relevance.blank_scores, atol=2e-3, rtol=0.02)
    assert (relevance.values[:, 1:-1].abs().sum(0) > 0).all()

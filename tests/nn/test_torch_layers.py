"""Beside `torch.nn`: equal to its layers at E = F = I, loads their weights, lives inside its encoder."""

import copy
import io
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder, LinformerEncoderLayer
from torch_linformer.nn.attention import FullAttention

DOUBLE = {"dtype": torch.float64}
LENGTH = 11


def with_identity(module, weights):
    """``module`` with the weights of torch's and every E and F the identity."""
    missing, unexpected = module.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing and all("proj_k.weight" in name or "proj_v.weight" in name for name in missing)
    for name, parameter in module.named_parameters():
        if name in missing:
            nn.init.eye_(parameter)
    return module


def assert_same_function(module, other, inputs, gradients, **options):
    """Both give the same output, and the same gradients to inputs and to parameters of the same name."""
    shared = {name: p for name, p in other.named_parameters() if name in dict(module.named_parameters())}
    assert shared
    results = []
    for either in (module, other):
        output = either(*inputs, **options)
        output = output[0] if isinstance(output, tuple) else output
        parameters = [dict(either.named_parameters())[name] for name in shared]
        results.append([output, *gradients(output, [*inputs, *parameters])])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)


@pytest.mark.parametrize("batch_first", [True, False], ids=["batch-first", "batch-second"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
@pytest.mark.parametrize("widths", [{}, {"kdim": 7, "vdim": 17}], ids=["packed", "kdim-vdim"])
def test_identity_projections_make_it_multihead_attention(gradients, randomize, widths, bias, batch_first):
    options = {"bias": bias, "batch_first": batch_first, **widths, **DOUBLE}
    theirs = randomize(nn.MultiheadAttention(12, 4, **options))
    ours = with_identity(LinformerAttention(12, 4, LENGTH, LENGTH, **options), theirs.state_dict())
    kdim, vdim = widths.get("kdim", 12), widths.get("vdim", 12)
    inputs = [
        torch.randn(2, n, width, requires_grad=True, **DOUBLE) for n, width in ((3, 12), (LENGTH, kdim), (LENGTH, vdim))
    ]
    if not batch_first:
        inputs = [x.transpose(0, 1) for x in inputs]
    assert_same_function(ours, theirs, inputs, gradients)
    weights = ours(*inputs, need_weights=True, average_attn_weights=False)[1]
    assert_close(weights, theirs(*inputs, average_attn_weights=False)[1])
    assert_close(ours(*inputs, need_weights=True)[1], theirs(*inputs)[1])


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_full_attention_is_multihead_attention(gradients, randomize, trailing_padding, padded):
    theirs = randomize(nn.MultiheadAttention(12, 4, batch_first=True, **DOUBLE))
    ours = FullAttention(12, 4, **DOUBLE)
    ours.load_state_dict(theirs.state_dict())
    mask = trailing_padding([LENGTH, 4], LENGTH) if padded else None
    inputs = [torch.randn(2, n, 12, requires_grad=True, **DOUBLE) for n in (3, LENGTH, LENGTH)]
    assert_same_function(ours, theirs, inputs, gradients, key_padding_mask=mask)
    _, weights = ours(*inputs, mask, need_weights=True)
    assert_close(weights, theirs(*inputs, key_padding_mask=mask)[1])


@pytest.mark.parametrize("activation", ["relu", "gelu", F.silu, torch.tanh], ids=["relu", "gelu", "silu", "tanh"])
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no-bias"])
def test_identity_projections_make_it_the_encoder_layer(gradients, randomize, norm_first, activation, bias):
    arguments = (12, 4, 17, 0.0, activation)
    options = {"norm_first": norm_first, "layer_norm_eps": 1e-3, "bias": bias, "batch_first": True, **DOUBLE}
    theirs = randomize(nn.TransformerEncoderLayer(*arguments, **options))
    ours = LinformerEncoderLayer(*arguments, max_len=LENGTH, k=LENGTH, **options)
    ours = with_identity(ours, theirs.state_dict())
    x = torch.randn(2, LENGTH, 12, requires_grad=True, **DOUBLE)
    assert_same_function(ours, theirs, [x], gradients)


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv", "layerwise"])
def test_identity_projections_make_it_the_encoder(randomize, sharing):
    layer = nn.TransformerEncoderLayer(12, 4, 17, 0.0, batch_first=True, norm_first=True, **DOUBLE)
    stack = nn.TransformerEncoder(layer, 2, norm=nn.LayerNorm(12, **DOUBLE), enable_nested_tensor=False)
    theirs = randomize(stack)
    ours = LinformerEncoder(12, 4, 2, 17, 0.0, norm_first=True, max_len=LENGTH, k=LENGTH, sharing=sharing, **DOUBLE)
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert not unexpected
    for name in missing:
        weight = ours.get_parameter(name)
        weight.data.copy_(torch.eye(LENGTH).expand_as(weight))
    x = torch.randn(2, LENGTH, 12, **DOUBLE)
    assert_close(ours(x), theirs(x))


def test_rows_without_padding_are_ordinary_attention_whatever_the_others_are(randomize, trailing_padding):
    theirs = randomize(nn.MultiheadAttention(12, 4, batch_first=True, **DOUBLE))
    ours = with_identity(LinformerAttention(12, 4, LENGTH, LENGTH, **DOUBLE), theirs.state_dict())
    mask = trailing_padding([4, LENGTH], LENGTH)
    x = torch.randn(2, LENGTH, 12, **DOUBLE)
    actual, expected = ours(x, x, x, mask)[0], theirs(x, x, x, mask)[0]
    assert_close(actual[1], expected[1])
    assert not torch.allclose(actual[0, :4], expected[0, :4])


def test_strict_loading_of_its_own_state_still_finds_what_is_wrong():
    module = LinformerAttention(12, 4, LENGTH, 5)
    state = module.state_dict()
    del state["k_proj.bias"]
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "k_proj.bias"'):
        module.load_state_dict(state)
    state = {**module.state_dict(), "in_proj": torch.zeros(3)}
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "in_proj"'):
        module.load_state_dict(state)


def test_loading_leaves_the_given_state_as_it_was():
    theirs = nn.TransformerEncoderLayer(12, 4, 17, batch_first=True)
    state = theirs.state_dict()
    LinformerEncoderLayer(12, 4, 17, max_len=LENGTH, k=5).load_state_dict(state, strict=False)
    assert list(state) == list(theirs.state_dict())


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_it_trains_inside_torchs_encoder_with_a_bool_padding_mask(trailing_padding, norm_first):
    layer = LinformerEncoderLayer(16, 4, 32, 0.0, norm_first=norm_first, max_len=24, k=6)
    model = nn.Sequential(nn.Embedding(8, 16), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    head = nn.Linear(16, 8)
    tokens, lengths = torch.randint(1, 8, (16, 20)), torch.randint(5, 21, (16,))
    mask = trailing_padding(lengths.tolist(), 20)
    target = torch.where(mask, 0, tokens).sum(dim=1) % 8  # asks for the whole sequence

    def loss():
        hidden = model[1](model[0](tokens), src_key_padding_mask=mask)
        return F.cross_entropy(head(hidden.masked_fill(mask[..., None], 0.0).mean(dim=1)), target)

    first = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    optimizer = torch.optim.Adam([*model.parameters(), *head.parameters()], lr=0.01)
    losses = []
    for _ in range(40):
        optimizer.zero_grad()
        losses.append(loss())
        losses[-1].backward()
        optimizer.step()
    assert losses[-1] < 0.5 * losses[0]
    assert all(not torch.equal(first[name], tensor) for name, tensor in model.state_dict().items())


def test_inside_torchs_encoder_it_is_the_stack_of_its_layers(trailing_padding):
    layer = LinformerEncoderLayer(12, 4, 17, max_len=LENGTH, k=5).eval()
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    mask = trailing_padding([LENGTH, 4], LENGTH)
    x = torch.randn(2, LENGTH, 12)
    expected = x
    for each in stack.layers:
        expected = each(expected, src_key_padding_mask=mask)
    with torch.inference_mode():
        assert_close(stack(x, src_key_padding_mask=mask), expected)
    with pytest.raises(ValueError, match="is_causal=True, but LinformerAttention is not causal"):
        stack(x, mask=nn.Transformer.generate_square_subsequent_mask(LENGTH))


def model_and_input(projection="linear"):
    return LinformerEncoder(12, 4, 2, 17, max_len=LENGTH, k=5, projection=projection), torch.randn(2, 7, 12)


@pytest.mark.parametrize("projection", ["linear", "random", "conv", "mean", "max"])
def test_state_goes_round_through_a_file(projection):
    (model, x), (other, _) = model_and_input(projection), model_and_input(projection)
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(model.eval()(x), other.eval()(x))


@pytest.mark.parametrize("how", ["deepcopy", "pickle", "torch-save"])
def test_copies_compute_the_same_and_share_nothing(how):
    model, x = model_and_input("random")
    file = io.BytesIO()
    if how == "torch-save":
        torch.save(model, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    else:
        other = copy.deepcopy(model) if how == "deepcopy" else pickle.loads(pickle.dumps(model))
    expected = model.eval()(x)
    assert torch.equal(other.eval()(x), expected)
    for tensor in [*other.parameters(), *other.buffers()]:
        tensor.data.add_(1.0)
    assert torch.equal(model(x), expected)


@pytest.mark.parametrize("options", [{}, {"window": 3}, {"causal": True, "window": 3}], ids=str)
@torch.no_grad()
def test_it_takes_the_place_of_the_attention_in_torchs_own_layer(randomize, trailing_padding, options):
    layer = randomize(nn.TransformerEncoderLayer(12, 4, 17, 0.0, batch_first=True)).eval()
    layer.self_attn = randomize(LinformerAttention(12, 4, 13, 5, **options))
    x, mask = torch.randn(2, 11, 12), trailing_padding([11, 7], 11)
    attended, _ = layer.self_attn(x, x, x, mask)
    between = layer.norm1(x + attended)
    expected = layer.norm2(between + layer.linear2(layer.linear1(between).relu()))
    assert_close(layer(x, src_key_padding_mask=mask), expected)
    stack = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    assert_close(stack(x, src_key_padding_mask=mask)[0], stack(x[:1])[0])

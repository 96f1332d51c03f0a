"""A local window beside the slots of a whole sequence: `window=` of bidirectional attention."""

import pytest
import torch
from budgets import WINDOW_ROUNDINGS
from map_choices import owned_maps
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder
from torch_linformer.nn.attention import FullAttention

DOUBLE = {"dtype": torch.float64}
LENGTH = 7


@pytest.mark.parametrize(
    ("projection", "sharing", "num_kv_heads"),
    [*((*owned, 2) for owned in owned_maps()), *((*owned, 4) for owned in owned_maps(sharings=("headwise",)))],
)
def test_output_and_gradients_are_those_of_the_definition(
    gradients, literal_attention, randomize, trailing_padding, projection, sharing, num_kv_heads
):
    options = {"projection": projection, "sharing": sharing, "num_kv_heads": num_kv_heads}
    module = randomize(LinformerAttention(12, 4, 11, 3, window=4, **options, **DOUBLE))
    x, mask = torch.randn(2, LENGTH, 12, requires_grad=True, **DOUBLE), trailing_padding([LENGTH, 2], LENGTH)
    clean = x.masked_fill(mask[..., None], 0.0)
    expected, expected_weights = literal_attention(module, clean, clean, clean, mask)
    expected = expected[~mask]
    wanted = [x, *module.parameters()]
    expected_gradients = gradients(expected, wanted)
    for need_weights in (False, True):
        output, weights = module(x, x, x, mask, need_weights=need_weights, average_attn_weights=False)
        assert_close(output[~mask], expected)
        assert_close(gradients(output[~mask], wanted), expected_gradients)
    assert weights.shape == (2, 4, LENGTH, 3 + 5)
    assert_close(weights.transpose(1, 2)[~mask], expected_weights.transpose(1, 2)[~mask])
    assert_close(weights.sum(dim=-1), torch.ones(2, 4, LENGTH, **DOUBLE))


@pytest.mark.parametrize("window", [1, 2, 5, 40])
@pytest.mark.parametrize("queries", [3, LENGTH, 10])
def test_queries_stand_at_their_own_number_in_another_sequence(literal_attention, randomize, window, queries):
    module = randomize(LinformerAttention(12, 4, 11, 3, window=window, **DOUBLE))
    query, memory = torch.randn(2, queries, 12, **DOUBLE), torch.randn(2, LENGTH, 12, **DOUBLE)
    actual = module(query, memory, memory)[0]
    assert_close(actual, literal_attention(module, query, memory, memory)[0])


@pytest.mark.parametrize(("projection", "sharing"), owned_maps(sharings=("none", "headwise", "layerwise")))
@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_inference_in_chunks_is_the_whole(trailing_padding, projection, sharing, norm_first):
    options = {"projection": projection, "sharing": sharing, "window": 6, "max_len": 13, "k": 5}
    model = LinformerEncoder(12, 4, 2, 17, 0.0, norm_first=norm_first, **options, **DOUBLE)
    x = torch.randn(3, 11, 12, **DOUBLE)
    with torch.no_grad():
        for mask in (None, trailing_padding([11, 7, 0], 11)):
            whole = model(x, src_key_padding_mask=mask)
            real = torch.ones(3, 11, dtype=torch.bool) if mask is None else ~mask
            for chunk_size in (1, 4):
                for module in [model, *model.layers]:
                    module.chunk_size = chunk_size
                assert_close(model(x, src_key_padding_mask=mask)[real], whole[real])
            for module in [model, *model.layers]:
                module.chunk_size = None


DYNAMIC = {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", "exact_first": 1}


@pytest.mark.parametrize("slots", [{}, DYNAMIC], ids=["linear", "dynamic"])
@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
def test_saving_memory_changes_no_gradient(gradients, monkeypatch, take_at_once, memory, slots):
    take_at_once(monkeypatch, pooled_scores=100)  # blocks, computed again
    options = {"window": 4, "max_len": 13, "k": 5, "norm_first": True, "activation_memory": memory, **slots}
    model = LinformerEncoder(12, 4, 2, 17, 0.0, **options, **DOUBLE)
    x = torch.randn(2, 11, 12, requires_grad=True, **DOUBLE)
    wanted = [x, *model.parameters()]
    actual = model(x)
    found = gradients(actual, wanted)
    if memory == "checkpoint":
        model.activation_memory = "none"
    expected = model(x, need_layers=True)
    assert_close(actual, expected)
    assert_close(found, gradients(expected, wanted))


def test_identity_projections_and_a_window_over_everything_are_full_attention(randomize):
    full = randomize(FullAttention(12, 4, **DOUBLE))
    module = LinformerAttention(12, 4, LENGTH, LENGTH, window=2 * LENGTH, **DOUBLE)
    module.load_state_dict(full.state_dict(), strict=False)
    for projection in (module.context.proj_k, module.context.proj_v):
        torch.nn.init.eye_(projection.weight)
    x = torch.randn(2, LENGTH, 12, **DOUBLE)
    assert_close(module(x, x, x)[0], full(x, x, x)[0])  # every key and value stands there twice


def test_a_window_adds_no_parameter():
    plain, windowed = (LinformerAttention(12, 4, 11, 3, window=window) for window in (None, 5))
    windowed.load_state_dict(plain.state_dict())
    assert windowed.window == 5 and plain.window is None


@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_acts_on_the_weights_and_only_in_training(need_weights):
    module = LinformerAttention(12, 4, 11, 3, dropout=0.5, window=5)
    calm = LinformerAttention(12, 4, 11, 3, window=5)
    calm.load_state_dict(module.state_dict())
    x = torch.randn(1, 11, 12).expand(3000, 11, 12)
    expected, expected_weights = calm(x, x, x, need_weights=True)
    with torch.no_grad():
        output, weights = module(x, x, x, need_weights=need_weights)
    assert not torch.allclose(output[0], output[1])
    assert_close(output.mean(dim=0), expected[0], atol=0.1, rtol=0.0)
    if need_weights:
        assert_close(weights, expected_weights)
    assert_close(module.eval()(x, x, x)[0], expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("autocast", [False, True], ids=["cast", "autocast"])
def test_low_precision_stays_near_float32(trailing_padding, dtype, autocast):
    module = LinformerAttention(12, 4, 100, 5, window=9)
    x, mask = torch.randn(2, 97, 12), trailing_padding([97, 40], 97)
    expected = module(x, x, x, mask)[0][~mask]
    if not autocast:
        module, x = module.to(dtype), x.to(dtype)
    with torch.autocast(torch.get_default_device().type, dtype=dtype, enabled=autocast):
        output = module(x, x, x, mask)[0]
    assert output.dtype == dtype
    assert (
        F.mse_loss(output[~mask].float(), expected).sqrt() <= WINDOW_ROUNDINGS * torch.finfo(dtype).eps * expected.std()
    )
    output.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())

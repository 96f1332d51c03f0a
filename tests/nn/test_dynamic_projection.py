"""`DynamicProjection` as a module, and what its slots keep of the contracts that other tests state for every map."""

import re
import warnings

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.testing import assert_close

from torch_linformer.functional.padding import Padding
from torch_linformer.nn import (
    DynamicProjection,
    LinformerAttention,
    LinformerDecoder,
    LinformerEncoder,
    SequenceProjection,
)
from torch_linformer.nn.attention.slot_maps import Pair, SlotMaps, Source

DOUBLE = {"dtype": torch.float64}
SHARINGS = ("none", "kv_per_head", "headwise", "kv")


def attention(sharing, **options):
    sizes = {"max_len": 23, "k": 5, "projection": "dynamic", "sharing": sharing, **DOUBLE}
    return LinformerAttention(12, 4, **{**sizes, **options})


@pytest.mark.parametrize("num_heads", [None, 3])
def test_slots_are_the_matrix_times_the_sequence(randomize, trailing_padding, num_heads):
    projection = randomize(DynamicProjection(11, 4, 5, num_heads=num_heads, **DOUBLE))
    heads = () if num_heads is None else (num_heads,)
    scored, pooled = torch.randn(2, *heads, 7, 5, **DOUBLE), torch.randn(2, *heads, 7, 6, **DOUBLE)
    padding = Padding(trailing_padding([7, 3], 7), in_order=True)
    matrix = projection.matrix(scored, padding)
    assert matrix.shape == (2, num_heads or 1, 7, 4)
    assert_close(matrix.sum(dim=2), torch.ones(2, num_heads or 1, 4, **DOUBLE))
    slots = matrix.mT @ (pooled if heads else pooled.unsqueeze(1))
    assert_close(projection(scored, [pooled], padding)[0], slots if heads else slots.squeeze(1))


def test_new_slots_are_smooth_means_around_the_segments_of_the_row_itself(trailing_padding):
    projection = DynamicProjection(4096, 4, 6)
    torch.nn.init.zeros_(projection.weight)
    places = torch.arange(40.0).reshape(1, 40, 1).expand(2, 40, 6)
    padding = Padding(trailing_padding([40, 8], 40), in_order=True)
    slots = projection(places, [places[..., :1]], padding)[0].squeeze(-1)
    centers = torch.tensor([[4.5, 14.5, 24.5, 34.5], [0.5, 2.5, 4.5, 6.5]])
    assert_close(slots[:, 1:3], centers[:, 1:3], atol=0.5, rtol=0.0)
    assert (slots.diff(dim=1) > 0.8 * centers.diff(dim=1)).all()
    tokens = projection.tokens_of_slots(places, padding)
    assert_close(tokens, torch.tensor([[10.0], [2.0]]).expand(2, 4))


def test_its_numbers_of_parameters():
    for sharing, shapes in (
        ("none", [(4, 5, 3)] * 2),
        ("kv_per_head", [(4, 5, 3)]),
        ("headwise", [(5, 7), (5, 9)]),
        ("kv", [(5, 7)]),
    ):
        module = attention(sharing, kdim=7, vdim=9)
        maps = [one for one in (module.context.proj_k, module.context.proj_v) if one is not None]
        assert [tuple(one.weight.shape) for one in maps] == shapes
        assert all(one.shift.shape == one.log_steepness.shape == (5,) for one in maps)
    stack = LinformerEncoder(12, 4, 3, max_len=23, k=5, projection="dynamic", sharing="layerwise")
    names = [name for name, _ in stack.named_parameters() if "projection" in name or "proj_" in name]
    assert names == [f"shared_projection.{name}" for name in ("weight", "shift", "log_steepness")]


@pytest.mark.parametrize("sharing", SHARINGS)
def test_both_orders_are_one_function_and_the_cheaper_one_is_taken(monkeypatch, sharing):
    long, short = (attention(sharing, max_len=max_len) for max_len in (977, 23))
    x = torch.randn(1, 977, 12, **DOUBLE)
    shared = sharing in ("headwise", "kv")
    for module, length, expected in ((long, 977, shared), (short, 3, False)):
        inputs = x[:, :length]
        source = Source(Pair(inputs, inputs), None, module.head_maps)
        assert module.context.maps().compresses_first(source, has_heads=False) == expected
    found = []
    for first in (shared, False):
        monkeypatch.setattr(SlotMaps, "compresses_first", lambda *_, first=first: first)
        found.append(long(x, x, x)[0])
    assert_close(*found)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_training_keeps_no_array_of_positions_times_slots(sharing):
    module, length = attention(sharing, max_len=512, k=64), 512
    x, kept = torch.randn(1, length, 12, requires_grad=True, **DOUBLE), []
    with saved_tensors_hooks(lambda x: (kept.append(x.numel()), x)[1], lambda x: x):
        output = module(x[:, :1], x, x)[0]  # of one query, whose scores are no more than slots
    output.sum().backward()
    assert max(kept) <= 2 * length * 12 < length * 64


@pytest.mark.parametrize("chunk_size", [None, 3])
@torch.no_grad()
def test_models_are_mapped_by_torch_func(randomize, chunk_size):
    options = {"max_len": 23, "k": 5, "projection": "dynamic", "sharing": "kv_per_head", **DOUBLE}
    model = randomize(LinformerEncoder(12, 4, 1, 17, 0.0, chunk_size=chunk_size, **options))
    x = torch.randn(3, 2, 7, 12, **DOUBLE)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "There is a performance drop", UserWarning)  # PyTorch's own, of its SDPA
        mapped = torch.func.vmap(model)(x)
    assert_close(mapped, torch.stack([model(row) for row in x]))


@pytest.mark.parametrize("sharing", SHARINGS)
def test_no_rows_and_no_positions(sharing):
    module = attention(sharing, slot_mass="learned", exact_first=2, exact_last=1)
    for batch, length in ((0, 7), (2, 0)):
        memory = torch.randn(batch, length, 12, requires_grad=True, **DOUBLE)
        output, weights = module(torch.randn(batch, 3, 12, **DOUBLE), memory, memory, need_weights=True)
        assert output.shape == (batch, 3, 12) and weights.shape == (batch, 3, 8)
        assert output.isfinite().all()
        output.sum().backward()


@pytest.mark.parametrize("sharing", [*SHARINGS, "layerwise"])
def test_a_decoder_reads_a_memory_of_any_width(randomize, trailing_padding, sharing):
    options = {"max_len": 13, "k": 3, "memory_len": 9, "memory_dim": 6, "projection": "dynamic", "sharing": sharing}
    model = randomize(LinformerDecoder(12, 4, 2, 17, 0.0, **options, slot_mass="learned", exact_first=2, **DOUBLE))
    target, memory = torch.randn(3, 5, 12, **DOUBLE), torch.randn(3, 9, 6, **DOUBLE)
    mask = trailing_padding([9, 4, 1], 9).flip(-1)
    output = model(target, memory.masked_fill(mask[..., None], float("nan")), memory_key_padding_mask=mask)
    for row in range(3):
        alone = memory[row : row + 1, ~mask[row]]
        assert_close(output[row], model(target[row : row + 1], alone)[0])


def test_resized_slots_are_those_of_before():
    for mode in ("interpolate", "keep"):
        module, x = attention("kv"), torch.randn(2, 23, 12, **DOUBLE)
        before = module(x, x, x)[0]
        module.resize_max_len(99, mode)
        assert torch.equal(module(x, x, x)[0], before)
        assert module.context.proj_k.max_len == 99
    with pytest.raises(ValueError, match=r"^max_len must be at least k = 5, got 4$"):
        module.resize_max_len(4)
    with pytest.raises(ValueError, match=r"^mode must be 'interpolate' or 'keep', got 'stretch'$"):
        module.resize_max_len(30, "stretch")


def test_what_cannot_be_done_is_refused():
    with pytest.raises(ValueError, match=r"^k must lie between 1 and max_len = 7, got 0$"):
        DynamicProjection(7, 0, 4)
    with pytest.raises(
        ValueError, match=r"8 positions but max_len is 7: cut the input to 7, or call resize_max_len\(8\)"
    ):
        DynamicProjection(7, 2, 4)(torch.randn(1, 8, 4), [torch.randn(1, 8, 4)])
    with pytest.raises(ValueError, match=r"^projection must be one of linear, random, conv, mean, max, got 'dynamic'$"):
        SequenceProjection(7, 2, projection="dynamic")
    message = "slot_mass='fixed' has no effect on slots made by projection='linear': leave it at 'none'"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        LinformerEncoder(12, 4, 2, max_len=7, k=2, sharing="layerwise", slot_mass="fixed")
    x, without = torch.randn(1, 5, 12), LinformerAttention(12, 4, 7, 2, projection=None, slot_mass="fixed")
    with pytest.raises(
        ValueError, match=r"^slot_mass needs slots that stand for tokens: those of 'linear' maps mix them"
    ):
        without(x, x, x, shared_projection=SequenceProjection(7, 2))
    assert without(x, x, x, shared_projection=DynamicProjection(7, 2, 12))[0].shape == x.shape

"""The cost model, against numbers worked out by hand and against torch's own count of what the modules compute."""

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from torch_linformer.measuring.costs import (
    Cost,
    LayerSizes,
    feedforward_cost,
    full_attention_cost,
    layer_ratio,
    linformer_attention_cost,
)
from torch_linformer.nn import LinformerAttention
from torch_linformer.nn.attention import FullAttention

# N = 5, K = 2, C = 3, H = 1, F = 7
SIZES = LayerSizes(length=5, k=2, batch=1, width=3, heads=1, feedforward=7)
LARGER = LayerSizes(length=101, k=13, batch=2, width=24, heads=3, feedforward=40)


def counted_multiplications(module, sizes):
    states = torch.zeros(sizes.batch, sizes.length, sizes.width)
    with FlopCounterMode(display=False) as counter:
        # Step by step: what the fused kernel of a CPU computes is not counted.
        module(states, states, states, need_weights=True)
    return counter.get_total_flops() // 2


@pytest.mark.parametrize(
    ("sharing", "order", "multiplications", "elements"),
    [
        # around: queries, output 2·5·9 + slots attended 2·5·2·3 = 150; q, mixed heads, output 45 + scores, weights 20
        ("none", "project_last", 150 + 90 + 60, 65 + 30 + 12),
        ("headwise", "project_last", 150 + 90 + 60, 65 + 30 + 12),
        ("headwise", "compress_first", 150 + 60 + 36, 65 + 12 + 12),
        ("kv", "compress_first", 150 + 30 + 36, 65 + 6 + 12),
        ("layerwise", "compress_first", 150 + 30 + 36, 65 + 6 + 12),
    ],
)
def test_attention_by_hand(sharing, order, multiplications, elements):
    cost = linformer_attention_cost(SIZES, sharing, order)
    assert cost == Cost(multiplications=multiplications, bytes=4 * elements)


def test_ordinary_attention_and_feedforward_by_hand():
    assert full_attention_cost(SIZES) == Cost(multiplications=180 + 150, bytes=4 * (75 + 50))
    assert feedforward_cost(SIZES) == Cost(multiplications=210, bytes=4 * (70 + 15))


def test_batch_and_dtype_multiply():
    once, more = full_attention_cost(SIZES), full_attention_cost(replace(SIZES, batch=3, dtype="bfloat16"))
    assert more == Cost(multiplications=3 * once.multiplications, bytes=3 * once.bytes // 2)


@pytest.mark.parametrize("sharing", ["none", "kv_per_head", "headwise", "kv"])
@pytest.mark.parametrize("length", [17, 101])
def test_our_attention_computes_what_the_model_says(sharing, length):
    sizes = replace(LARGER, length=length)
    module = LinformerAttention(24, 3, max_len=length, k=13, sharing=sharing, bias=False)
    assert counted_multiplications(module, sizes) == linformer_attention_cost(sizes, sharing).multiplications


def test_the_cheapest_order_depends_on_the_length():
    short, long = replace(LARGER, length=14), LARGER
    first, last = (
        [linformer_attention_cost(sizes, "headwise", order) for sizes in (short, long)]
        for order in ("compress_first", "project_last")
    )
    assert linformer_attention_cost(short) == min(first[0], last[0], key=lambda cost: cost.multiplications)
    assert linformer_attention_cost(long) == first[1]
    assert first[1].multiplications < last[1].multiplications


def test_ordinary_attention_computes_what_the_model_says():
    module = FullAttention(24, 3, bias=False)
    assert counted_multiplications(module, LARGER) == full_attention_cost(LARGER).multiplications


@pytest.mark.parametrize("sharing", ["none", "kv_per_head"])
def test_heads_with_matrices_of_their_own_cannot_compress_first(sharing):
    with pytest.raises(ValueError, match=f"'{sharing}' has no order compress_first"):
        linformer_attention_cost(SIZES, sharing, "compress_first")


def test_the_ratio_of_layers_counts_the_feedforward_on_both_sides():
    multiplications, size = layer_ratio(SIZES, sharing="kv")
    assert multiplications == pytest.approx((330 + 210) / (216 + 210))
    assert size == pytest.approx((125 + 85) / (83 + 85))

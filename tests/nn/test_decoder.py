"""The decoder: torch's at E = F = I, causal to the bit, exact padding on both sides, one compression a memory."""

import copy

import pytest
import torch
from map_choices import owned_maps
from torch import nn
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerDecoder, LinformerDecoderLayer
from torch_linformer.nn.attention import FullAttention, Past
from torch_linformer.nn.decoder import Decoder, DecoderLayer

DOUBLE = {"dtype": torch.float64}
MEMORY_MAPS = ["multihead_attn.context.proj_k.weight", "multihead_attn.context.proj_v.weight"]
WIDTH, MEMORY_WIDTH, HEADS, N, M = 12, 10, 4, 11, 14
SIZES = {"max_len": 13, "k": 5, "memory_len": 17, "memory_k": 3, "memory_dim": MEMORY_WIDTH, "window": 3, **DOUBLE}
KINDS = ("post-norm", "pre-norm", "full")
CASES = [
    *(pytest.param(kind, {}, id=kind) for kind in KINDS),
    *(pytest.param("pre-norm", {"projection": name}, id=name) for name in ("random", "conv", "mean", "max")),
    *(pytest.param("pre-norm", {"sharing": name}, id=name) for name in ("none", "kv", "layerwise")),
    pytest.param("pre-norm", {"rotary_dim": 2, "num_kv_heads": 2, "gated": True}, id="rotary-grouped-gated"),
    pytest.param("pre-norm", {"rotary_dim": 2, "sharing": "layerwise"}, id="rotary-layerwise"),
    pytest.param("post-norm", {"k": 0}, id="window-alone"),
]


def full_layer(**options):
    layout = {"dim_feedforward": 17, "dropout": 0.0, **options}
    memory = {"kdim": MEMORY_WIDTH, "vdim": MEMORY_WIDTH}
    attentions = FullAttention(WIDTH, HEADS, causal=True, **DOUBLE), FullAttention(WIDTH, HEADS, **memory, **DOUBLE)
    return DecoderLayer(*attentions, **layout, **DOUBLE)


def build(kind, **options):
    """Two layers."""
    if kind == "full":
        stack = {name: options.pop(name) for name in ("activation_memory",) if name in options}
        return Decoder([full_layer(**options) for _ in range(2)], **stack)
    return LinformerDecoder(WIDTH, HEADS, 2, 17, 0.0, norm_first=kind == "pre-norm", **{**SIZES, **options})


def inputs(rows=2):
    return torch.randn(rows, N, WIDTH, **DOUBLE), torch.randn(rows, M, MEMORY_WIDTH, **DOUBLE)


@pytest.fixture
def masks(trailing_padding):
    """Padding of four targets and of their memories."""
    return {
        "tgt_key_padding_mask": trailing_padding([N, 7, 1, 5], N),
        "memory_key_padding_mask": trailing_padding([9, M, 4, 1], M),
    }


@pytest.mark.parametrize(("projection", "sharing"), [*owned_maps(), ("full", None)])
def test_attending_to_what_was_compressed_is_attending_to_the_memory(trailing_padding, randomize, projection, sharing):
    sizes = {"kdim": 7, "vdim": 7, "num_kv_heads": 2, **DOUBLE}
    if projection == "full":
        attention = FullAttention(WIDTH, HEADS, **sizes)
    else:
        attention = LinformerAttention(WIDTH, HEADS, M, 5, projection=projection, sharing=sharing, **sizes)
    randomize(attention)
    query, memory = torch.randn(3, N, WIDTH, **DOUBLE), torch.randn(3, M, 7, **DOUBLE)
    mask = trailing_padding([M, 5, 0], M)
    compressed = attention.compress(memory, key_padding_mask=mask)
    expected = attention(query, memory, memory, mask, need_weights=True)
    assert_close(attention(query, compressed, need_weights=True), expected, rtol=0, atol=0)
    for step in range(N):
        assert_close(attention(query[:, step : step + 1], compressed)[0], expected[0][:, step : step + 1])
    values = torch.randn_like(memory)
    assert_close(attention(query, attention.compress(memory, values, mask)), attention(query, memory, values, mask))
    order = torch.tensor([2, 0, 0])
    assert_close(attention(query[order], compressed.rows(order), need_weights=True), tuple(x[order] for x in expected))
    tensors = [x for x in compressed.slots if x is not None]
    assert compressed.nbytes == sum(len(x.numpy(force=True).tobytes()) for x in tensors)


def test_exact_tokens_are_those_of_the_memory():
    layer = LinformerDecoderLayer(WIDTH, HEADS, 17, 0.0, exact_first=2, exact_last=1, **SIZES)
    target = LinformerAttention(WIDTH, HEADS, 13, 5, causal=True, window=3, **DOUBLE)
    width = {"kdim": MEMORY_WIDTH, "vdim": MEMORY_WIDTH}
    memory = LinformerAttention(WIDTH, HEADS, 17, 3, exact_first=2, exact_last=1, **width, **DOUBLE)
    expected = DecoderLayer(target, memory, 17, 0.0, **DOUBLE)
    expected.load_state_dict(layer.state_dict())
    sequences = inputs()
    assert_close(layer(*sequences), expected(*sequences))


def test_what_was_compressed_keeps_its_window():
    attention = LinformerAttention(WIDTH, HEADS, M, 5, window=4, **DOUBLE)
    x = torch.randn(3, N, WIDTH, **DOUBLE)
    compressed = attention.compress(x)
    assert_close(attention(x, compressed)[0], attention(x, x, x)[0])
    order = torch.tensor([1, 2])
    assert_close(attention(x[order], compressed.rows(order))[0], attention(x, x, x)[0][order])
    assert compressed.nbytes == sum(
        len(part.numpy(force=True).tobytes()) for part in (*compressed.slots[:2], *compressed.window[:2])
    )


def test_what_cannot_be_compressed_or_attended_to_is_refused():
    attention = LinformerAttention(WIDTH, HEADS, M, 5)
    query, memory = torch.randn(2, N, WIDTH), torch.randn(2, M, WIDTH)
    compressed = attention.compress(memory)
    for extra in ({"value": memory}, {"key_padding_mask": torch.zeros(2, M, dtype=torch.bool)}):
        with pytest.raises(ValueError, match=r"value and key_padding_mask belong to compress\(\)"):
            attention(query, compressed, **extra)
    with pytest.raises(ValueError, match="query has a batch of 1, but what was compressed one of 2"):
        attention(query[:1], compressed)
    with pytest.raises(ValueError, match=r"query must have .* the last of 12 channels, got shape \(2, 11, 11\)"):
        attention(query[..., 1:], compressed)
    with pytest.raises(ValueError, match="has 4 heads of width 3, this attention 2 of 6: it was made by another"):
        LinformerAttention(WIDTH, 2, M, 5)(query, compressed)
    with pytest.raises(ValueError, match="a causal attention has no slots of a whole memory: build one with causal=F"):
        LinformerAttention(WIDTH, HEADS, M, 5, causal=True).compress(memory)
    with pytest.raises(ValueError, match=r"key must have .* the last of 12 channels, got shape \(2, 14, 11\)"):
        attention.compress(memory[..., 1:])


TORCH_LAYOUTS = [
    {"norm_first": norm_first, "activation": activation, "bias": bias}
    for norm_first in (False, True)
    for activation, bias in (("relu", True), ("gelu", False))
]


@pytest.mark.parametrize("layout", TORCH_LAYOUTS, ids=lambda layout: "-".join(map(str, layout.values())))
@pytest.mark.parametrize("kind", ["linformer", "full"])
def test_it_is_torchs_layer_where_nothing_is_compressed(randomize, gradients, trailing_padding, layout, kind):
    """With a slot for every position of the memory (E = F = I) and a window over the whole target."""
    theirs = randomize(nn.TransformerDecoderLayer(WIDTH, HEADS, 17, 0.0, batch_first=True, **layout, **DOUBLE))
    bias = {"bias": layout["bias"], **DOUBLE}
    if kind == "full":
        attentions = FullAttention(WIDTH, HEADS, causal=True, **bias), FullAttention(WIDTH, HEADS, **bias)
        ours = DecoderLayer(*attentions, 17, 0.0, **layout, **DOUBLE)
    else:
        sizes = {"max_len": N, "k": 0, "window": N, "memory_len": M, "memory_k": M, "length_scaling": False}
        ours = LinformerDecoderLayer(WIDTH, HEADS, 17, 0.0, **sizes, **layout, **DOUBLE)
    missing, unexpected = ours.load_state_dict(theirs.state_dict(), strict=False)
    assert unexpected == []
    assert missing == ([] if kind == "full" else MEMORY_MAPS)
    for name in missing:
        nn.init.eye_(ours.get_parameter(name))
    tgt, memory = (torch.randn(3, length, WIDTH, **DOUBLE, requires_grad=True) for length in (N, M))
    mask = torch.ones(N, N, dtype=torch.bool).triu(1)
    padding = trailing_padding([N, 7, 1], N)
    real = ~padding[..., None]
    expected = theirs(tgt, memory, mask, tgt_key_padding_mask=padding, tgt_is_causal=True).where(real, 0.0)
    actual = ours(tgt, memory, tgt_key_padding_mask=padding).where(real, 0.0)
    assert_close(actual, expected)
    shared = [name for name, _ in ours.named_parameters() if "q_proj" not in name and "attn" not in name]
    wanted = [[tgt, memory, *(layer.get_parameter(name) for name in shared)] for layer in (ours, theirs)]
    assert_close(gradients(actual, wanted[0]), gradients(expected, wanted[1]))


def test_weights_of_torchs_layer_fit_but_for_projections_and_slots():
    ours = LinformerDecoderLayer(WIDTH, HEADS, 17, max_len=N, k=5)
    missing, unexpected = ours.load_state_dict(nn.TransformerDecoderLayer(WIDTH, HEADS, 17).state_dict(), strict=False)
    slots = [f"self_attn.context.running.{name}" for name in ("address", "log_time", "score_bias")]
    assert (missing, unexpected) == ([*slots, *MEMORY_MAPS], [])


def test_a_stack_is_its_layers_and_a_final_norm(randomize):
    tgt, memory = inputs()
    for kind, final_norm in (("post-norm", True), ("pre-norm", True), ("pre-norm", False)):
        decoder = randomize(build(kind, final_norm=final_norm))
        expected = tgt
        for layer in decoder.layers:
            expected = layer(expected, memory)
        assert (decoder.norm is not None) == (kind == "pre-norm" and final_norm)
        assert_close(decoder(tgt, memory), expected if decoder.norm is None else decoder.norm(expected))


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_no_output_depends_on_what_comes_after_it(randomize, kind, options):
    decoder = randomize(build(kind, **options))
    tgt, memory = (x.requires_grad_() for x in inputs())
    output = decoder(tgt, memory)
    weights = torch.randn(WIDTH, **DOUBLE)
    for t in range(N):
        to_tgt, to_memory = torch.autograd.grad(output[:, t] @ weights, [tgt, memory], torch.ones(2, **DOUBLE), True)
        assert not to_tgt[:, t + 1 :].any()
        assert to_tgt[:, : t + 1].any(dim=-1).all() or options.get("k") == 0
        # The maximum of a window is at a few of its positions.
        assert to_memory.any(dim=-1).all() or options.get("projection") == "max"


@pytest.mark.parametrize(("kind", "options"), CASES)
def test_a_padded_row_is_the_row_alone_and_what_stands_at_padding_reaches_nothing(
    randomize, gradients, masks, kind, options
):
    decoder = randomize(build(kind, **options))
    hidden = [mask[..., None] for mask in masks.values()]
    clean = inputs(4)
    results = []
    for poison in (None, float("nan"), float("inf")):
        pair = [x if poison is None else x.masked_fill(mask, poison) for x, mask in zip(clean, hidden, strict=True)]
        pair = [x.requires_grad_() for x in pair]
        output = decoder(*pair, **masks)
        found = gradients(output, [*pair, *decoder.parameters()])
        for gradient, mask in zip(found, masks.values(), strict=False):
            assert not gradient[mask].any()
        results.append([output, *found])
    for expected, *others in zip(*results, strict=True):
        assert expected.isfinite().all()
        assert all(torch.equal(other, expected) for other in others)
    for row in range(4):
        n, m = ((~mask[row]).sum() for mask in masks.values())
        assert_close(results[0][0][row, :n], decoder(clean[0][row, :n], clean[1][row, :m]))


@torch.no_grad()
def test_what_is_compressed_does_not_grow_with_the_memory():
    decoder = build("pre-norm")
    sizes = {sum(x.nbytes for x in decoder.compress(inputs()[1][:, :length])) for length in (1, 5, M)}
    assert sizes == {2 * 2 * 2 * 3 * WIDTH * 8}  # layers, rows, keys and values, slots, channels, bytes


@pytest.mark.parametrize("chunk_size", [1, 4, 100])
@pytest.mark.parametrize("kind", KINDS)
def test_chunks_change_nothing(randomize, gradients, masks, kind, chunk_size):
    whole = randomize(build(kind))
    chunked = build(kind, chunk_size=chunk_size)
    chunked.load_state_dict(whole.state_dict())
    tgt, memory = (x.requires_grad_() for x in inputs(4))
    real = ~masks["tgt_key_padding_mask"][..., None]

    def run(decoder):
        return decoder(tgt, memory, **masks).where(real, 0.0)

    expected, actual = run(whole), run(chunked)
    assert_close(actual, expected)
    found = [gradients(x, [tgt, memory, *m.parameters()]) for x, m in ((actual, chunked), (expected, whole))]
    assert_close(*found)
    with torch.no_grad():
        assert_close(run(chunked), expected)
        compressed, pasts = chunked.compress(memory), [Past(), Past()]
        steps = [chunked(part, compressed, pasts=pasts) for part in tgt.split(5, dim=1)]
        assert_close(torch.cat(steps, dim=1), whole(tgt, memory))
        assert_close(chunked(tgt[0], memory[0]), whole(tgt[0], memory[0]))


def test_inference_in_chunks_feeds_no_more_than_a_chunk_forward(monkeypatch):
    decoder, seen = build("pre-norm", chunk_size=4), []
    plain = DecoderLayer.feed_forward
    monkeypatch.setattr(DecoderLayer, "feed_forward", lambda self, x: seen.append(x.shape[1]) or plain(self, x))
    with torch.no_grad():
        decoder(*inputs())
    assert seen == [4, 4, 3] * 2


def test_checkpoints_keep_the_input_of_each_layer_alone():
    kept = {}
    for memory in ("none", "checkpoint"):
        decoder, stored = build("pre-norm", activation_memory=memory), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, stored=stored: stored.append(x.numel()) or x, lambda x: x
        ):
            decoder(*(x.requires_grad_() for x in inputs())).sum()
        kept[memory] = sum(stored)
    assert kept["checkpoint"] < kept["none"] / 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_past_under_checkpoints_is_read_once(gradients, kind):
    plain, (tgt, memory) = build(kind), inputs()
    saving = copy.deepcopy(plain)
    saving.activation_memory = "checkpoint"
    found = []
    for decoder in (plain, saving):
        pasts = [Past(), Past()]
        output = torch.cat([decoder(part, memory, pasts=pasts) for part in tgt.split(6, dim=1)], dim=1)
        found.append(gradients(output, [*decoder.parameters()]))
    assert_close(*found)


@pytest.mark.parametrize(
    ("sharing", "matrices"), [("none", 2 * 2 * HEADS), ("headwise", 2 * 2), ("kv", 2), ("layerwise", 1)]
)
def test_projections_of_the_memory_are_counted_by_their_sharing(sharing, matrices):
    decoder = build("pre-norm", sharing=sharing)
    found = [p for p in decoder.parameters() if p.shape[-2:] == (17, 3)]
    assert sum(p.numel() for p in found) == matrices * 17 * 3
    assert len({id(p) for p in found}) == len([n for n in decoder.state_dict() if ".proj_" in n or "shared_" in n])


def test_slots_may_differ_from_layer_to_layer():
    decoder = build("pre-norm", k=[2, 5], memory_k=[4, 1])
    assert [x.slots.keys.shape[2] for x in decoder.compress(inputs()[1])] == [4, 1]
    assert [layer.self_attn.context.running.k for layer in decoder.layers] == [2, 5]
    narrow = LinformerDecoder(WIDTH, HEADS, 2, max_len=50, k=[20, 40], memory_len=30)
    assert [layer.multihead_attn.context.proj_k.k for layer in narrow.layers] == [20, 30]
    assert LinformerDecoderLayer(WIDTH, HEADS, max_len=50, k=20).multihead_attn.context.proj_k.max_len == 50


@pytest.mark.parametrize("mask_dtype", [torch.bool, torch.float32])
def test_torchs_decoder_takes_the_layer(trailing_padding, mask_dtype):
    layer = LinformerDecoderLayer(WIDTH, HEADS, 17, **{**SIZES, "memory_dim": None})
    stack = nn.TransformerDecoder(layer, 2).eval()
    tgt, memory = torch.randn(2, N, WIDTH, **DOUBLE), torch.randn(2, M, WIDTH, **DOUBLE)
    masks = {
        "tgt_key_padding_mask": trailing_padding([N, 7], N),
        "memory_key_padding_mask": trailing_padding([9, M], M),
    }
    expected = tgt
    for each in stack.layers:
        expected = each(expected, memory, **masks)
    causal = nn.Transformer.generate_square_subsequent_mask(N)
    causal = causal != 0 if mask_dtype == torch.bool else causal
    assert_close(stack(tgt, memory, tgt_mask=causal, **masks), expected)
    assert_close(stack(tgt, memory, tgt_mask=causal, tgt_is_causal=True, **masks), expected)
    assert_close(stack(tgt, memory, **masks), expected)


@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("grad", [True, False])
def test_masks_are_the_causal_one_or_refused(chunk_size, grad):
    decoder, (tgt, memory) = build("post-norm", chunk_size=chunk_size), inputs()
    causal = nn.Transformer.generate_square_subsequent_mask(N, **DOUBLE)
    with torch.set_grad_enabled(grad):
        for mask in (causal, causal != 0, causal.masked_fill(causal != 0, torch.finfo(torch.float64).min)):
            assert_close(decoder(tgt, memory, tgt_mask=mask), decoder(tgt, memory))
        for mask in (
            torch.zeros(N, N),
            causal.T,
            causal + 0.5,
            (causal != 0)[1:, 1:],
            torch.zeros(8, N, N, dtype=torch.bool),
        ):
            shape = ", ".join(map(str, mask.shape))
            with pytest.raises(ValueError, match=rf"tgt_mask of shape \({shape}\) is not the causal mask of 11 posit"):
                decoder(tgt, memory, tgt_mask=mask)
        for options in ({"memory_mask": torch.zeros(N, M)}, {"memory_is_causal": True}):
            with pytest.raises(ValueError, match="the memory is read whole: memory_mask must be None and memory_is_ca"):
                decoder(tgt, memory, **options)


def test_a_padding_mask_beside_a_compressed_memory_is_refused():
    decoder, (tgt, memory) = build("post-norm"), inputs()
    with pytest.raises(ValueError, match=r"memory_key_padding_mask belongs to compress\(\)"):
        decoder(tgt, decoder.compress(memory), memory_key_padding_mask=torch.zeros(2, M, dtype=torch.bool))


@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
@pytest.mark.parametrize("mode", ["interpolate", "keep"])
def test_a_longer_memory_is_refused_until_the_decoder_is_resized(sharing, mode):
    decoder, tgt = build("pre-norm", sharing=sharing), inputs()[0]
    short, long = torch.randn(2, 15, MEMORY_WIDTH, **DOUBLE), torch.randn(2, 19, MEMORY_WIDTH, **DOUBLE)
    message = r"the memory has 19 positions but memory_len is 17: .* to 17, or call resize_memory_len\(19\) on the"
    for read in (lambda: decoder(tgt, long), lambda: decoder.compress(long)):
        with pytest.raises(ValueError, match=message):
            read()
    before = decoder(tgt, short)
    decoder.resize_memory_len(19, mode)
    assert decoder(tgt, long).isfinite().all()
    if mode == "keep":
        assert_close(decoder(tgt, short), before)

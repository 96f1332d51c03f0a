"""What cannot be done is refused with a message that says what came, what was expected and what to do."""

import re

import pytest
import torch
from builders import DECODERS, SELF_ATTENTION, attention, decoder, decoder_layer, encoder, encoder_layer, full_attention
from torch import nn

CHOICES = {
    "projection": "projection must be one of linear, random, conv, mean, max, dynamic, got 'other'",
    "sharing": "sharing must be one of none, kv_per_head, headwise, kv, layerwise, got 'other'",
    "slot_mass": "slot_mass must be one of none, fixed, learned, got 'other'",
}
OUT_OF_RANGE = [
    ({"k": 0}, "k must lie between 1 and max_len = 13, got 0"),
    ({"k": 0, "exact_first": 2}, "k must lie between 1 and max_len = 13, got 0"),
    ({"k": -1, "window": 4}, "k must lie between 1 and max_len = 13, got -1"),
    ({"k": 14}, "k must lie between 1 and max_len = 13, got 14"),
    ({"k": 14, "projection": "dynamic"}, "k must lie between 1 and max_len = 13, got 14"),
    ({"max_len": 0}, "max_len must be at least 1, got 0"),
    ({"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
    ({"num_kv_heads": 8}, "num_heads 4 is not a multiple of num_kv_heads 8"),
    ({"num_kv_heads": 0}, "num_heads and num_kv_heads must be at least 1, got 4 and 0"),
    ({"window": -2}, "window must be at least 1 token, or None for no window, got -2"),
    ({"exact_first": -1}, "exact_first must be at least 0 tokens, got -1"),
    ({"exact_last": -2}, "exact_last must be at least 0 tokens, got -2"),
    (
        {"exact_first": 9, "exact_last": 5},
        "exact_first + exact_last = 14 tokens, but the longest sequence has max_len = 13",
    ),
]
OUT_OF_RANGE_CAUSAL = [
    ({"k": -1}, "k must be at least 0 and max_len at least 1, got -1 and 13"),
    ({"max_len": 0}, "k must be at least 0 and max_len at least 1, got 5 and 0"),
    ({"k": 0}, "k=0 leaves nothing to attend to: give window, or k of at least 1"),
    ({"window": 0}, "window must be at least 1 token, or None for no window, got 0"),
    ({"exact_first": -1}, "exact_first must be at least 0 tokens, got -1"),
    *(
        ({"rotary_dim": width}, f"rotary_dim must be even and lie between 0 and head_dim = 3, got {width}")
        for width in (3, 4, -2)
    ),
]
OUT_OF_RANGE_MEMORY = [
    ({"memory_k": 0}, "memory_k must lie between 1 and memory_len = 13, got 0"),
    ({"memory_k": 14}, "memory_k must lie between 1 and memory_len = 13, got 14"),
    ({"k": 0, "window": 3}, "memory_k must lie between 1 and memory_len = 13, got 0"),
    ({"memory_len": 0}, "memory_len must be at least 1, got 0"),
    ({"k": 0, "memory_k": 3}, "k=0 leaves nothing to attend to: give window, or k of at least 1"),
]
OF_A_DECODER_STACK = [
    (
        {"activation_memory": "reversible"},
        "activation_memory='reversible' belongs to encoders: take 'checkpoint' for a decoder",
    ),
    ({"k": [1, 2, 3]}, "k must be one number or one a layer (2), got 3 numbers"),
    ({"memory_k": [1]}, "memory_k must be one number or one a layer (2), got 1 numbers"),
    ({"memory_k": [1, 2], "sharing": "layerwise"}, "memory_k must be one number, got [1, 2]"),
    ({"k": [1, 2], "sharing": "layerwise"}, "memory_k must be one number, got [1, 2]"),
]
OF_LAYERS = [
    ({"activation": "swish"}, "activation must be a callable or one of gelu, relu, silu, got 'swish'"),
    ({"chunk_size": 0}, "chunk_size must be at least 1"),
]
OF_A_LAYER = [({"sharing": "layerwise"}, "sharing='layerwise' shares one projection among layers, so a lone layer")]
CAUSAL = [({"causal": True, **options}, message) for options, message in OUT_OF_RANGE_CAUSAL]
REFUSED = [
    (build, options, message)
    for cases, builders in (
        ([({name: "other"}, message) for name, message in CHOICES.items()], (*SELF_ATTENTION, *DECODERS)),
        (OUT_OF_RANGE, SELF_ATTENTION),
        (CAUSAL, SELF_ATTENTION),
        (OUT_OF_RANGE_MEMORY, DECODERS),
        (OF_LAYERS, (encoder_layer, encoder, *DECODERS)),
        (OF_A_LAYER, (attention, encoder_layer, decoder_layer)),
        (OF_A_DECODER_STACK, (decoder,)),
    )
    for options, message in cases
    for build in builders
]


@pytest.mark.parametrize(
    ("build", "options", "message"), REFUSED, ids=lambda value: getattr(value, "__name__", str(value))
)
def test_arguments_out_of_range_are_named(build, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build(**options)


def test_heads_that_do_not_fit_the_width_are_named():
    with pytest.raises(ValueError, match="embed_dim 12 is not a multiple of num_heads 5; give head_dim"):
        attention(num_heads=5)
    with pytest.raises(ValueError, match="num_heads and num_kv_heads must be at least 1, got 0 and 0"):
        attention(num_heads=0)
    x = torch.randn(2, 7, 12)
    assert attention(num_heads=5, head_dim=3)(x, x, x)[0].shape == x.shape


@pytest.mark.parametrize("build", [attention, full_attention])
def test_masks_that_no_slot_can_honour_are_refused(build):
    module = build()
    name = type(module).__name__
    x = torch.randn(2, 7, 12)
    with pytest.raises(ValueError, match=f"is_causal=True, but {name} is not causal: every position sees"):
        module(x, x, x, is_causal=True)
    for mask in (
        nn.Transformer.generate_square_subsequent_mask(7),
        torch.zeros(7, 7),
        torch.ones(8, 7, 7, dtype=torch.bool),
    ):
        shape = ", ".join(map(str, mask.shape))
        with pytest.raises(ValueError, match=rf"{name} cannot apply an attn_mask of shape \({shape}\), causal or"):
            module(x, x, x, attn_mask=mask)


@pytest.mark.parametrize(("build", "name"), [(encoder_layer, "src_mask"), (encoder, "mask")], ids=["layer", "encoder"])
def test_layers_refuse_the_same_masks(build, name):
    x = torch.randn(2, 7, 12)
    with pytest.raises(ValueError, match="is_causal=True, but LinformerAttention is not causal"):
        build()(x, is_causal=True)
    causal = nn.Transformer.generate_square_subsequent_mask(7)
    with pytest.raises(ValueError, match=r"an attn_mask of shape \(7, 7\).*use key_padding_mask for padding"):
        build()(x, **{name: causal})


@pytest.mark.parametrize("need_weights", [False, True])
@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (torch.zeros(2, 6).bool(), r"must have shape \(B, M\) = \(2, 7\), got \(2, 6\)"),
        (torch.zeros(7, 2).bool(), r"must have shape \(B, M\) = \(2, 7\), got \(7, 2\)"),
        (torch.zeros(7).bool(), r"must have shape \(B, M\) = \(2, 7\), got \(1, 7\)"),
        (torch.zeros(2, 1, 1, 7), r"must have shape \(B, M\) = \(2, 7\), got \(2, 1, 1, 7\)"),
        (torch.ones(2, 7).long(), r"must be bool \(True at padding\), got torch.int64"),
    ],
)
def test_padding_masks_that_do_not_fit_are_refused(mask, message, need_weights):
    x = torch.randn(2, 7, 12)
    with pytest.raises(ValueError, match="key_padding_mask " + message):
        attention()(x, x, x, mask, need_weights=need_weights)
    for build in (encoder_layer, encoder):
        with pytest.raises(ValueError, match="key_padding_mask " + message):
            build()(x, src_key_padding_mask=mask)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (
            [(2, 3, 11), (2, 7, 5), (2, 7, 9)],
            r"query must have .* the last of 12 channels, got shape \(2, 3, 11\)",
        ),
        (
            [(2, 3, 12), (2, 7, 12), (2, 7, 9)],
            r"key must have .* the last of 5 channels, got shape \(2, 7, 12\)",
        ),
        ([(2, 3, 12), (2, 7, 5), (2, 7, 12)], r"value must have .* the last of 9 channels, got shape"),
        ([(2, 1, 3, 12), (2, 7, 5), (2, 7, 9)], r"query must have 2 or 3 dimensions.*\(2, 1, 3, 12\)"),
        (
            [(2, 3, 12), (2, 7, 5), (2, 6, 9)],
            r"agree in batch, and key and value in length, got \(2, 3, 12\)",
        ),
        ([(3, 3, 12), (2, 7, 5), (2, 7, 9)], r"agree in batch.*\(3, 3, 12\), \(2, 7, 5\), \(2, 7, 9\)"),
        ([(2, 3, 12), (2, 7, 5), (1, 7, 9)], r"agree in batch.*\(2, 3, 12\), \(2, 7, 5\), \(1, 7, 9\)"),
    ],
)
def test_inputs_that_do_not_fit_are_named(shapes, message):
    module = attention(kdim=5, vdim=9)
    with pytest.raises(ValueError, match=message):
        module(*(torch.randn(shape) for shape in shapes))


@pytest.mark.parametrize("batch_first", [True, False])
def test_a_memory_over_max_len_is_refused_but_queries_are_not(batch_first):
    module = attention(batch_first=batch_first)
    short, long = torch.randn(2, 7, 12), torch.randn(2, 14, 12)
    if not batch_first:
        short, long = short.transpose(0, 1), long.transpose(0, 1)
    assert module(long, short, short)[0].shape == long.shape
    with pytest.raises(ValueError, match=r"14 positions but max_len is 13: cut the input to 13, or call resize_m"):
        module(short, long, long)

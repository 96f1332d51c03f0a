"""Every module of the package at small sizes: what tests build when only an option or two matters."""

from torch_linformer.nn import (
    LinformerAttention,
    LinformerDecoder,
    LinformerDecoderLayer,
    LinformerEncoder,
    LinformerEncoderLayer,
)
from torch_linformer.nn.attention import FullAttention

SIZES = {"max_len": 13, "k": 5}


def attention(**options):
    return LinformerAttention(**{"embed_dim": 12, "num_heads": 4, **SIZES, **options})


def full_attention(**options):
    return FullAttention(12, 4, **options)


def encoder_layer(**options):
    return LinformerEncoderLayer(12, 4, **{**SIZES, **options})


def encoder(**options):
    return LinformerEncoder(12, 4, 2, **{**SIZES, **options})


def decoder_layer(**options):
    return LinformerDecoderLayer(12, 4, **{**SIZES, **options})


def decoder(**options):
    return LinformerDecoder(12, 4, 2, **{**SIZES, **options})


SELF_ATTENTION = (attention, encoder_layer, encoder)
DECODERS = (decoder_layer, decoder)

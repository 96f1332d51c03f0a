"""The stacks of layers that a configuration describes."""

from typing import Any, cast

from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from torch_linformer.models.configuration import LinformerConfig, attention_options
from torch_linformer.models.seq2seq_configuration import LinformerSeq2SeqConfig, memory_options
from torch_linformer.nn.activations import ACTIVATIONS
from torch_linformer.nn.attention import Attention, FullAttention, LinformerAttention
from torch_linformer.nn.decoder import Decoder
from torch_linformer.nn.decoder_layer import DecoderLayer
from torch_linformer.nn.encoder import Encoder
from torch_linformer.nn.encoder_layer import EncoderLayer, ReversibleEncoderLayer
from torch_linformer.nn.options import ActivationMemory
from torch_linformer.nn.stack import final_norm, k_per_layer, shared_map, split_sharing


class EncoderBlock(GradientCheckpointingLayer, EncoderLayer):
    """The layer of an encoder, which transformers can checkpoint and whose output it can record."""


class ReversibleBlock(GradientCheckpointingLayer, ReversibleEncoderLayer):
    """The layer of an encoder with ``activation_memory="reversible"``."""


class DecoderBlock(GradientCheckpointingLayer, DecoderLayer):
    """The layer of the decoder of an encoder-decoder."""


BLOCKS = [block.__name__ for block in (EncoderBlock, ReversibleBlock, DecoderBlock)]


def build_encoder(config: LinformerConfig) -> Encoder:
    """The encoder of ``config``; with ``attention="full"`` it differs only in the attention."""
    options: dict[str, Any] = {**attention_options(config)}
    of_shared = None
    max_len, ks = config.max_position_embeddings, k_per_layer(config.k, config.num_hidden_layers, config.sharing)
    if config.attention == "linformer":
        options, of_shared = split_sharing(options)
    block = ReversibleBlock if config.activation_memory == "reversible" else EncoderBlock
    layers = [block(_attention(config, max_len, k, options), **_layer_options(config)) for k in ks]
    memory = cast(ActivationMemory, config.activation_memory)
    shared = shared_map(of_shared, max_len, ks, config.hidden_size)
    return Encoder(layers, _norm(config), shared, activation_memory=memory, chunk_size=config.chunk_size)


def build_decoder(config: LinformerSeq2SeqConfig) -> Decoder:
    """The decoder of ``config``; with ``attention="full"`` it differs only in the attentions."""
    encoder, decoder = cast(LinformerConfig, config.encoder), cast(LinformerConfig, config.decoder)
    memory_len, layers = encoder.max_position_embeddings, decoder.num_hidden_layers
    target, memory = ({**options} for options in (attention_options(decoder), memory_options(config)))
    of_shared = None
    ks = k_per_layer(decoder.k, layers, None)
    memory_ks = k_per_layer(cast("int | list[int]", config.memory_k), layers, config.memory_sharing, "memory_k")
    if decoder.attention == "linformer":
        memory, of_shared = split_sharing(memory)
    width = {"kdim": encoder.hidden_size, "vdim": encoder.hidden_size}
    blocks = [
        DecoderBlock(
            _attention(decoder, decoder.max_position_embeddings, k, target),
            _attention(decoder, memory_len, memory_k, {**memory, **width}),
            **_layer_options(decoder),
        )
        for k, memory_k in zip(ks, memory_ks, strict=True)
    ]
    shared = shared_map(of_shared, memory_len, memory_ks, encoder.hidden_size)
    return Decoder(blocks, _norm(decoder), shared, activation_memory=cast(ActivationMemory, decoder.activation_memory))


def _attention(config: LinformerConfig, max_len: int, k: int, options: dict[str, Any]) -> Attention:
    sizes, dropout = (config.hidden_size, config.num_attention_heads), config.attention_probs_dropout_prob
    if config.attention == "full":
        return FullAttention(*sizes, dropout=dropout, **options)
    return LinformerAttention(*sizes, max_len, k, dropout=dropout, **options)


def _layer_options(config: LinformerConfig) -> dict[str, Any]:
    return {
        "dim_feedforward": config.intermediate_size,
        "dropout": config.hidden_dropout_prob,
        # Functions rather than modules, where there are both: they are computed with the product before them.
        "activation": ACTIVATIONS.get(config.hidden_act) or ACT2FN[config.hidden_act],
        "layer_norm_eps": config.layer_norm_eps,
        "norm_first": config.norm_first,
        "gated": config.gated,
        "chunk_size": config.chunk_size,
    }


def _norm(config: LinformerConfig) -> nn.LayerNorm | None:
    return final_norm(config.norm_first and config.final_norm, config.hidden_size, config.layer_norm_eps)

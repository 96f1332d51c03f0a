"""The stacks of layers that a configuration describes."""

from typing import Any, cast

from torch import nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer

from torch_linformer.choices import ActivationMemory
from torch_linformer.models.configuration import (
    LinformerConfig,
    LinformerSeq2SeqConfig,
    attention_options,
    memory_options,
)
from torch_linformer.nn.attention import Attention, FullAttention, LinformerAttention
from torch_linformer.nn.decoder import Decoder, DecoderLayer
from torch_linformer.nn.encoder import Encoder, EncoderLayer
from torch_linformer.nn.linear import ACTIVATIONS
from torch_linformer.nn.reversible import ReversibleEncoderLayer
from torch_linformer.nn.stack import plan_layers


class EncoderBlock(GradientCheckpointingLayer, EncoderLayer):
    """The layer of an encoder, which transformers can checkpoint and whose output it can record."""


class ReversibleBlock(GradientCheckpointingLayer, ReversibleEncoderLayer):
    """The layer of an encoder with ``activation_memory="reversible"``."""


class DecoderBlock(GradientCheckpointingLayer, DecoderLayer):
    """The layer of the decoder of an encoder-decoder."""


BLOCKS = [block.__name__ for block in (EncoderBlock, ReversibleBlock, DecoderBlock)]


def build_encoder(config: LinformerConfig) -> Encoder:
    """The encoder of ``config``; with ``attention="full"`` it differs only in the attention."""
    max_len = config.max_position_embeddings
    plan = plan_layers(config.k, config.num_hidden_layers, max_len, config.hidden_size, attention_options(config))
    block = ReversibleBlock if config.activation_memory == "reversible" else EncoderBlock
    layers = [block(_attention(config, max_len, k, plan.options), **_layer_options(config)) for k in plan.k]
    memory = cast(ActivationMemory, config.activation_memory)
    return Encoder(
        layers, _norm(config), plan.shared_projection, activation_memory=memory, chunk_size=config.chunk_size
    )


def build_decoder(config: LinformerSeq2SeqConfig) -> Decoder:
    """The decoder of ``config``; with ``attention="full"`` it differs only in the attentions."""
    encoder, decoder = cast(LinformerConfig, config.encoder), cast(LinformerConfig, config.decoder)
    num_layers, max_len, width = decoder.num_hidden_layers, decoder.max_position_embeddings, encoder.hidden_size
    target = plan_layers(decoder.k, num_layers, max_len, decoder.hidden_size, attention_options(decoder))
    memory_k = cast("int | list[int]", config.memory_k)
    memory_len = encoder.max_position_embeddings
    memory = plan_layers(memory_k, num_layers, memory_len, width, memory_options(config), name="memory_k")
    cross_attention = {**memory.options, "kdim": width, "vdim": width}
    blocks = [
        DecoderBlock(
            _attention(decoder, max_len, k, target.options),
            _attention(decoder, memory_len, layer_memory_k, cross_attention),
            **_layer_options(decoder),
        )
        for k, layer_memory_k in zip(target.k, memory.k, strict=True)
    ]
    activation_memory = cast(ActivationMemory, decoder.activation_memory)
    return Decoder(blocks, _norm(decoder), memory.shared_projection, activation_memory=activation_memory)


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
    return nn.LayerNorm(config.hidden_size, config.layer_norm_eps) if config.norm_first and config.final_norm else None

"""Modules that own parameters: sequence projections, attention, encoder and decoder, called as in ``torch.nn``."""

from torch_linformer.nn.attention import LinformerAttention, Past
from torch_linformer.nn.decoder import LinformerDecoder, LinformerDecoderLayer
from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.nn.encoder import LinformerEncoder, LinformerEncoderLayer
from torch_linformer.nn.projection import SequenceProjection

__all__ = [
    "DynamicProjection",
    "LinformerAttention",
    "LinformerDecoder",
    "LinformerDecoderLayer",
    "LinformerEncoder",
    "LinformerEncoderLayer",
    "Past",
    "SequenceProjection",
]

"""Modules that own parameters: sequence projections, attention and encoder, called as in ``torch.nn``."""

from torch_linformer.nn.attention import LinformerAttention
from torch_linformer.nn.encoder import LinformerEncoder
from torch_linformer.nn.encoder_layer import LinformerEncoderLayer
from torch_linformer.nn.past import Past
from torch_linformer.nn.projection import SequenceProjection

__all__ = ["LinformerAttention", "LinformerEncoder", "LinformerEncoderLayer", "Past", "SequenceProjection"]

"""Multi-head attention: one module (:mod:`.attention`), and what its queries attend to (:mod:`.context` and others)."""

from torch_linformer.nn.attention.attention import Attention
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.linformer import ATTENTIONS, FullAttention, LinformerAttention
from torch_linformer.nn.attention.past import Past

__all__ = ["ATTENTIONS", "Attention", "FullAttention", "KeysAndValues", "LinformerAttention", "Past"]

"""Multi-head attention: one module (:mod:`.attention`), and what its queries attend to (:mod:`.context` and others)."""

from torch_linformer.nn.attention.attention import CONTEXTS, Attention, FullAttention, LinformerAttention
from torch_linformer.nn.attention.keys_and_values import KeysAndValues, Past

__all__ = ["CONTEXTS", "Attention", "FullAttention", "KeysAndValues", "LinformerAttention", "Past"]

"""The mathematics of Linformer on tensors: no parameters, no state, torch alone.

Shape letters used throughout the package: ``B`` batch, ``N`` query length, ``M`` key/value length, ``K``
projected length (slots), ``H`` heads, ``D`` width of one head, ``C`` model width.
"""

from torch_linformer.functional.attention import linformer_attention
from torch_linformer.functional.bounds import johnson_lindenstrauss_k
from torch_linformer.functional.causal import causal_linformer_attention
from torch_linformer.functional.projection import project_sequence
from torch_linformer.functional.running_means import SlotWeights

__all__ = [
    "SlotWeights",
    "causal_linformer_attention",
    "johnson_lindenstrauss_k",
    "linformer_attention",
    "project_sequence",
]

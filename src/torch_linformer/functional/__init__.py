"""The mathematics of Linformer on tensors: no parameters, no state, and no dependency but torch.

A public operation checks its arguments and calls the unchecked functions that :mod:`torch_linformer.nn` calls too.

Shapes are written in one set of letters, in docstrings ``(B, H, N, D)`` and as suffixes of names, ``scores_BHNK``:

====== ======================================= ====== =======================================
``B``  batch                                   ``C``  model width
``N``  query positions                         ``D``  width of a head; ``Dv`` that of values
``M``  key and value positions                 ``n``  chunks or blocks of positions
``K``  slots, the projected length             ``c``  positions in one of them
``H``  heads                                   ``s``  span: positions that a block's windows reach
``X``  D or Dv                                 ``w``  positions in a window
====== ======================================= ====== =======================================
"""

from torch_linformer.functional.attention import linformer_attention
from torch_linformer.functional.bounds import johnson_lindenstrauss_k
from torch_linformer.functional.causal import causal_linformer_attention
from torch_linformer.functional.implementations import use_implementation
from torch_linformer.functional.projection import project_sequence
from torch_linformer.functional.running_means import SlotWeights

__all__ = [
    "SlotWeights",
    "causal_linformer_attention",
    "johnson_lindenstrauss_k",
    "linformer_attention",
    "project_sequence",
    "use_implementation",
]

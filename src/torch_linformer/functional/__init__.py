"""The mathematics of Linformer on tensors: no parameters, no state, and no dependency but torch.

A public operation checks its arguments and calls the unchecked functions that :mod:`torch_linformer.nn` calls too.
An operation is a file: ``slots.py``, ``dynamic.py``, ``attention.py``, ``causal.py``; ``products.py`` multiplies
matrices, ``reference.py`` defines them all, and ``implementations.py`` knows which way of computing one runs.

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

from torch_linformer.functional.attention import linformer_attention, slot_attention
from torch_linformer.functional.causal import CausalSlots, SlotWeights, causal_linformer_attention
from torch_linformer.functional.dynamic import dynamic_slots
from torch_linformer.functional.implementations import implementations, use_implementation
from torch_linformer.functional.slots import Slots, johnson_lindenstrauss_k, project_sequence, segment_slots
from torch_linformer.functional.softmax import ExactTokens, Window

__all__ = [
    "CausalSlots",
    "ExactTokens",
    "SlotWeights",
    "Slots",
    "Window",
    "causal_linformer_attention",
    "dynamic_slots",
    "implementations",
    "johnson_lindenstrauss_k",
    "linformer_attention",
    "project_sequence",
    "segment_slots",
    "slot_attention",
    "use_implementation",
]

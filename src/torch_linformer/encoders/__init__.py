"""Any encoder of transformers, linear: its attention becomes slots and a window, all else stays its own.

:func:`linearize` makes a linear model of one that is loaded; ``attn_implementation="linformer"`` needs no new model.
"""

from torch_linformer.encoders.linearize import linearize
from torch_linformer.encoders.options import LinearOptions

__all__ = ["LinearOptions", "linearize"]

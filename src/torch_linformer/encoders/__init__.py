"""Any encoder of transformers, linear: its attention becomes slots and a window, all else stays its own.

:func:`linearize` makes a linear model of one that is loaded; ``attn_implementation="linformer"`` needs no new model.
"""

# First, and whole: with it our models are registered, and they import modules of this package.
import transformers.models.auto.configuration_auto  # noqa: F401

from torch_linformer.encoders.linearize import linearize
from torch_linformer.encoders.options import LinearOptions

__all__ = ["LinearOptions", "linearize"]

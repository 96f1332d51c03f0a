"""A training run, from its settings to a model folder with its report. Importing only this is free.

``adapt`` is :func:`torch_linformer.adaptation.adapt`, under its first name.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.adaptation import adapt

__all__ = ["adapt"]

__getattr__, __dir__ = lazy_names(__name__, {"adapt": "torch_linformer.adaptation"})

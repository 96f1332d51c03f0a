"""Pretrained encoders made linear: a student with slots learns to do what its teacher does.

``adapt`` needs the extra ``train`` and is imported when first used.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.adaptation.in_memory import adapt

__all__ = ["adapt"]

__getattr__, __dir__ = lazy_names(__name__, {"adapt": ".in_memory"})

"""Pretrained encoders made linear: a student with slots learns to do what its teacher does.

``distill`` needs the extra ``train`` and is imported when first used.
"""

from typing import TYPE_CHECKING

from torch_linformer.lazy import lazy_names

if TYPE_CHECKING:
    from torch_linformer.adaptation.distill import distill

__all__ = ["distill"]

__getattr__, __dir__ = lazy_names(__name__, {"distill": ".distill"})

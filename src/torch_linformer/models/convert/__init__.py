"""Weights trained elsewhere, as models of this package: one module a source, each with its table of names."""

from torch_linformer.models.convert.fairseq import from_fairseq
from torch_linformer.models.convert.linformer_pytorch import from_linformer_pytorch
from torch_linformer.models.convert.lucidrains import from_lucidrains
from torch_linformer.models.convert.state import read_checkpoint

__all__ = [
    "from_fairseq",
    "from_linformer_pytorch",
    "from_lucidrains",
    "read_checkpoint",
]

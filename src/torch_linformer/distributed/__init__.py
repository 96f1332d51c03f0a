"""One sequence over several processes, of which none holds it whole."""

from torch_linformer.distributed.context_parallel import context_parallel
from torch_linformer.distributed.sequence_piece import SequencePiece

__all__ = ["SequencePiece", "context_parallel"]

"""Mixtures of positions: ``Eᵀ X``."""

import torch
from torch import Tensor

from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.kernels.implementations import Implementation, Name, Operation, choose, register
from torch_linformer.functional.kernels.onednn import PRODUCTS, SMALLEST, autocast_dtype, by_onednn
from torch_linformer.functional.products.onednn import multiply

NARROWEST = 16  # channels; with fewer, transposing the mixture costs more than oneDNN saves
PIECE = 1024  # positions compressed at a time


def _pays(mixture: Tensor, sequence: Tensor) -> bool:
    wide = sequence.dim() == 3 and sequence.shape[-1] >= NARROWEST
    return wide and mixture.numel() * sequence.shape[-1] >= SMALLEST


def _rows_pay(mixture: Tensor, sequence: Tensor) -> bool:
    """On a CPU in bfloat16 a batched product takes two to eight times as long as one for each row (docs/log.md)."""
    return sequence.device.type == "cpu" and autocast_dtype(sequence) == torch.bfloat16


def _why_no_rows(mixture: Tensor, sequence: Tensor) -> str | None:
    if sequence.dim() == 4:
        return "heads are multiplied together"
    return "a graph for all batches cannot have as many steps as rows" if records_a_graph() else None


MIXTURE = register(
    Operation(
        "projection",
        (
            by_onednn(PRODUCTS, _pays),
            Implementation("rows", "sequences (B, M, C), no graph", _why_no_rows, _rows_pay, measured="docs/log.md"),
            Implementation("torch"),
        ),
    )
)


def mix_positions(mixture: Tensor, sequence: Tensor, *, impl: Name = "auto") -> Tensor:
    """``Eᵀ X`` of ``(B, M, C)``, ``(B, K, C)``, or of heads ``(B, H, M, D)``, ``(B, H, K, D)``.

    The mixture is ``(M, K)``; one a row, ``(B, M, K)`` or for heads ``(B, 1, M, K)``; or one a head, ``(H, M, K)``.
    """
    chosen = choose(MIXTURE, mixture, sequence, impl=impl)
    if chosen != "torch" and sequence.numel() == 0:  # in a graph, where only torch is chosen, this is not asked
        chosen = "torch"
    if sequence.dim() == 4:
        if chosen == "onednn":
            heads = sequence.unbind(1)
            mixtures = [mixture.squeeze(1)] * len(heads) if mixture.dim() == 4 else mixture.expand(len(heads), -1, -1)
            return torch.stack([_mix_in_pieces(E, X) for E, X in zip(mixtures, heads, strict=True)], dim=1)
        if mixture.dim() == 4:
            return mixture.transpose(-2, -1) @ sequence
        return torch.einsum("bhmd,mk->bhkd" if mixture.dim() == 2 else "bhmd,hmk->bhkd", sequence, mixture)
    if chosen == "onednn":
        return _mix_in_pieces(mixture, sequence)
    mixtures_BKM = mixture.expand(sequence.shape[0], -1, -1).transpose(-2, -1)
    if chosen == "rows":
        return torch.stack([E @ X for E, X in zip(mixtures_BKM, sequence, strict=True)])
    return torch.bmm(mixtures_BKM, sequence)


def _mix_in_pieces(mixture: Tensor, sequence_BMC: Tensor) -> Tensor:
    """By oneDNN, which transposes its operands: in pieces, because that is cheap within the caches."""
    slots = []
    for mixture_MK, row_MC in zip(mixture.expand(len(sequence_BMC), -1, -1), sequence_BMC, strict=True):
        total_KC = torch.zeros(())
        for weights, positions in zip(torch.split(mixture_MK, PIECE), torch.split(row_MC, PIECE), strict=True):
            piece_KC = multiply(weights.t(), positions.t())
            # The rounding error of a sum grows with its terms: it is kept in no less than float32.
            total_KC = total_KC + piece_KC.to(torch.promote_types(piece_KC.dtype, torch.float32))
        slots.append(total_KC.to(piece_KC.dtype))
    return torch.stack(slots)

"""Matrix products by the faster of the two libraries that PyTorch has for them on a CPU.

PyTorch multiplies float32 matrices through MKL, which takes its AVX2 kernels on processors that are not Intel's.
oneDNN, in the same wheel, takes AVX-512 wherever it is: on a Zen 5 it is twice as fast (docs/performance.md). So it is
in bfloat16 with the gradients of a linear map and with softmax attention, some of which PyTorch leaves to MKL too. This
module knows when that holds; results differ in rounding alone. ``torch.backends.mkldnn.set_flags(False)`` gives
PyTorch's own products.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

SMALLEST = 2**23  # multiplications from which oneDNN's preparation pays for itself
NARROWEST = 16  # channels; for fewer the large mixture is not worth turning round
PIECE = 1024  # positions compressed at a time


@cache
def _mkl_is_held_back() -> bool:
    """An AMD processor with AVX-512, and PyTorch with both libraries."""
    backends: Any = torch.backends
    if not (backends.mkl.is_available() and backends.mkldnn.is_available()):
        return False
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "AMD" in capabilities.get("cpu_name", "") and bool(capabilities.get("avx512_bf16"))


def _is_recording() -> bool:
    """Whether a graph for many sizes is being made, which may not ask for one."""
    return torch.compiler.is_compiling() or torch._C._get_tracing_state() is not None


def onednn_is_faster(*tensors: Tensor) -> bool:
    """Whether oneDNN outruns MKL for these tensors: on the CPU, plain, and no tool watching torch's operations."""
    # A compiler has kernels of its own; counters of operations and tracers know torch's products, not this one.
    return (
        not _is_recording()
        and _mkl_is_held_back()
        and bool(torch.backends.mkldnn.enabled)
        and torch._C._len_torch_dispatch_stack() == 0
        and not torch._C._are_functorch_transforms_active()
        and all(t.device.type == "cpu" and type(t) in (Tensor, torch.nn.Parameter) for t in tensors)
    )


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    r""":func:`torch.nn.functional.linear`: :math:`X W^\top + b`, ``(…, I)`` and ``(O, I)`` to ``(…, O)``."""
    if _is_recording() or input.dim() < 2:
        return F.linear(input, weight, bias)
    if input.numel() * weight.shape[0] < SMALLEST or not onednn_is_faster(input, weight):
        return F.linear(input, weight, bias)
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        input, weight, bias = input.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    if input.dtype != weight.dtype or input.dtype not in (torch.float32, torch.bfloat16):
        return F.linear(input, weight, bias)
    product: Tensor = _OneDNNLinear.apply(input, weight, bias)  # type: ignore[no-untyped-call]
    return product


def mix_positions(mixture: Tensor, sequence: Tensor) -> Tensor:
    """``Eᵀ X`` row by row of the batch: ``(M, K)`` and ``(B, M, C)`` to ``(B, K, C)``."""
    if sequence.shape[-1] < NARROWEST:
        return (sequence.mT @ mixture).mT
    if _is_recording() or mixture.numel() * sequence.shape[-1] < SMALLEST or not onednn_is_faster(mixture, sequence):
        return torch.einsum("mk,bmc->bkc", mixture, sequence)
    # In pieces: operands are turned round on the way, which is cheap within the caches.
    rows = []
    for row in sequence:
        total = torch.zeros(())
        for weights, positions in zip(torch.split(mixture, PIECE), torch.split(row, PIECE), strict=True):
            piece = linear(weights.t(), positions.t())
            # Roundings of a sum grow with its terms: this one is kept in no less than float32.
            total = total + piece.to(torch.promote_types(piece.dtype, torch.float32))
        rows.append(total.to(piece.dtype))
    return torch.stack(rows)


class _OneDNNLinear(torch.autograd.Function):
    """``X Wᵀ + b`` and its three gradients, each one product of the same kind."""

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        product: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, "none", [], "")
        return product

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.save_for_forward(inputs[0], inputs[1])

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Tensor | None) -> Tensor:
        (input, weight), (of_input, of_weight, of_bias) = ctx.saved_tensors, grad_inputs
        parts = [
            None if of_input is None else linear(of_input, weight),
            None if of_weight is None else linear(input, of_weight),
            None if of_bias is None else of_bias.expand(*input.shape[:-1], -1),
        ]
        first, *others = (part for part in parts if part is not None)
        return sum(others, start=first)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        grad = grad_outputs[0]
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad
        grad_rows = grad.flatten(0, -2)
        return (
            linear(grad, weight.t()) if wants_input else None,
            linear(grad_rows.t(), input.flatten(0, -2).t()) if wants_weight else None,
            grad_rows.sum(dim=0) if wants_bias else None,
        )

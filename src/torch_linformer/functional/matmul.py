"""Matrix products by PyTorch's own functions or by oneDNN: :mod:`torch_linformer.functional.implementations`."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.implementations import (
    ACTIVATED_LINEAR,
    LINEAR,
    PROJECTION,
    Implementation,
    autocast_dtype,
    choose,
    needs_graph,
    why_not_onednn,
)
from torch_linformer.functional.torch_state import is_watched, records_a_graph

_ACTIVATIONS = {F.gelu: "gelu", F.relu: "relu", F.silu: "swish"}  # by their names in oneDNN
PIECE = 1024  # positions compressed at a time


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, impl: Implementation = "auto") -> Tensor:
    r""":func:`torch.nn.functional.linear`: :math:`X W^\top + b`, ``(…, I)`` and ``(O, I)`` to ``(…, O)``."""
    if choose(LINEAR, input, weight, impl=impl) == "torch" or weight.numel() == 0:
        return F.linear(input, weight, bias)
    if input.dim() == 1:
        return _multiply(input.unsqueeze(0), weight, bias).squeeze(0)
    return _multiply(input, weight, bias)


def activated_linear(
    activation: Callable[[Tensor], Tensor], input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """``activation(linear(input, weight, bias))``.

    On a CPU in bfloat16, in inference, oneDNN applies those it knows while the product is in its registers: a wide
    result that is written once instead of three times, into memory that is fresh each time (docs/log.md).
    """
    known, given = _ACTIVATIONS.get(activation), [x for x in (input, weight, bias) if x is not None]
    # Training keeps what the activation is given.
    in_two_steps = known is None or input.dim() < 2 or weight.numel() == 0 or needs_graph(*given)
    if in_two_steps or choose(ACTIVATED_LINEAR, input, weight) == "torch":
        return activation(linear(input, weight, bias))
    output: Tensor = torch.ops.mkldnn._linear_pointwise(*_autocast(input, weight, bias), known, [], "none")
    return output


def mix_positions(mixture: Tensor, sequence: Tensor, *, impl: Implementation = "auto") -> Tensor:
    """``Eᵀ X`` of ``(B, M, C)``, ``(B, K, C)``, or of heads ``(B, H, M, D)``, ``(B, H, K, D)``.

    The mixture is ``(M, K)``; one a row, ``(B, M, K)`` or for heads ``(B, 1, M, K)``; or one a head, ``(H, M, K)``.
    """
    by_torch = choose(PROJECTION, mixture, sequence, impl=impl) == "torch" or sequence.numel() == 0
    if sequence.dim() == 4:
        if by_torch and mixture.dim() == 4:
            return mixture.transpose(-2, -1) @ sequence
        if by_torch:
            return torch.einsum("bhmd,mk->bhkd" if mixture.dim() == 2 else "bhmd,hmk->bhkd", sequence, mixture)
        heads = sequence.unbind(1)
        mixtures = [mixture.squeeze(1)] * len(heads) if mixture.dim() == 4 else mixture.expand(len(heads), -1, -1)
        return torch.stack([_mix_in_pieces(*each) for each in zip(mixtures, heads, strict=True)], dim=1)
    if not by_torch:
        return _mix_in_pieces(mixture, sequence)
    of_rows = mixture.expand(sequence.shape[0], -1, -1)
    if _goes_row_by_row(sequence):
        return torch.stack(
            [mixture_MK.transpose(-2, -1) @ row_MC for mixture_MK, row_MC in zip(of_rows, sequence, strict=True)]
        )
    return torch.bmm(of_rows.transpose(-2, -1), sequence)


def _goes_row_by_row(sequence: Tensor) -> bool:
    """Whether rows are multiplied one after the other: on a CPU in bfloat16.

    There a batched product takes two to eight times as long as one for each row, whatever its size (docs/log.md).
    """
    on_cpu = sequence.device.type == "cpu" and not records_a_graph()
    return on_cpu and sequence.numel() > 0 and autocast_dtype(sequence) == torch.bfloat16


def _mix_in_pieces(mixture: Tensor, sequence_BMC: Tensor) -> Tensor:
    """By oneDNN, which transposes its operands: in pieces, because that is cheap within the caches."""
    slots = []
    for mixture_MK, row_MC in zip(mixture.expand(len(sequence_BMC), -1, -1), sequence_BMC, strict=True):
        total_KC = torch.zeros(())
        for weights, positions in zip(torch.split(mixture_MK, PIECE), torch.split(row_MC, PIECE), strict=True):
            piece_KC = _multiply(weights.t(), positions.t())
            # The rounding error of a sum grows with its terms: it is kept in no less than float32.
            total_KC = total_KC + piece_KC.to(torch.promote_types(piece_KC.dtype, torch.float32))
        slots.append(total_KC.to(piece_KC.dtype))
    return torch.stack(slots)


def _multiply(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`linear` by oneDNN, in the type that autocast asks for."""
    product: Tensor = _OneDNNLinear.apply(*_autocast(input, weight, bias))  # type: ignore[no-untyped-call]
    return product


def _autocast(*parts: Tensor | None) -> list[Tensor | None]:
    """What autocast would make of these: operations below it do not know of it."""
    return [None if x is None else x.to(autocast_dtype(x)) for x in parts]


def _multiply_gradient(input: Tensor, weight: Tensor) -> Tensor:
    """By oneDNN like the product itself, unless a transform or a counter of operations has become active."""
    if is_watched() or why_not_onednn(LINEAR, input, weight) is not None:
        return F.linear(input, weight)
    return _multiply(input, weight)


def _rows(x: Tensor) -> Tensor:
    """``(…, C)`` to ``(rows, C)``; not flatten, which the batched gradients of torch.autograd have no rule for."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


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
            None if of_input is None else _multiply_gradient(of_input, weight),
            None if of_weight is None else _multiply_gradient(input, of_weight),
            None if of_bias is None else of_bias.expand(*input.shape[:-1], -1),
        ]
        first, *others = (part for part in parts if part is not None)
        return sum(others, start=first)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        grad = grad_outputs[0]
        wants_input, wants_weight, wants_bias = ctx.needs_input_grad
        grad_rows, input_rows = _rows(grad), _rows(input)
        return (
            _multiply_gradient(grad, weight.t()) if wants_input else None,
            _multiply_gradient(grad_rows.t(), input_rows.t()) if wants_weight else None,
            grad_rows.sum(dim=0) if wants_bias else None,
        )

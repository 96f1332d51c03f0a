"""Linear maps by oneDNN, with their gradients."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.kernels.graph import is_watched
from torch_linformer.functional.kernels.onednn import PRODUCTS, autocast_dtype, why_not_onednn
from torch_linformer.functional.kernels.torch_private import onednn_linear


def multiply(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`linear` by oneDNN, in the type that autocast asks for."""
    product: Tensor = _OneDNNLinear.apply(*autocast(input, weight, bias))  # type: ignore[no-untyped-call]
    return product


def autocast(*parts: Tensor | None) -> list[Tensor | None]:
    """What autocast would make of these: operations below it do not know of it."""
    return [None if x is None else x.to(autocast_dtype(x)) for x in parts]


def _multiply_gradient(input: Tensor, weight: Tensor) -> Tensor:
    """By oneDNN like the product itself, unless a transform or a counter of operations has become active."""
    if is_watched() or why_not_onednn(PRODUCTS, input, weight) is not None:
        return F.linear(input, weight)
    return multiply(input, weight)


def _rows(x: Tensor) -> Tensor:
    """``(…, C)`` to ``(rows, C)``; not flatten, which the batched gradients of torch.autograd have no rule for."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


class _OneDNNLinear(torch.autograd.Function):
    """``X Wᵀ + b`` and its three gradients, each one product of the same kind."""

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return onednn_linear(input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.save_for_forward(inputs[0], inputs[1])

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Tensor | None) -> Tensor:
        input, weight = ctx.saved_tensors
        tangent_input, tangent_weight, tangent_bias = grad_inputs
        parts = [
            None if tangent_input is None else _multiply_gradient(tangent_input, weight),
            None if tangent_weight is None else _multiply_gradient(input, tangent_weight),
            None if tangent_bias is None else tangent_bias.expand(*input.shape[:-1], -1),
        ]
        first, *tangents = (part for part in parts if part is not None)
        return sum(tangents, start=first)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        grad = grad_outputs[0]
        needs_input, needs_weight, needs_bias = ctx.needs_input_grad
        grad_rows, input_rows = _rows(grad), _rows(input)
        return (
            _multiply_gradient(grad, weight.t()) if needs_input else None,
            _multiply_gradient(grad_rows.t(), input_rows.t()) if needs_weight else None,
            grad_rows.sum(dim=0) if needs_bias else None,
        )

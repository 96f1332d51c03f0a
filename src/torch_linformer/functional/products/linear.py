"""Linear maps: ``X Wᵀ + b``, alone or with the nonlinearity that follows."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.kernels.graph import needs_graph
from torch_linformer.functional.kernels.implementations import Implementation, Name, Operation, choose, register
from torch_linformer.functional.kernels.onednn import PRODUCTS, SMALLEST, autocast_dtype, by_onednn
from torch_linformer.functional.kernels.torch_private import onednn_linear
from torch_linformer.functional.products.onednn import autocast, multiply

_ACTIVATIONS = {F.gelu: "gelu", F.relu: "relu", F.silu: "swish"}  # by their names in oneDNN


def _pays(input: Tensor, weight: Tensor) -> bool:
    return input.dim() > 1 and input.numel() * weight.shape[0] >= SMALLEST


def _activated_pays(input: Tensor, weight: Tensor) -> bool:
    return autocast_dtype(input) == torch.bfloat16 and _pays(input, weight)


_TORCH = Implementation("torch")
LINEAR = register(Operation("linear", (by_onednn(PRODUCTS, _pays), _TORCH)))
ACTIVATED_LINEAR = register(
    Operation("linear with activation", (by_onednn(PRODUCTS, _activated_pays, on_every_cpu=True), _TORCH))
)


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, impl: Name = "auto") -> Tensor:
    r""":func:`torch.nn.functional.linear`: :math:`X W^\top + b`, ``(…, I)`` and ``(O, I)`` to ``(…, O)``."""
    if choose(LINEAR, input, weight, impl=impl) == "torch" or weight.numel() == 0:
        return F.linear(input, weight, bias)
    if input.dim() == 1:
        return multiply(input.unsqueeze(0), weight, bias).squeeze(0)
    return multiply(input, weight, bias)


def activated_linear(
    activation: Callable[[Tensor], Tensor], input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """``activation(linear(input, weight, bias))``.

    On a CPU in bfloat16, in inference, oneDNN applies those it knows while the product is in its registers: a wide
    result that is written once instead of three times, into memory that is fresh each time (docs/log.md).
    """
    algorithm = _ACTIVATIONS.get(activation)
    parts = [x for x in (input, weight, bias) if x is not None]
    # Training keeps what the activation is given.
    in_two_steps = algorithm is None or input.dim() < 2 or weight.numel() == 0 or needs_graph(*parts)
    if algorithm is None or in_two_steps or choose(ACTIVATED_LINEAR, input, weight) == "torch":
        return activation(linear(input, weight, bias))
    cast_input, cast_weight, cast_bias = autocast(input, weight, bias)
    assert cast_input is not None and cast_weight is not None
    return onednn_linear(cast_input, cast_weight, cast_bias, algorithm, "none")

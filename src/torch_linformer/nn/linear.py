"""The linear maps of the modules and the nonlinearity after them, by the faster library where nobody listens."""

from collections.abc import Callable, Sequence
from typing import TypeGuard

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules import module as registry

from torch_linformer.functional.products import activated_linear, linear

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


def resolve_activation(activation: str | Activation) -> Activation:
    """The function a name stands for; a callable is taken as it is."""
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be a callable or one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    return ACTIVATIONS[activation]


def run_linear(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``; on a CPU an ordinary linear map is multiplied by the faster library.

    The modules themselves are plain :class:`torch.nn.Linear`, which quantisation and adapters look for by their type.
    What these put in its place, and a map that somebody listens to, is called as it is.
    """
    if x.device.type == "cpu" and _is_plain(module):
        return linear(x, module.weight, module.bias)
    output: Tensor = module(x)
    return output


def run_activated(activation: Callable[[Tensor], Tensor], module: nn.Module, x: Tensor) -> Tensor:
    """``activation(module(x))``, as :func:`run_linear`."""
    if x.device.type == "cpu" and _is_plain(module):
        return activated_linear(activation, x, module.weight, module.bias)
    return activation(run_linear(module, x))


def run_linears_on_sums(modules: Sequence[nn.Linear], sums: Sequence[Tensor], masses: Sequence[Tensor]) -> list[Tensor]:
    """``X̄ Wᵀ + m bᵀ``: apply each linear map to pooled inputs ``(B, K, C)``; its bias counts with the pooling mass.

    A mass ``(B or 1, K)`` is what the weights of each slot add up to. Maps of the same sizes are one product: on a GPU
    fewer kernels are launched, on a CPU it makes no difference or takes up to a tenth longer (docs/log.md).
    """
    # Quantized weights are tensors of a kind of their own, which know how to be a linear map and little else.
    ordinary = all(_is_plain(module) and type(module.weight) in (Tensor, nn.Parameter) for module in modules)
    biases = [module.bias for module in modules if module.bias is not None]
    is_one = ordinary and len(biases) == len(modules)
    if not is_one or len({(module.weight.shape, x.shape[1]) for module, x in zip(modules, sums, strict=True)}) > 1:
        return [_run_linear_on_sums(*call) for call in zip(modules, sums, masses, strict=True)]
    # The bias is the column that the mass, a channel more, is multiplied by.
    maps = _side_by_side([(module.weight, bias) for module, bias in zip(modules, biases, strict=True)])
    mapped = torch.bmm(_side_by_side(list(zip(sums, masses, strict=True))), maps.transpose(-2, -1))
    return list(torch.unflatten(mapped, 1, sums[0].shape[:2]))


def _side_by_side(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Stack pairs of a tensor ``(…, C)`` and one more column ``(… or 1, …)``: ``(number, rows, C + 1)``.

    Where all pairs are the same one, it is not copied.
    """
    number, (first, first_column) = len(parts), parts[0]
    if all(x is first and column is first_column for x, column in parts):
        parts = parts[:1]
    columns: list[Tensor] = []
    for x, column in parts:
        columns += [x, column.expand(x.shape[:-1]).unsqueeze(-1)]
    rows = torch.unflatten(torch.cat(columns, dim=-1), -1, (-1, first.shape[-1] + 1)).flatten(0, -3)
    return rows.transpose(0, 1).expand(number, -1, -1)


def _run_linear_on_sums(module: nn.Linear, sums: Tensor, mass: Tensor) -> Tensor:
    """:func:`run_linears_on_sums` of one module, whatever it is."""
    if module.bias is None:
        return run_linear(module, sums)
    if _is_plain(module):
        rows = sums.shape[0]
        bias_product = mass.unsqueeze(-1).expand(rows, -1, -1), module.bias.expand(rows, 1, -1)
        return torch.baddbmm(linear(sums, module.weight), *bias_product)
    # What it makes of a zero is its bias, whatever has been put in its place or around it.
    mapped, bias = torch.split(run_linear(module, F.pad(sums, (0, 0, 0, 1))), [sums.shape[1], 1], dim=1)
    return mapped + (mass.unsqueeze(-1) - 1) * bias


def _is_plain(module: nn.Module) -> TypeGuard[nn.Linear]:
    """Whether a call of it is the product with its weight, and nothing more."""
    return type(module) is nn.Linear and not does_more_than_forward(module)


def does_more_than_forward(module: nn.Module) -> bool:
    """Whether a call of the module does more than its own ``forward``."""
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
        registry._global_forward_pre_hooks,
        registry._global_forward_hooks,
        registry._global_backward_pre_hooks,
        registry._global_backward_hooks,
    )
    return any(hooks) or "forward" in module.__dict__

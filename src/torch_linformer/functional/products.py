"""Matrix products: linear maps of channels, mixtures of positions, and the order of one of each; oneDNN's gradients."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.cpu import (
    PRODUCTS,
    SMALLEST,
    autocast_dtype,
    by_onednn,
    tensors_in,
    why_not_onednn,
)
from torch_linformer.functional.implementations import Implementation, Name, compute, register
from torch_linformer.functional.pytorch import is_watched, needs_graph, onednn_linear, records_a_graph

NARROWEST = 16  # channels; with fewer, transposing the mixture costs more than oneDNN saves
AT_ONCE = 1024  # positions compressed at a time
_ACTIVATIONS = {F.gelu: "gelu", F.relu: "relu", F.silu: "swish"}  # by their names in oneDNN


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None, *, impl: Name = "auto") -> Tensor:
    r""":func:`torch.nn.functional.linear`: :math:`X W^\top + b`, ``(…, I)`` and ``(O, I)`` to ``(…, O)``."""
    output: Tensor = compute(LINEAR, input, weight, bias, impl=impl)
    return output


def _linear_by_onednn(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    if weight.numel() == 0:
        return F.linear(input, weight, bias)
    if input.dim() == 1:
        return _multiply(input.unsqueeze(0), weight, bias).squeeze(0)
    return _multiply(input, weight, bias)


def _linear_pays(input: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    return input.dim() > 1 and input.numel() * weight.shape[0] >= SMALLEST


LINEAR = register(
    "linear", {"onednn": by_onednn(_linear_by_onednn, PRODUCTS, _linear_pays), "torch": Implementation(F.linear)}
)


def activated_linear(
    activation: Callable[[Tensor], Tensor], input: Tensor, weight: Tensor, bias: Tensor | None = None
) -> Tensor:
    """``activation(linear(input, weight, bias))``.

    On a CPU in bfloat16, in inference, oneDNN applies those it knows while the product is in its registers: a wide
    result that is written once instead of three times, into memory that is fresh each time (docs/log.md).
    """
    # Training keeps what the activation is given.
    in_two_steps = input.dim() < 2 or weight.numel() == 0 or needs_graph(*tensors_in((input, weight, bias)))
    if activation not in _ACTIVATIONS or in_two_steps:
        return activation(linear(input, weight, bias))
    output: Tensor = compute(ACTIVATED_LINEAR, activation, input, weight, bias)
    return output


ACTIVATED_LINEAR = register(
    "linear with activation",
    {
        "onednn": by_onednn(
            lambda activation, *parts: onednn_linear(*_autocast(*parts), _ACTIVATIONS[activation], "none"),
            PRODUCTS,
            lambda activation, input, *maps: autocast_dtype(input) == torch.bfloat16 and _linear_pays(input, *maps),
            on_every_cpu=True,
        ),
        "torch": Implementation(lambda activation, *parts: activation(linear(*parts))),
    },
)


def mix_positions(mixture: Tensor, sequence: Tensor, *, impl: Name = "auto") -> Tensor:
    """``Eᵀ X`` of ``(B, M, C)``, ``(B, K, C)``, or of heads ``(B, H, M, D)``, ``(B, H, K, D)``.

    The mixture is ``(M, K)``; one a row, ``(B, M, K)`` or for heads ``(B, 1, M, K)``; or one a head, ``(H, M, K)``.
    """
    mixed: Tensor = compute(MIXTURE, mixture, sequence, impl=impl)
    return mixed


def _mix(mixture: Tensor, sequence: Tensor) -> Tensor:
    if sequence.dim() == 3:
        return torch.bmm(mixture.expand(sequence.shape[0], -1, -1).transpose(-2, -1), sequence)
    if mixture.dim() == 4:
        return mixture.transpose(-2, -1) @ sequence
    return torch.einsum("bhmd,mk->bhkd" if mixture.dim() == 2 else "bhmd,hmk->bhkd", sequence, mixture)


def _mix_by_rows(mixture: Tensor, sequence: Tensor) -> Tensor:
    if sequence.numel() == 0:
        return _mix(mixture, sequence)
    mixtures_BKM = mixture.expand(sequence.shape[0], -1, -1).transpose(-2, -1)
    return torch.stack([E @ X for E, X in zip(mixtures_BKM, sequence, strict=True)])


def _mix_by_onednn(mixture: Tensor, sequence: Tensor) -> Tensor:
    if sequence.numel() == 0:
        return _mix(mixture, sequence)
    if sequence.dim() == 3:
        return _mix_in_parts(mixture, sequence)
    heads = sequence.unbind(1)
    mixtures = [mixture.squeeze(1)] * len(heads) if mixture.dim() == 4 else mixture.expand(len(heads), -1, -1)
    return torch.stack([_mix_in_parts(E, X) for E, X in zip(mixtures, heads, strict=True)], dim=1)


def _mix_in_parts(mixture: Tensor, sequence_BMC: Tensor) -> Tensor:
    """By oneDNN, which transposes its operands: in parts, because that is cheap within the caches."""
    slots = []
    for mixture_MK, row_MC in zip(mixture.expand(len(sequence_BMC), -1, -1), sequence_BMC, strict=True):
        total_KC = torch.zeros(())
        for weights, positions in zip(torch.split(mixture_MK, AT_ONCE), torch.split(row_MC, AT_ONCE), strict=True):
            part_KC = _multiply(weights.t(), positions.t())
            # The rounding error of a sum grows with its terms: it is kept in no less than float32.
            total_KC = total_KC + part_KC.to(torch.promote_types(part_KC.dtype, torch.float32))
        slots.append(total_KC.to(part_KC.dtype))
    return torch.stack(slots)


def _mixture_pays(mixture: Tensor, sequence: Tensor) -> bool:
    wide = sequence.dim() == 3 and sequence.shape[-1] >= NARROWEST
    return wide and mixture.numel() * sequence.shape[-1] >= SMALLEST


def _why_no_rows(mixture: Tensor, sequence: Tensor) -> str | None:
    if sequence.dim() == 4:
        return "heads are multiplied together"
    return "a graph for all batches cannot have as many steps as rows" if records_a_graph() else None


MIXTURE = register(
    "projection",
    {
        "onednn": by_onednn(_mix_by_onednn, PRODUCTS, _mixture_pays),
        # On a CPU in bfloat16 a batched product takes two to eight times as long as one for each row (docs/log.md).
        "rows": Implementation(
            _mix_by_rows,
            "sequences (B, M, C), no graph",
            _why_no_rows,
            lambda mixture, sequence: sequence.device.type == "cpu" and autocast_dtype(sequence) == torch.bfloat16,
            measured="docs/log.md",
        ),
        "torch": Implementation(_mix),
    },
)


def _autocast(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor | None]:
    """What autocast would make of them: operations below it do not know of it."""
    bias = None if bias is None else bias.to(autocast_dtype(bias))
    return input.to(autocast_dtype(input)), weight.to(autocast_dtype(weight)), bias


def _multiply(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """:func:`linear` by oneDNN, in the type that autocast asks for."""
    product: Tensor = _OneDNNLinear.apply(*_autocast(input, weight, bias))  # type: ignore[no-untyped-call]
    return product


def _multiply_gradient(input: Tensor, weight: Tensor) -> Tensor:
    """By oneDNN like the product itself, unless a transform or a counter of operations has become active."""
    by_onednn = not is_watched() and why_not_onednn(PRODUCTS, input, weight) is None
    return _multiply(input, weight) if by_onednn else F.linear(input, weight)


class _OneDNNLinear(torch.autograd.Function):
    """``X Wᵀ + b`` and its three gradients, each one product of the same kind."""

    @staticmethod
    def forward(input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return onednn_linear(input, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor | None], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        input, weight = ctx.saved_tensors
        (grad,), (needs_input, needs_weight, needs_bias) = grad_outputs, ctx.needs_input_grad
        # Not flatten, which the batched gradients of torch.autograd have no rule for.
        grad_rows, input_rows = (x.reshape(math.prod(x.shape[:-1]), x.shape[-1]) for x in (grad, input))
        return (
            _multiply_gradient(grad, weight.t()) if needs_input else None,
            _multiply_gradient(grad_rows.t(), input_rows.t()) if needs_weight else None,
            grad_rows.sum(dim=0) if needs_bias else None,
        )


class SlotProducts(NamedTuple):
    """What the products of slots and of channels consist of."""

    slots: Callable[[int], int]  # K that M positions reach, as a function of M
    widths: Sequence[tuple[int, int]]  # inputs and outputs of each linear map W: those of the keys and of the values
    slots_of_position: int  # that one position enters, K for a dense E
    one_compressed: bool  # one ``Eᵀ X`` serves keys and values
    has_positions: bool = False  # ``X W`` is needed anyway, for a window


def count_multiplications(length: int, products: SlotProducts) -> tuple[int, int]:
    """Multiplications that the slots of M positions take, of keys and values, as ``(Eᵀ X) W`` and as ``Eᵀ (X W)``."""
    slots, each_position = products.slots(length), products.slots_of_position
    maps = sum(width_in * width_out for width_in, width_out in products.widths)
    width_in, width_out = (sum(sizes) for sizes in zip(*products.widths, strict=True))
    compressed = products.widths[0][0] if products.one_compressed else width_in
    project_last = length * each_position * width_out + (0 if products.has_positions else length * maps)
    return length * each_position * compressed + slots * maps, project_last


def _compressing_pays(length: int, products: SlotProducts) -> bool:
    compress_first, project_last = count_multiplications(length, products)
    return compress_first < project_last


ORDER = register(
    "order of products",
    {
        "compress first": Implementation(lambda length, products: True, pays=_compressing_pays),
        "project first": Implementation(lambda length, products: False),
    },
    is_plan=True,
)


def compresses_first(length: int, max_len: int, products: SlotProducts) -> bool:
    """Whether the inputs are compressed before their channels are mixed.

    A compiled graph serves many lengths, and deciding on the actual one would tie it to that: it decides on
    ``max_len``.
    """
    return bool(compute(ORDER, max_len if records_a_graph() else length, products))

"""A stack of reversible layers: its inputs are computed back from its outputs instead of being kept.

Two streams run through the layers. Layer l adds to each what it makes of the other,

.. math:: y_1 = x_1 + f_l(x_2), \\qquad y_2 = x_2 + g_l(y_1),

so :math:`x_2 = y_2 - g_l(y_1)` and :math:`x_1 = y_1 - f_l(x_2)`: the backward pass needs the last streams alone,
however many layers there are. Source: arXiv 1707.04585, section 3.1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import get_device_states, set_device_states

from torch_linformer.nn.chunks import cut, take

Branch = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class ReversibleLayer:
    """The two branches of a layer, and the chunks (of dimension ``dim``) that the second can be cut into."""

    f: Branch
    g: Branch
    chunk_size: int | None
    dim: int

    def chunks(self, *sequences: Tensor) -> Iterator[tuple[Tensor, ...]]:
        length = sequences[0].shape[self.dim]
        for chunk in cut(length, self.chunk_size or max(length, 1)):
            yield tuple(take(x, chunk, self.dim) for x in sequences)


def stream_of(src: Tensor) -> Tensor:
    """``src`` in no less than float32: in half precision x + y − y is not x, and gradients were 5 times as wrong."""
    return src.to(torch.promote_types(src.dtype, torch.float32))


@torch._disable_dynamo  # type: ignore[attr-defined]  # the public one would load the compiler now
def run_reversible(
    layers: Sequence[ReversibleLayer], first: Tensor, second: Tensor, parameters: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """The streams behind the last layer, each shaped as ``first``; activations of no layer are kept.

    ``parameters`` are all that f and g read and that need a gradient. The backward pass runs each branch once
    more with the random numbers and the autocast of the forward pass, and so cannot itself be differentiated.
    """
    streams: tuple[Tensor, Tensor] = _Reversible.apply(layers, first, second, *parameters)  # type: ignore[no-untyped-call]
    return streams


class _Reversible(torch.autograd.Function):
    # The parameters are inputs, so that their gradients are returned as any other's: whoever asked for them (DDP's
    # hooks, torch.autograd.grad) gets them, and a change to one before the backward pass is noticed.

    @staticmethod
    def forward(
        ctx: Any, layers: Sequence[ReversibleLayer], first: Tensor, second: Tensor, *parameters: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.layers, ctx.autocast, ctx.random = layers, _Autocast(first.device.type), []
        for layer in layers:
            before_f = _Random(first)
            with ctx.autocast.again():
                first = first + layer.f(second)
                before_g = _Random(first)
                pieces = [x2 + layer.g(y1) for y1, x2 in layer.chunks(first, second)]
            second = torch.cat(pieces, layer.dim)
            ctx.random.append((before_f, before_g))
        ctx.save_for_backward(first, second, *parameters)
        return first, second

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_first: Tensor, grad_second: Tensor) -> tuple[Tensor | None, ...]:
        first, second, *parameters = ctx.saved_tensors
        gradients = _Gradients(parameters)
        for layer, (before_f, before_g) in zip(reversed(ctx.layers), reversed(ctx.random), strict=True):
            with before_g.again(), ctx.autocast.again():
                earlier = []
                for y1, y2, grad in layer.chunks(first, second, grad_second):
                    added, grad_y1 = gradients.through(layer.g, y1, grad)
                    earlier.append((y2 - added, grad_y1))
            second, grad = (torch.cat(pieces, layer.dim) for pieces in zip(*earlier, strict=True))
            grad_first = grad_first + grad
            with before_f.again(), ctx.autocast.again():
                added, grad = gradients.through(layer.f, second, grad_first)
            first, grad_second = first - added, grad_second + grad
        return None, grad_first, grad_second, *gradients.sums


class _Gradients:
    """Gradients to the parameters, summed over the branches that read them."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.parameters = parameters
        self.sums: list[Tensor | None] = [None] * len(parameters)

    def through(self, branch: Branch, x: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
        """What the branch makes of ``x``, and ``grad`` carried back through it to ``x``."""
        x = x.detach().requires_grad_()
        with torch.enable_grad():
            added = branch(x)
        to_x, *to_parameters = torch.autograd.grad(
            added, [x, *self.parameters], grad.to(added.dtype), allow_unused=True
        )
        for index, one in enumerate(to_parameters):
            if one is not None:
                before = self.sums[index]
                self.sums[index] = one if before is None else before + one
        return added.detach(), to_x


class _Random:
    """The state of the random numbers on the CPU and on the device of a tensor, now."""

    def __init__(self, tensor: Tensor) -> None:
        self.device_type = tensor.device.type
        self.cpu = torch.get_rng_state()
        self.devices, self.states = get_device_states(tensor)

    @contextmanager
    def again(self) -> Iterator[None]:
        with torch.random.fork_rng(self.devices, device_type=self.device_type):
            torch.set_rng_state(self.cpu)
            set_device_states(self.devices, self.states, device_type=self.device_type)
            yield


class _Autocast:
    """The automatic precision of a kind of device, now."""

    def __init__(self, device_type: str) -> None:
        self.device_type = device_type
        self.enabled = torch.is_autocast_enabled(device_type)
        self.dtype = torch.get_autocast_dtype(device_type)

    def again(self) -> torch.autocast:
        # Without the cache: a weight cast where no gradients are recorded would serve where they are.
        return torch.autocast(self.device_type, self.dtype, self.enabled, cache_enabled=False)

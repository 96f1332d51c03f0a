"""Reversible layers: their inputs are computed back from their outputs instead of being kept.

Two streams run through the layers. Layer l adds to each what it makes of the other,

.. math:: y_1 = x_1 + f_l(x_2), \\qquad y_2 = x_2 + g_l(y_1),

so :math:`x_2 = y_2 - g_l(y_1)` and :math:`x_1 = y_1 - f_l(x_2)`: the backward pass needs only the last streams,
however many layers there are. Source: arXiv 1707.04585, section 3.1.

The graph is autograd's own, and every parameter a leaf of it; what is not kept are the tensors that its nodes save.
The first node of a branch that asks for one in the backward pass has the branch computed again from its input.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

from torch_linformer.nn.attention import Past
from torch_linformer.nn.attention.slot_maps import SequenceMap
from torch_linformer.nn.chunks import Parameters, cut, map_chunks, take
from torch_linformer.nn.layer import Attend, SelfAttentionLayer
from torch_linformer.nn.padding import KeyPaddingMask

Branch = Callable[[Tensor], Tensor]
Streams = tuple[Tensor, Tensor]


class _Step(NamedTuple):
    """A branch that read a chunk of one stream, and was added to that chunk of the other, number ``to``."""

    branch: Branch
    to: int
    chunk: slice
    needs_grad: bool
    conditions: Callable[[], AbstractContextManager[None]]
    saved: list[tuple[torch.Size, torch.dtype]]


class Reversal:
    """A forward pass through reversible layers that follow one another, of which only the last streams are kept.

    The backward pass runs each branch once more, with the random numbers, the autocast and the ``parameters`` of the
    forward pass.
    """

    def __init__(self, parameters: Parameters) -> None:
        self.parameters, self.dim = parameters, 0
        self.steps: list[_Step] = []
        self.ends: list[Tensor] = []  # the streams after the last step, and their versions
        self.versions: list[int] = []
        # On the way back: the last step undone, the streams before it, chunks of the next ones, and what it saved.
        self.undone = 0
        self.streams: list[Tensor] = []
        self.chunks: list[Tensor] = []
        self.saved: dict[int, Tensor] = {}

    @property
    def is_unchanged(self) -> bool:
        """Whether nobody has written into the streams it led to."""
        return [end._version for end in self.ends] == self.versions

    def leads_to(self, *streams: Tensor) -> bool:
        """Whether these are the streams that it led to, and not others that a hook has put in their place."""
        views = [[(x.data_ptr(), x.shape, x.stride()) for x in pair] for pair in (streams, self.ends)]
        return not self.steps or (self.is_unchanged and views[0] == views[1])

    def run(self, streams: Streams, f: Branch, g: Branch, chunk_size: int | None, dim: int) -> Streams:
        """The streams after one more layer, whose second branch takes ``chunk_size`` positions of ``dim`` at once."""
        first, second = streams
        self.dim, length = dim, first.shape[dim]
        size = chunk_size or max(length, 1)
        first = first + self._take_step(f, second, 0, slice(0, length))
        # Not slices, each of which would have a gradient as long as the sequence.
        chunks = zip(torch.split(first, size, dim), cut(length, size), strict=True)
        added = [self._take_step(g, x, 1, chunk) for x, chunk in chunks]
        second = second + (added[0] if len(added) == 1 else torch.cat(added, dim))
        self.ends = [first.detach(), second.detach()]
        self.versions = [end._version for end in self.ends]
        return first, second

    def _take_step(self, branch: Branch, x: Tensor, to: int, chunk: slice) -> Tensor:
        step, index = _Step(branch, to, chunk, x.requires_grad, _conditions(x), []), len(self.steps)
        self.steps.append(step)

        def forget(tensor: Tensor) -> tuple[int, int]:
            step.saved.append((tensor.shape, tensor.dtype))
            return index, len(step.saved) - 1

        with saved_tensors_hooks(forget, self._saved_again):
            return branch(x)

    def _saved_again(self, place: tuple[int, int]) -> Tensor:
        """What a step saved in the forward pass, handed out once; of the steps after it nothing is kept."""
        index, number = place
        if index > self.undone or (index == self.undone and number not in self.saved):  # a backward pass begins
            if not self.is_unchanged:
                raise RuntimeError("the streams of a reversible stack have been modified by an inplace operation")
            self.undone, self.streams, self.chunks = len(self.steps), [*self.ends], []
        while self.undone > index:
            self.undone -= 1
            self._undo(self.steps[self.undone])
        return self.saved.pop(number)

    def _undo(self, step: _Step) -> None:
        saved = self.saved = {}
        x = take(self.streams[1 - step.to], step.chunk, self.dim).detach().requires_grad_(step.needs_grad)

        def keep(tensor: Tensor) -> int:
            saved[len(saved)] = tensor.detach()
            return len(saved) - 1

        with step.conditions(), self.parameters, torch.enable_grad(), saved_tensors_hooks(keep, saved.__getitem__):
            added = step.branch(x).detach()
        if [(tensor.shape, tensor.dtype) for tensor in saved.values()] != step.saved:
            raise RuntimeError(
                "a reversible layer did something else when it was computed again in the backward pass: what it does "
                "may depend on nothing but its input, parameters and random numbers; take activation_memory='none'"
            )
        with torch.no_grad():
            self.chunks.append(take(self.streams[step.to], step.chunk, self.dim) - added)
            if step.chunk.start == 0:  # the first chunk is the last to be undone
                self.streams[step.to] = torch.cat(self.chunks[::-1], self.dim)
                self.chunks = []


def _conditions(x: Tensor) -> Callable[[], AbstractContextManager[None]]:
    """A context with the random numbers, and the automatic precision on the device of ``x``, of now."""
    kind = x.device.type
    cpu, (devices, states) = torch.get_rng_state(), get_device_states(x)
    precision: tuple[str, torch.dtype, bool] | None = None
    if torch.amp.is_autocast_available(kind):  # "meta" has none
        precision = kind, torch.get_autocast_dtype(kind), torch.is_autocast_enabled(kind)

    @contextmanager
    def again() -> Iterator[None]:
        # Without the cache: a weight cast in a graph that is thrown away must not serve in another.
        autocast = nullcontext() if precision is None else torch.autocast(*precision, cache_enabled=False)
        with torch.random.fork_rng(devices, device_type=kind), autocast:
            torch.set_rng_state(cpu)
            set_device_states(devices, states, device_type=kind)
            yield

    return again


class ReversibleEncoderLayer(SelfAttentionLayer):
    """Self-attention f and feed-forward g on two streams, norms and dropout included; ``norm_first`` must be True."""

    def forward(
        self,
        first: Tensor,
        second: Tensor,
        src_mask: Tensor | None = None,
        src_key_padding_mask: KeyPaddingMask = None,
        is_causal: bool = False,
        shared_projection: SequenceMap | None = None,
        need_weights: bool = False,
        overwrite: bool = False,
        past: Past | None = None,
        reversal: Reversal | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The mean of both streams after the layer, and the streams, each ``(B, N, C)``.

        With a ``reversal`` nothing of this layer is kept for the backward pass; the other arguments are those of
        :meth:`EncoderLayer.forward`.
        """
        dtype = self.norm(1).weight.dtype
        # In half precision x + y − y is not x, and gradients were 5 times as wrong.
        wide = torch.promote_types(first.dtype, torch.float32)

        def couple(attend: Attend, first: Tensor, second: Tensor) -> list[Tensor]:
            """The streams after both branches, and their mean."""

            def f(x: Tensor) -> Tensor:
                return self.drop(1, attend(self.norm(1)(x.to(dtype)))[0])

            def g(x: Tensor) -> Tensor:
                return self.feed_forward(x.to(dtype))

            first, second, dim = first.to(wide), second.to(wide), self.sequence_dim(first)
            if reversal is not None:
                first, second = reversal.run((first, second), f, g, self.chunk_size, dim)
            else:
                first = first + f(second)
                second = second + map_chunks(g, self, first, self.chunk_size, dim)
            return [first, second, ((first + second) / 2).to(dtype)]

        padding = self.read_padding(first, src_key_padding_mask)
        if self.can_chunk(padding, src_mask, is_causal, need_weights):
            streams = self.run_in_chunks([first, second], padding, couple, shared_projection, past, overwrite)
        else:
            attend = self.attend_with(padding, src_mask, is_causal, shared_projection, need_weights, past)
            streams = couple(attend, first, second)
        return streams[2], streams[0], streams[1]

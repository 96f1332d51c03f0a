"""Reversible layers: their inputs are computed back from their outputs instead of being kept.

Two streams run through the layers. Layer l adds to each what it makes of the other,

.. math:: y_1 = x_1 + f_l(x_2), \\qquad y_2 = x_2 + g_l(y_1),

so :math:`x_2 = y_2 - g_l(y_1)` and :math:`x_1 = y_1 - f_l(x_2)`: the backward pass needs only the last streams,
however many layers there are. Source: arXiv 1707.04585, section 3.1.

The graph is autograd's own, and every parameter a leaf of it; what is not kept are the tensors that its nodes save.
The first node of a branch that asks for one in the backward pass has the branch computed again from its input.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import get_device_states, set_device_states

from torch_linformer.nn.attention import Past
from torch_linformer.nn.attention.slot_maps import SequenceMap
from torch_linformer.nn.chunks import Parameters, cut, map_chunks, take
from torch_linformer.nn.layer import Attend, SelfAttentionLayer
from torch_linformer.nn.padding import KeyPaddingMask

Branch = Callable[[Tensor], Tensor]
Streams = tuple[Tensor, Tensor]


def stream_of(src: Tensor) -> Tensor:
    """``src`` in no less than float32: in half precision x + y − y is not x, and gradients were 5 times as wrong."""
    return src.to(torch.promote_types(src.dtype, torch.float32))


@dataclass(frozen=True)
class _Step:
    """A branch that read a chunk of one stream, and was added to that chunk of the other, number ``to``."""

    branch: Branch
    to: int
    chunk: slice
    needs_grad: bool
    conditions: Callable[[], AbstractContextManager[None]]
    saved: list[tuple[torch.Size, torch.dtype]] = field(default_factory=list)


class _Stretch:
    """Layers that follow one another: the steps they took, the streams they led to, and the way back."""

    def __init__(self, parameters: Parameters, dim: int) -> None:
        self.parameters, self.dim = parameters, dim
        self.steps: list[_Step] = []
        self.ends: list[Tensor] = []
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

    def run(self, streams: Streams, f: Branch, g: Branch, chunk_size: int | None) -> Streams:
        """The streams after one more layer, whose second branch takes ``chunk_size`` positions at once."""
        first, second = streams
        size = chunk_size or max(first.shape[self.dim], 1)
        first = first + self._take_step(f, second, 0, slice(0, first.shape[self.dim]))
        # Not slices, each of which would have a gradient as long as the sequence.
        chunks = zip(torch.split(first, size, self.dim), cut(first.shape[self.dim], size), strict=True)
        added = [self._take_step(g, x, 1, chunk) for x, chunk in chunks]
        second = second + (added[0] if len(added) == 1 else torch.cat(added, self.dim))
        self.ends = [first.detach(), second.detach()]
        self.versions = [end._version for end in self.ends]
        return first, second

    def _take_step(self, branch: Branch, x: Tensor, to: int, chunk: slice) -> Tensor:
        step = _Step(branch, to, chunk, x.requires_grad, _conditions(x))
        index = len(self.steps)
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


class Reversal:
    """One forward pass through the reversible layers of a stack, of which nothing but the last streams is kept.

    The backward pass runs each branch once more, with the random numbers, the autocast and the parameters of the
    forward pass.
    """

    def __init__(self, stack: nn.Module) -> None:
        self._parameters = Parameters(stack)
        self._stretch: _Stretch | None = None

    def run(self, streams: Streams, f: Branch, g: Branch, chunk_size: int | None, dim: int) -> Streams:
        """The streams after a layer, whose second branch takes ``chunk_size`` positions of dimension ``dim``."""
        last = self._stretch
        # A hook may have put other streams in the place of the ones a layer returned.
        if last is None or not (last.is_unchanged and all(map(_is_same_view, streams, last.ends))):
            last = self._stretch = _Stretch(self._parameters, dim)
        return last.run(streams, f, g, chunk_size)


def _is_same_view(x: Tensor, end: Tensor) -> bool:
    return x.data_ptr() == end.data_ptr() and x.shape == end.shape and x.stride() == end.stride()


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

        Args:
            first: a stream; so is ``second``.
            reversal: in training: keeps nothing of this layer for the backward pass.

        The others are those of :meth:`EncoderLayer.forward`.
        """
        padding = self.read_padding(first, src_key_padding_mask)
        if self.can_chunk(padding, src_mask, is_causal, need_weights):

            def run(attend: Attend, first: Tensor, second: Tensor) -> Sequence[Tensor]:
                mean, *streams = self.couple(stream_of(first), stream_of(second), attend)
                return [*streams, mean]

            first, second, mean = self.run_in_chunks([first, second], padding, run, shared_projection, past, overwrite)
            return mean, first, second
        attend = self.attend_with(padding, src_mask, is_causal, shared_projection, need_weights, past)
        return self.couple(stream_of(first), stream_of(second), attend, reversal)

    def couple(
        self, first: Tensor, second: Tensor, attend: Attend, reversal: Reversal | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Both branches, with their dropout and norms."""
        dtype = self.norm(1).weight.dtype

        def f(x: Tensor) -> Tensor:
            added, _ = attend(self.norm(1)(x.to(dtype)))
            return self.drop(1, added)

        def g(x: Tensor) -> Tensor:
            return self.feed_forward(x.to(dtype))

        dim = self.sequence_dim(first)
        if reversal is None:
            first = first + f(second)
            second = second + map_chunks(g, self, first, self.chunk_size, dim)
        else:
            first, second = reversal.run((first, second), f, g, self.chunk_size, dim)
        return ((first + second) / 2).to(dtype), first, second

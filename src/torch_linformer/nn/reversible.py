"""Reversible layers: their inputs are computed back from their outputs instead of being kept.

Two streams run through the layers. Layer l adds to each what it makes of the other,

.. math:: y_1 = x_1 + f_l(x_2), \\qquad y_2 = x_2 + g_l(y_1),

so :math:`x_2 = y_2 - g_l(y_1)` and :math:`x_1 = y_1 - f_l(x_2)`: the backward pass needs only the last streams,
however many layers there are. Source: arXiv 1707.04585, section 3.1.

The graph is autograd's own, and every parameter a leaf of it; what is not kept are the tensors that its nodes save.
The first node of a branch that asks for one in the backward pass has the branch computed again from its input.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
        # A hook may have put other streams in the place of the ones a layer returned.
        if self._stretch is None or not self._stretch.ends_with(streams):
            self._stretch = _Stretch(self._parameters, dim)
        return self._stretch.run(streams, f, g, chunk_size)


@dataclass(frozen=True)
class _Step:
    """A branch that read a chunk of one stream, and was added to that chunk of the other, number ``to``."""

    branch: Branch
    to: int
    chunk: slice
    needs_grad: bool
    random: "_Random"
    autocast: "_Autocast"
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
        self.pieces: list[Tensor] = []
        self.saved: dict[int, Tensor] = {}

    def ends_with(self, streams: Streams) -> bool:
        """Whether it led to these streams, which nobody has changed since."""
        return self._ends_are_unchanged() and all(
            x.data_ptr() == end.data_ptr() and x.shape == end.shape and x.stride() == end.stride()
            for x, end in zip(streams, self.ends, strict=True)
        )

    def run(self, streams: Streams, f: Branch, g: Branch, chunk_size: int | None) -> Streams:
        first, second = streams
        length = first.shape[self.dim]
        first = first + self._take_step(f, second, 0, slice(0, length))
        chunks = list(cut(length, chunk_size or max(length, 1)))
        # Not slices, each of which would have a gradient as long as the sequence.
        pieces = torch.split(first, chunk_size or max(length, 1), self.dim)
        added = [self._take_step(g, piece, 1, chunk) for piece, chunk in zip(pieces, chunks, strict=True)]
        second = second + (added[0] if len(added) == 1 else torch.cat(added, self.dim))
        self.ends = [first.detach(), second.detach()]
        self.versions = [end._version for end in self.ends]
        return first, second

    def _take_step(self, branch: Branch, x: Tensor, to: int, chunk: slice) -> Tensor:
        step = _Step(branch, to, chunk, x.requires_grad, _Random(x), _Autocast(x.device.type))
        index = len(self.steps)
        self.steps.append(step)

        def forget(tensor: Tensor) -> tuple[int, int]:
            step.saved.append((tensor.shape, tensor.dtype))
            return index, len(step.saved) - 1

        with saved_tensors_hooks(forget, self._saved_again):
            return branch(x)

    def _saved_again(self, place: tuple[int, int]) -> Tensor:
        """What a step saved in the forward pass, handed out once."""
        index, number = place
        if index != self.undone or number not in self.saved:
            self._go_back_to(index)
        return self.saved.pop(number)

    def _go_back_to(self, index: int) -> None:
        """Undo the steps down to this one; of those after it nothing is kept."""
        if index >= self.undone:  # a backward pass begins
            if not self._ends_are_unchanged():
                raise RuntimeError("the streams of a reversible stack have been modified by an inplace operation")
            self.undone, self.streams, self.pieces = len(self.steps), [*self.ends], []
        while self.undone > index:
            self.undone -= 1
            self._undo(self.steps[self.undone])

    def _undo(self, step: _Step) -> None:
        self.saved = {}
        saved = self.saved
        x = take(self.streams[1 - step.to], step.chunk, self.dim).detach().requires_grad_(step.needs_grad)

        def keep(tensor: Tensor) -> int:
            saved[len(saved)] = tensor.detach()
            return len(saved) - 1

        random, autocast = step.random.again(), step.autocast.again()
        with random, autocast, self.parameters, torch.enable_grad(), saved_tensors_hooks(keep, saved.__getitem__):
            added = step.branch(x).detach()
        if [(tensor.shape, tensor.dtype) for tensor in saved.values()] != step.saved:
            raise RuntimeError(
                "a reversible layer did something else when it was computed again in the backward pass: what it does "
                "may depend on nothing but its input, parameters and random numbers; take activation_memory='none'"
            )
        with torch.no_grad():
            self.pieces.append(take(self.streams[step.to], step.chunk, self.dim) - added)
            if step.chunk.start == 0:  # the first chunk is the last to be undone
                self.streams[step.to] = torch.cat(self.pieces[::-1], self.dim)
                self.pieces = []

    def _ends_are_unchanged(self) -> bool:
        return [end._version for end in self.ends] == self.versions


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
        self.available = torch.amp.is_autocast_available(device_type)  # "meta" has none
        self.enabled = self.available and torch.is_autocast_enabled(device_type)
        self.dtype = torch.get_autocast_dtype(device_type) if self.available else None

    def again(self) -> torch.autocast | nullcontext[None]:
        if not self.available:
            return nullcontext()
        # Without the cache: a weight cast in a graph that is thrown away must not serve in another.
        return torch.autocast(self.device_type, self.dtype, self.enabled, cache_enabled=False)


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

"""What processes tell each other about pieces of one sequence, each operation with its own gradient.

Every process computes the same loss L from its own copy of the parameters. The gradient of a sum over processes is the
sum of their gradients, and so on: each operation is followed back as it is. What arrives at a process's parameters is
then its share of :math:`R\\, \\partial L`, R processes in all, and the **mean** over the processes, which
``DistributedDataParallel`` and ``fully_shard`` take anyway, is the gradient of L.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


class Peers:
    """The processes that hold the pieces of one sequence, in the order of the pieces."""

    def __init__(self, group: dist.ProcessGroup, bounds: Sequence[int]) -> None:
        self.group, self.bounds = group, bounds  # piece r is positions bounds[r] to bounds[r + 1]
        self.rank, self.count = dist.get_rank(group), dist.get_world_size(group)
        self.sent = 0  # bytes that this process has given to others: a tensor that is summed counts once
        self.messages = 0  # how many times it has waited for the others
        self._neighbors: dict[int, tuple[dict[int, slice], dict[int, int]]] = {}  # layers of one model ask for the same

    def total(self, share: Tensor) -> Tensor:
        # Roundings of a sum grow with its terms.
        accurate = share.to(torch.promote_types(share.dtype, torch.float32)) if share.is_floating_point() else share
        total: Tensor = Sum.apply(accurate, self)  # type: ignore[no-untyped-call]
        return total.to(share.dtype)

    def highest(self, share: Tensor) -> Tensor:
        return self.reduce(share, dist.ReduceOp.MAX)

    def around(self, sequence: Tensor, reach: int) -> Tensor:
        if reach not in self._neighbors:
            self._neighbors[reach] = neighbors_of(self.bounds, self.rank, reach)
        around: Tensor = Around.apply(sequence, self, *self._neighbors[reach])  # type: ignore[no-untyped-call]
        return around

    def received(self, state: Sequence[Tensor], like: Tensor) -> tuple[Tensor, ...]:
        if self.rank == 0:
            return tuple(state)
        received: tuple[Tensor, ...] = Receive.apply(self, like, *state)  # type: ignore[no-untyped-call]
        return received

    def hand_on(self, state: Sequence[Tensor], output: Tensor) -> Tensor:
        handed: Tensor = HandOn.apply(self, output, *state)  # type: ignore[no-untyped-call]
        return handed

    def reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """The sum, or another reduction, of one tensor of each."""
        reduced = x.clone(memory_format=torch.contiguous_format)
        self._count(reduced)
        dist.all_reduce(reduced, op, group=self.group)
        return reduced

    def exchange(self, outgoing: dict[int, Tensor], incoming: dict[int, Tensor]) -> None:
        """Give tensors to some ranks, and fill tensors with what others give."""
        outgoing = {rank: x.contiguous() for rank, x in outgoing.items()}
        messages = [dist.P2POp(dist.isend, x, group=self.group, group_peer=rank) for rank, x in outgoing.items()]
        messages += [dist.P2POp(dist.irecv, x, group=self.group, group_peer=rank) for rank, x in incoming.items()]
        self._count(*outgoing.values())
        for work in dist.batch_isend_irecv(messages) if messages else ():
            work.wait()

    def _count(self, *tensors: Tensor) -> None:
        if self.count > 1:
            self.sent += sum(x.numel() * x.element_size() for x in tensors)
            self.messages += 1


class Sum(torch.autograd.Function):
    """The sum of one tensor of each rank."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers) -> Tensor:
        ctx.peers = peers
        return peers.reduce(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None]:
        return ctx.peers.reduce(grad_outputs[0]), None


def neighbors_of(bounds: Sequence[int], rank: int, reach: int) -> tuple[dict[int, slice], dict[int, int]]:
    """Which positions of this piece other ranks' windows reach, by rank, and how many of theirs this one's do."""
    start, stop = bounds[rank], bounds[rank + 1]
    outgoing, incoming = dict[int, slice](), dict[int, int]()
    for peer, (begin, end) in enumerate(pairwise(bounds)):
        if peer == rank or begin == end:
            continue
        first, last = max(start, begin - reach), min(stop, end + reach)
        if first < last:
            outgoing[peer] = slice(first - start, last - start)
        number = min(end, stop + reach) - max(begin, start - reach)
        if start < stop and number > 0:
            incoming[peer] = number
    return outgoing, incoming


class Around(torch.autograd.Function):
    """A piece ``(B, H, n, D)`` with the positions of others before and after it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers, outgoing: dict[int, slice], incoming: dict[int, int]) -> Tensor:
        ctx.peers, ctx.outgoing, ctx.numbers = peers, outgoing, {**incoming, peers.rank: x.shape[2]}
        received = {rank: x.new_empty(*x.shape[:2], number, x.shape[3]) for rank, number in incoming.items()}
        peers.exchange({rank: x[:, :, positions] for rank, positions in outgoing.items()}, received)
        parts = {**received, peers.rank: x}
        return torch.cat([parts[rank] for rank in sorted(parts)], dim=2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor, None, None, None]:
        peers, numbers = ctx.peers, ctx.numbers
        ranks = sorted(numbers)
        grads = dict(zip(ranks, torch.split(grad_outputs[0], [numbers[rank] for rank in ranks], dim=2), strict=True))
        grad_x = grads.pop(peers.rank).clone(memory_format=torch.contiguous_format)
        added = {rank: torch.empty_like(grad_x[:, :, part]).contiguous() for rank, part in ctx.outgoing.items()}
        peers.exchange(grads, added)
        for rank, positions in ctx.outgoing.items():
            grad_x[:, :, positions] += added[rank]
        return grad_x, None, None, None


class Receive(torch.autograd.Function):
    """The tensors that the rank before has handed on, in place of others of their sizes and types."""

    @staticmethod
    def forward(ctx: Any, peers: Peers, like: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.peers = peers
        received = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in state)
        for x in received:
            peers.exchange({}, {peers.rank - 1: x})
        ctx.have_gradients = [x.is_floating_point() for x in received]
        ctx.mark_non_differentiable(*(x for x in received if not x.is_floating_point()))
        return received

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[None, ...]:
        for grad, has_gradient in zip(grad_outputs, ctx.have_gradients, strict=True):
            if has_gradient:
                ctx.peers.exchange({ctx.peers.rank - 1: grad}, {})
        return (None,) * (2 + len(grad_outputs))


class HandOn(torch.autograd.Function):
    """Tensors for the rank after, if there is one; returns the output, by which their gradients are asked for.

    They depend on what was received, even where the output of a piece does not, as that of an empty one: its backward
    pass reaches :class:`Receive`, for whose gradients the rank before waits.
    """

    @staticmethod
    def forward(ctx: Any, peers: Peers, output: Tensor, *state: Tensor) -> Tensor:
        ctx.peers, ctx.is_last, ctx.number = peers, peers.rank == peers.count - 1, len(state)
        if not ctx.is_last:
            # A layer that is computed again receives and hands on before it is followed back.
            ctx.save_for_backward(*state)
            for x in state:
                peers.exchange({peers.rank + 1: x}, {})
        return output.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        grads: list[Tensor | None] = [None] * ctx.number
        for index, x in enumerate(ctx.saved_tensors):
            if x.is_floating_point():
                grads[index] = grad = torch.empty_like(x, memory_format=torch.contiguous_format)
                ctx.peers.exchange({}, {ctx.peers.rank + 1: grad})
        return None, grad_outputs[0], *grads

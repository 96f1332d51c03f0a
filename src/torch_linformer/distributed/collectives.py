"""What processes tell each other about pieces of one sequence, each operation with its own gradient.

Every process computes the same loss L from its own copy of the parameters. The gradient of a sum over processes is the
sum of their gradients, and so on: each operation is followed back as it is. What arrives at a process's parameters is
then its share of :math:`R\\, \\partial L`, R processes in all, and the **mean** over the processes, which
``DistributedDataParallel`` and ``fully_shard`` take anyway, is the gradient of L.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


class Peers:
    """The processes that hold the pieces of one sequence, in the order of the pieces.

    Attributes:
        group: theirs.
        rank: which of them this is.
        count: how many they are.
        sent: bytes that this process has given to others: a tensor that is summed counts once.
        messages: how many times it has waited for the others.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group, self.rank, self.count = group, dist.get_rank(group), dist.get_world_size(group)
        self.sent = self.messages = 0

    def reduce(self, x: Tensor, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM) -> Tensor:
        """The sum, or another reduction, of one tensor of each."""
        reduced = x.clone(memory_format=torch.contiguous_format)
        self._count(reduced)
        dist.all_reduce(reduced, op, group=self.group)
        return reduced

    def exchange(self, given: dict[int, Tensor], wanted: dict[int, Tensor]) -> None:
        """Give tensors to some ranks, and fill tensors with what others give."""
        given = {rank: x.contiguous() for rank, x in given.items()}
        messages = [dist.P2POp(dist.isend, x, group=self.group, group_peer=rank) for rank, x in given.items()]
        messages += [dist.P2POp(dist.irecv, x, group=self.group, group_peer=rank) for rank, x in wanted.items()]
        self._count(*given.values())
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
    def backward(ctx: Any, *of_sum: Tensor) -> tuple[Tensor, None]:
        return ctx.peers.reduce(of_sum[0]), None


class Neighbors(NamedTuple):
    """Which positions go where: those of each other rank's windows that this one holds, and the other way round.

    Attributes:
        given: of this piece, ``slice(0, n)`` being all of it, by rank.
        taken: positions before the piece and after it, by rank, in the order of the peers.
        before: how many of ``taken`` come before it.
        after: how many come after it.
    """

    given: dict[int, slice]
    taken: dict[int, int]
    before: int
    after: int

    @classmethod
    def of(cls, bounds: Sequence[int], rank: int, reach: int) -> "Neighbors":
        """Those of piece ``rank`` where piece r is ``bounds[r]`` to ``bounds[r + 1]``."""
        start, stop = bounds[rank], bounds[rank + 1]
        given, taken, before, after = dict[int, slice](), dict[int, int](), 0, 0
        for other in range(len(bounds) - 1):
            begin, end = bounds[other], bounds[other + 1]
            if other == rank or begin == end:
                continue
            first, last = max(start, begin - reach), min(stop, end + reach)
            if first < last:
                given[other] = slice(first - start, last - start)
            number = min(end, stop + reach) - max(begin, start - reach)
            if start < stop and number > 0:
                taken[other] = number
                before, after = before + number * (other < rank), after + number * (other > rank)
        return cls(given, taken, before, after)


class Around(torch.autograd.Function):
    """A piece ``(B, H, n, D)`` with the positions of others before and after it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, peers: Peers, neighbors: Neighbors) -> Tensor:
        ctx.peers, ctx.neighbors = peers, neighbors
        given = {rank: x[:, :, positions] for rank, positions in neighbors.given.items()}
        taken = {rank: x.new_empty(*x.shape[:2], number, x.shape[3]) for rank, number in neighbors.taken.items()}
        peers.exchange(given, taken)
        before = [part for rank, part in taken.items() if rank < peers.rank]
        after = [part for rank, part in taken.items() if rank > peers.rank]
        return torch.cat([*before, x, *after], dim=2)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_all: Tensor) -> tuple[Tensor, None, None]:
        peers, neighbors = ctx.peers, ctx.neighbors
        (of_all_BHMD,) = of_all
        length = of_all_BHMD.shape[2] - neighbors.before - neighbors.after
        numbers = [n for rank, n in neighbors.taken.items() if rank < peers.rank]
        numbers_after = [n for rank, n in neighbors.taken.items() if rank > peers.rank]
        parts = list(torch.split(of_all_BHMD, [*numbers, length, *numbers_after], dim=2))
        own = parts.pop(len(numbers)).clone(memory_format=torch.contiguous_format)
        added = {rank: torch.empty_like(own[:, :, positions]) for rank, positions in neighbors.given.items()}
        added = {rank: x.contiguous() for rank, x in added.items()}
        peers.exchange(dict(zip(neighbors.taken, parts, strict=True)), added)
        for rank, positions in neighbors.given.items():
            own[:, :, positions] += added[rank]
        return own, None, None


class Receive(torch.autograd.Function):
    """The tensors that the rank before has handed on, in place of others of their sizes and types."""

    @staticmethod
    def forward(ctx: Any, peers: Peers, like: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        ctx.peers = peers
        received = tuple(torch.empty_like(x, memory_format=torch.contiguous_format) for x in state)
        for x in received:
            peers.exchange({}, {peers.rank - 1: x})
        ctx.numbers = [x.is_floating_point() for x in received]
        ctx.mark_non_differentiable(*(x for x in received if not x.is_floating_point()))
        return received

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_state: Tensor) -> tuple[None, ...]:
        for gradient, has_one in zip(of_state, ctx.numbers, strict=True):
            if has_one:
                ctx.peers.exchange({ctx.peers.rank - 1: gradient}, {})
        return (None,) * (2 + len(of_state))


class HandOn(torch.autograd.Function):
    """Tensors for the rank after, if there is one; returns the output, by which their gradients are asked for.

    They depend on what was received, even where the output of a piece does not, as that of an empty one: its backward
    pass reaches :class:`Receive`, for whose gradients the rank before waits.
    """

    @staticmethod
    def forward(ctx: Any, peers: Peers, output: Tensor, *state: Tensor) -> Tensor:
        ctx.peers, ctx.is_last = peers, peers.rank == peers.count - 1
        if ctx.is_last:
            ctx.number = len(state)
            return output.clone()
        ctx.save_for_backward(*state)  # a layer that is computed again receives and hands on before it is followed back
        for x in state:
            peers.exchange({peers.rank + 1: x}, {})
        return output.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *of_output: Tensor) -> tuple[Tensor | None, ...]:
        gradients: list[Tensor | None] = [None] * ctx.number if ctx.is_last else []
        for x in ctx.saved_tensors:
            gradient = torch.empty_like(x, memory_format=torch.contiguous_format) if x.is_floating_point() else None
            if gradient is not None:
                ctx.peers.exchange({}, {ctx.peers.rank + 1: gradient})
            gradients.append(gradient)
        return None, of_output[0], *gradients

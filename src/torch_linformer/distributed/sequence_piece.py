"""One sequence over several processes: each holds a piece of consecutive positions."""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from torch_linformer.distributed.collectives import Peers
from torch_linformer.functional.padding import Padding, check_padding_mask, zero_padding


class SequencePiece(Padding):
    r"""The piece of each row of a batch that this process holds, for any layer, encoder or model of this package.

    It takes the place of ``key_padding_mask``, ``src_key_padding_mask`` or ``attention_mask``. A row's real tokens are
    counted first and its padding after them, wherever it stood; rank r of R then holds positions
    :math:`\lfloor rN/R \rfloor` up to :math:`\lfloor (r+1)N/R \rfloor`. Layers ask the others for sums over all
    positions, O(K·C) numbers a layer whatever N, and for the w/2 positions on either side that a window of w sees.

    Every rank computes the same loss. The gradient of a parameter is the **mean** over the ranks, which
    ``DistributedDataParallel`` and ``fully_shard`` take.

    Args:
        mesh: the ranks, a mesh of one dimension or their process group, in the order of the pieces.
        batch: rows B.
        length: positions N of the whole rows.
        key_padding_mask: bool ``(B, N)``, True at padding, on any side and between tokens; the same in every rank.
        bounds: R + 1 positions where pieces begin and end, 0 first and N last, instead of even ones.
        device: where the pieces are; that of the mask, or else the CPU.

    Raises:
        ValueError: for bounds that do not cut N positions into R pieces, a mesh of several dimensions, a mask that is
            not bool ``(B, N)``.

    Example:
        >>> import torch
        >>> import torch.distributed as dist
        >>> from torch_linformer.distributed import SequencePiece
        >>> from torch_linformer.nn import LinformerEncoder
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: no arguments
        >>> encoder = LinformerEncoder(d_model=64, nhead=4, num_layers=2, max_len=1024, k=32)
        >>> sequence = torch.randn(2, 1000, 64)
        >>> piece = SequencePiece(dist.group.WORLD, batch=2, length=1000)
        >>> hidden = encoder(piece.cut(sequence), src_key_padding_mask=piece)  # (B, 1000 / R, C) of each rank
        >>> piece.gather(hidden).shape
        torch.Size([2, 1000, 64])
        >>> dist.destroy_process_group()
    """

    def __init__(
        self,
        mesh: DeviceMesh | dist.ProcessGroup | None,
        batch: int,
        length: int,
        *,
        key_padding_mask: Tensor | None = None,
        bounds: Sequence[int] | None = None,
        device: torch.device | str | None = None,
    ) -> None:
        group = group_of(mesh)
        check_padding_mask(key_padding_mask, batch, length)
        count = dist.get_world_size(group)
        ends = [rank * length // count for rank in range(count + 1)] if bounds is None else list(bounds)
        if len(ends) != count + 1 or ends != sorted(ends) or (ends[0], ends[-1]) != (0, length):
            raise ValueError(f"bounds must be {count + 1} positions from 0 to {length}, in order, got {ends}")
        self.peers = Peers(group, ends)
        start, self.stop = self.peers.bounds[self.peers.rank : self.peers.rank + 2]
        self._rows = None if key_padding_mask is None else Padding(key_padding_mask)
        device = device if key_padding_mask is None else key_padding_mask.device
        tokens = torch.full((batch, 1), length, device=device) if self._rows is None else self._rows.tokens
        mask = torch.arange(start, self.stop, device=tokens.device) >= tokens
        super().__init__(mask, in_order=True, tokens=tokens, collective=self.peers, start=start, length=length)

    def cut(self, rows: Tensor, fill: float | None = None) -> Tensor:
        """This piece, ``(B, n, …)``, of whole rows ``(B, N, …)``; with ``fill`` at padding if it is given."""
        if rows.shape[:2] != (self.tokens.shape[0], self.length):
            raise ValueError(f"rows must be {(self.tokens.shape[0], self.length)} first, got {tuple(rows.shape)}")
        moved = rows if self._rows is None else self._rows.justify(rows)
        piece = moved[:, self.start : self.stop]
        if fill is not None:
            piece = piece.masked_fill(self.mask.view(*self.mask.shape, *[1] * (piece.dim() - 2)), fill)
        return piece

    def gather(self, piece: Tensor) -> Tensor:
        """The whole rows ``(B, N, C)`` of pieces ``(B, n, C)``, each token where it stood; O(N·C) numbers."""
        around = (0, 0, self.start, self.length - self.stop)
        rows = self.total(torch.nn.functional.pad(zero_padding(piece, self.mask), around))
        return rows if self._rows is None else self._rows.restore(rows)

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Padding:
        mask = None if self._rows is None else self._rows.mask.to(device, non_blocking=non_blocking)
        if self.tokens.device == torch.device(device):
            return self
        batch, group = self.tokens.shape[0], self.peers.group
        return SequencePiece(
            group, batch, self.length, key_padding_mask=mask, bounds=self.peers.bounds, device=torch.device(device)
        )


def group_of(mesh: DeviceMesh | dist.ProcessGroup | None) -> dist.ProcessGroup:
    """The process group of a mesh of one dimension."""
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            raise ValueError(
                f"a sequence goes over one dimension of a mesh, and this one has {mesh.ndim}: name one of "
                f"{mesh.mesh_dim_names}, as in mesh['cp']"
            )
        return mesh.get_group()
    if mesh is None:
        raise ValueError("no processes to share a sequence: call torch.distributed.init_process_group first")
    return mesh

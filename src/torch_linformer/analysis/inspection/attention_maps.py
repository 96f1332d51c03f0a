"""The attention of each layer in one document, as matrices: context mapping, E and F, tokens to tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from torch_linformer.functional.attention import repeat_heads
from torch_linformer.models.backbone import LinformerModel
from torch_linformer.nn.encoder_layer import EncoderLayer
from torch_linformer.nn.projection import SequenceProjection

COLUMNS = 512  # positions projected at a time


@dataclass(frozen=True, kw_only=True)
class LayerAttention:
    r"""The attention of one layer in one document of N tokens.

    Attributes:
        weights: :math:`\bar P`, ``(H, N, S)``: rows sum to 1. S is K slots; K slots and the positions of the local
            window, from the first before the token to the last after it; or, in ordinary attention, the N tokens.
        proj_k: E as it was applied to N tokens, ``(H, N, K)``, with the length factor; None in ordinary attention and
            with ``projection="max"``.
        proj_v: F, likewise; the same tensor where E = F.
        reach: positions of the local window on either side of a token, 0 without a window.
        num_slots: K; 0 in ordinary attention.
    """

    weights: Tensor
    proj_k: Tensor | None
    proj_v: Tensor | None
    reach: int
    num_slots: int

    @property
    def has_token_map(self) -> bool:
        """Whether :meth:`token_map` exists."""
        return self.num_slots == 0 or self.proj_v is not None

    def token_map(self, head: int) -> Tensor:
        r"""The weight of each token's value in the output at each token, ``(N, N)``: :math:`\bar P F^\top`.

        Times the values (with their bias, before slots are made of them) it is the output of the head, without what a
        ``slot_bias`` adds. Where F has negative entries so has the map, and its rows need not sum to 1. A local window
        adds its weights near the diagonal; in ordinary attention the map is the softmax itself.

        Raises:
            ValueError: with ``projection="max"``, which takes each channel from a token of its own.
        """
        weights, near = self.weights[head], self.window_weights(head)
        if self.num_slots == 0:
            return weights
        if self.proj_v is None:
            raise ValueError("projection='max' has no F: a slot takes each channel from a token of its own")
        token_map = weights[:, : self.num_slots] @ self.proj_v[head].mT
        return token_map if near is None else token_map + spread_window(near)

    def window_weights(self, head: int) -> Tensor | None:
        """The weights of the local window, ``(N, 2 · reach + 1)``; None without one."""
        return self.weights[head, :, self.num_slots :] if self.reach else None


def spread_window(near: Tensor) -> Tensor:
    """Weights of the positions around each of N tokens, ``(N, 2r + 1)``, as ``(N, N)``."""
    length, reach = near.shape[0], near.shape[1] // 2
    column = (torch.arange(length).unsqueeze(-1) + torch.arange(2 * reach + 1)).to(near.device)
    return near.new_zeros(length, length + 2 * reach).scatter(1, column, near)[:, reach : reach + length]


def projection_matrix(projection: SequenceProjection, length: int, like: Tensor) -> Tensor:
    r"""E as a map applies it to ``length`` real tokens: ``(length, K)``, or ``(H, length, K)`` with one a head.

    These are the slots that the map makes of the identity matrix, of the dtype and on the device of ``like``; so E
    includes the length factor of ``linear`` and ``random``, and the windows of ``conv`` and ``mean``.

    Raises:
        ValueError: for ``max``, which is no linear map, and for a length over ``max_len``.
    """
    if projection.projection == "max":
        raise ValueError("projection='max' is no linear map of the sequence: there is no E")
    heads = () if projection.num_heads is None else (projection.num_heads,)
    rows = []
    for start in range(0, length, COLUMNS):
        columns = min(COLUMNS, length - start)
        identity = like.new_zeros(length, columns)
        identity[start : start + columns].fill_diagonal_(1.0)
        rows.append(projection(identity.expand(1, *heads, -1, -1))[0].mT)
    return torch.cat(rows, dim=-2)


@torch.no_grad()
def attention_of_layers(
    backbone: LinformerModel, input_ids: Tensor, layers: Iterable[int]
) -> dict[int, LayerAttention]:
    """Run a document ``(1, N)`` and return the attention of some layers by their number from 0, on the CPU."""
    outputs = backbone(input_ids, output_attentions=True, use_cache=False)
    made: dict[object, Tensor] = {}
    found = {}
    for number in layers:
        weights = outputs.attentions[number][0]
        attention = cast(EncoderLayer, backbone.encoder.layers[number]).self_attn
        proj_k = getattr(attention, "proj_k", None) or backbone.encoder.shared_projection
        proj_v = getattr(attention, "proj_v", None) or proj_k
        found[number] = LayerAttention(
            weights=weights.cpu(),
            proj_k=_heads_of(proj_k, weights, made),
            proj_v=_heads_of(proj_v, weights, made),
            reach=(attention.window or 0) // 2,
            num_slots=0 if proj_k is None else proj_k.k,
        )
    return found


def _heads_of(projection: SequenceProjection | None, weights: Tensor, made: dict[object, Tensor]) -> Tensor | None:
    """The matrix of every query head, ``(H, N, K)``, made once for all layers that share it."""
    if projection is None or projection.projection == "max":
        return None
    # A map without parameters is the same in every layer.
    owner = (projection.window, projection.k) if projection.weight is None else projection
    if owner not in made:
        heads, matrix = weights.shape[0], projection_matrix(projection, weights.shape[1], weights).cpu()
        shared = matrix.dim() == 2
        made[owner] = matrix.expand(heads, -1, -1) if shared else repeat_heads(matrix.unsqueeze(0), heads)[0]
    return made[owner]

"""What the attention of each layer did with one document, as matrices: context mapping, E and F, tokens to tokens."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from torch_linformer.functional.attention import repeat_heads
from torch_linformer.models.backbone import LinformerModel
from torch_linformer.nn.attention import LinformerAttention
from torch_linformer.nn.encoder_layer import EncoderLayer
from torch_linformer.nn.projection import SequenceProjection

COLUMNS = 512  # positions that are projected at a time


@dataclass(frozen=True, kw_only=True)
class LayerAttention:
    r"""The attention of one layer in one document of N tokens.

    Attributes:
        weights: :math:`\bar P`, ``(H, N, S)``: rows sum to 1. S is K slots; K slots and the positions of the local
            window, from the first before the token to the last behind it; or, in ordinary attention, the N tokens.
        proj_k: E as it was applied, ``(H, N, K)``: rows of this length, with the length factor; None where there is
            none (ordinary attention, and ``projection="max"``).
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
        r"""What each token takes of each other one's value, ``(N, N)``: :math:`\bar P F^\top`.

        Times the values (with their bias, before slots are made of them) it is the output of the head, but for
        a ``slot_bias``. Entries have both signs where F has, and rows then sum to anything. A local window adds its
        weights near the diagonal; in ordinary attention the map is the softmax itself.

        Raises:
            ValueError: with ``projection="max"``, which takes each channel from a token of its own.
        """
        weights = self.weights[head]
        if self.num_slots == 0:
            return weights
        if self.proj_v is None:
            raise ValueError("projection='max' has no F: a slot takes each channel from a token of its own")
        token_map = weights[:, : self.num_slots] @ self.proj_v[head].mT
        near = self.window_weights(head)
        if near is not None:
            token_map = token_map + spread_window(near)
        return token_map

    def window_weights(self, head: int) -> Tensor | None:
        """The weights of the local window, ``(N, 2 · reach + 1)``; None without one."""
        return self.weights[head, :, self.num_slots :] if self.reach else None


def spread_window(near: Tensor) -> Tensor:
    """Weights of the positions around each of N tokens, ``(N, 2r + 1)``, as ``(N, N)``."""
    length, reach = near.shape[0], near.shape[1] // 2
    row = torch.arange(length, device=near.device).unsqueeze(-1)
    column = row + torch.arange(-reach, reach + 1, device=near.device)
    inside = (column >= 0) & (column < length)
    spread = near.new_zeros(length, length)
    spread[row.expand_as(column)[inside], column[inside]] = near[inside]
    return spread


def projection_matrix(projection: SequenceProjection, length: int, like: Tensor) -> Tensor:
    r"""E as a map applies it to ``length`` real tokens: ``(length, K)``, or ``(H, length, K)`` with one a head.

    Slots are :math:`E^\top X`: the length factor of ``linear`` and ``random`` is inside, and so are the windows of
    ``conv`` and ``mean``. The map itself is asked, for the slots of the identity matrix.

    Args:
        projection: the map.
        length: tokens of the document.
        like: a tensor of the dtype and on the device to compute in.

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
    """Run a document ``(1, N)`` and return the attention of some layers, by their number from 0."""
    outputs = backbone(input_ids, output_attentions=True, use_cache=False)
    encoder = backbone.encoder
    made: dict[Any, Tensor] = {}
    found = {}
    for number in layers:
        weights = outputs.attentions[number][0]
        attention = cast(EncoderLayer, encoder.layers[number]).self_attn
        if not isinstance(attention, LinformerAttention):
            found[number] = LayerAttention(weights=weights, proj_k=None, proj_v=None, reach=0, num_slots=0)
            continue
        proj_k = attention.proj_k or encoder.shared_projection
        assert proj_k is not None
        proj_v = attention.proj_v or proj_k
        found[number] = LayerAttention(
            weights=weights,
            proj_k=_heads_of(proj_k, weights, made),
            proj_v=_heads_of(proj_v, weights, made),
            reach=(attention.window or 0) // 2,
            num_slots=proj_k.k,
        )
    return found


def _heads_of(projection: SequenceProjection, weights: Tensor, made: dict[Any, Tensor]) -> Tensor | None:
    """The matrix of every query head, ``(H, N, K)``, made once for all who share it."""
    if projection.projection == "max":
        return None
    # What owns no parameters is the same map wherever it stands.
    owner = (projection.window, projection.k) if projection.weight is None else projection
    if owner not in made:
        matrix = projection_matrix(projection, weights.shape[1], weights)
        shared = matrix.dim() == 2
        heads = weights.shape[0]
        made[owner] = matrix.expand(heads, -1, -1) if shared else repeat_heads(matrix.unsqueeze(0), heads)[0]
    return made[owner]

"""The attention of each layer in one document as matrices: context mapping, E and F, tokens to tokens."""

from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import KW_ONLY, dataclass, replace
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from torch_linformer.encoders.encoder_context import EncoderContext
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.softmax import find_exact_tokens, repeat_heads
from torch_linformer.models.backbone import LinformerModel
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.models.row_windows import Windows
from torch_linformer.nn.attention import Attention
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import Pair, SequenceMap
from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.nn.projection import SequenceProjection

COLUMNS = 512  # positions projected at a time


@dataclass(frozen=True)
class LayerAttention:
    r"""The attention of one layer in one document of N tokens.

    Attributes:
        weights: :math:`\bar P`, ``(H, N, S)``: rows sum to 1. S is K slots, then T exact tokens, then the positions of
            the local window, from the first before the token to the last after it; or, in ordinary attention, the N
            tokens.
        exact: the places of the exact tokens, ``(T,)``; those that a short document lacks have no weight.
        proj_k: E as it was applied to N tokens, ``(H, N, K)``, with the length factor; where the input chooses the
            slots, the P of this document. None without slots and with ``projection="max"``.
        proj_v: F, likewise; the same tensor where E = F.
        reach: positions of the local window on either side of a token; None without a window.
        num_slots: K; 0 in ordinary attention, and where there is only a window.
    """

    weights: Tensor
    _: KW_ONLY
    exact: Tensor
    proj_k: Tensor | None = None
    proj_v: Tensor | None = None
    reach: int | None = None
    num_slots: int = 0

    @property
    def is_ordinary(self) -> bool:
        """Whether every token attends to every token: without slots there is a window otherwise."""
        return self.num_slots == 0 and self.reach is None

    @property
    def has_token_map(self) -> bool:
        """Whether :meth:`token_map` exists."""
        return self.num_slots == 0 or self.proj_v is not None

    def in_use(self) -> "LayerAttention":
        """The same without the last slots that nothing attends to: segments that a short document does not reach."""
        attended = torch.nonzero((self.weights[..., : self.num_slots] != 0).any(dim=0).any(dim=0))
        used = int(attended.max()) + 1 if len(attended) else 0
        if used in (0, self.num_slots):
            return self
        weights = torch.cat([self.weights[..., :used], self.weights[..., self.num_slots :]], dim=-1)
        proj_k, proj_v = (None if x is None else x[..., :used] for x in (self.proj_k, self.proj_v))
        proj_v = proj_k if self.proj_v is self.proj_k else proj_v
        return replace(self, weights=weights, proj_k=proj_k, proj_v=proj_v, num_slots=used)

    def token_map(self, head: int) -> Tensor:
        r"""The weight of each token's value in the output at each token, ``(N, N)``: :math:`\bar P F^\top`.

        Times the values (with their bias, before slots are made of them) it is the output of the head, without what a
        ``slot_bias`` adds. Where F has negative entries so has the map, and its rows need not sum to 1. Exact tokens
        add their weights in their columns, a local window near the diagonal; in ordinary attention the map is the
        softmax itself.

        Raises:
            ValueError: with ``projection="max"``, which takes each channel from a token of its own.
        """
        weights, window_weights = self.weights[head], self.window_weights(head)
        if self.is_ordinary:
            return weights
        token_map = weights.new_zeros(len(weights), len(weights))
        if self.num_slots:
            if self.proj_v is None:
                raise ValueError("projection='max' has no F: a slot takes each channel from a token of its own")
            token_map = weights[:, : self.num_slots] @ self.proj_v[head].mT
        token_map.index_add_(1, self.exact, self.exact_weights(head))
        return token_map if window_weights is None else token_map + spread_window(window_weights)

    def exact_weights(self, head: int) -> Tensor:
        """The weights of the exact tokens, ``(N, T)``."""
        return self.weights[head, :, self.num_slots : self.num_slots + len(self.exact)]

    def window_weights(self, head: int) -> Tensor | None:
        """The weights of the local window, ``(N, 2 · reach + 1)``; None without one."""
        return None if self.reach is None else self.weights[head, :, self.num_slots + len(self.exact) :]


def spread_window(band: Tensor) -> Tensor:
    """Weights of the positions around each of N tokens, ``(N, 2r + 1)``, as ``(N, N)``."""
    length, reach = band.shape[0], band.shape[1] // 2
    column = (torch.arange(length).unsqueeze(-1) + torch.arange(2 * reach + 1)).to(band.device)
    return band.new_zeros(length, length + 2 * reach).scatter(1, column, band)[:, reach : reach + length]


def block_means(matrix: Tensor, block: int) -> Tensor:
    """Means over every ``block`` rows of ``(N, S)``, ``(⌈N / block⌉, S)``; the last block may have fewer rows."""
    return torch.stack([rows.mean(dim=0) for rows in torch.split(matrix, block)]) if block > 1 else matrix


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
    attentions = {number: layer.self_attn for number, layer in enumerate(backbone.encoder.each_layer())}
    inputs = dict[Attention, Tensor]()
    with ExitStack() as hooks:
        for number in layers:
            keep = attentions[number].register_forward_pre_hook(lambda read, args: inputs.update({read: args[0]}))
            hooks.enter_context(keep)
        outputs = backbone(input_ids, output_attentions=True, use_cache=False)
    found, matrices = {}, dict[object, Tensor]()
    for number in layers:
        attention, weights = attentions[number], outputs.attentions[number][0]
        x, context = inputs[attention], attention.context
        if isinstance(context, SlotContext):
            heads = attention.head_maps.heads(Pair(x, x)) if context.k else Pair(x, x)
            shared = backbone.encoder.shared_projection
            found[number] = _slots_of(context, x, (Pair(x, x), heads), weights, matrices, shared)
        else:
            none = torch.zeros(0, dtype=torch.long)
            found[number] = LayerAttention(weights.cpu(), exact=none)
    return found


def _slots_of(
    context: SlotContext,
    like: Tensor,
    read: tuple[Pair, Pair],
    weights: Tensor,
    matrices: dict[object, Tensor],
    shared: SequenceMap | None = None,
) -> LayerAttention:
    """What a context did that had ``weights`` ``(H, N, S)`` in a document; ``like`` is a sequence ``(1, N, ·)`` of it.

    ``read`` are the inputs and the heads of its keys and values. Matrices that no input changes are made once for all
    layers, in ``matrices``; ``shared`` is the map of a context without its own.
    """
    heads, length = weights.shape[:2]

    def of_heads(matrix: Tensor) -> Tensor:
        """``(H, N, K)``: one of a head of keys repeated for its query heads; one for all heads is not copied."""
        return matrix.expand(heads, -1, -1) if len(matrix) == 1 else repeat_heads(matrix.unsqueeze(0), heads)[0]

    def matrix_of(projection: SequenceMap, scored: Tensor) -> Tensor | None:
        if isinstance(projection, DynamicProjection):
            return of_heads(projection.matrix(scored)[0].to(weights).cpu())
        if projection.projection == "max":
            return None
        # A map without parameters is the same in every layer.
        owner = (projection.window, projection.k) if projection.weight is None else projection
        if owner not in matrices:
            matrix = projection_matrix(projection, length, weights).cpu()
            matrices[owner] = of_heads(matrix if matrix.dim() == 3 else matrix.unsqueeze(0))
        return matrices[owner]

    proj_k = proj_v = None
    if context.k:
        maps = context.maps(shared)
        scored = maps.scored(*read)
        proj_k = matrix_of(maps.key, scored.key)
        proj_v = proj_k if maps.is_one else matrix_of(maps.value, scored.value)
    return LayerAttention(
        weights.cpu(),
        proj_k=proj_k,
        proj_v=proj_v,
        exact=find_exact_tokens(like, None, context.exact_first, context.exact_last).positions[0].cpu(),
        reach=None if context.window is None else context.window // 2,
        num_slots=context.k,
    )


@torch.no_grad()
def attention_of_encoder(
    encoder: PreTrainedModel, input_ids: Tensor, layers: Iterable[int]
) -> dict[int, LayerAttention]:
    """Run a document ``(1, N)`` and return the attention of some layers by their number from 0, on the CPU.

    Layers are numbered as they run: one attention may be that of several. All read the document by slots, also where it
    is so short that they would read it exactly.
    """
    chosen, running, seen = set(layers), count(), dict[int, LayerAttention]()
    numbers: list[int] = []  # of the layers that have begun
    matrices: dict[object, Tensor] = {}

    def ask_for_weights(context: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        numbers.append(next(running))
        if numbers[-1] not in chosen:
            return None
        return args, {**kwargs, "call": kwargs["call"]._replace(need_weights=True)}

    def look(context: nn.Module, args: Any, kwargs: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
        if numbers[-1] in chosen:
            heads = Pair(args[1], args[2])
            like = heads.key[:, 0]  # its order of tokens is that of all heads
            seen[numbers[-1]] = _slots_of(cast(EncoderContext, context), like, (heads, heads), output[1][0], matrices)

    with ExitStack() as stack:
        for context in cast(nn.Module, encoder).modules():
            if isinstance(context, EncoderContext):
                stack.callback(setattr, context, "exact_below", context.exact_below)
                context.exact_below = 0
                stack.enter_context(context.register_forward_pre_hook(ask_for_weights, with_kwargs=True))
                stack.enter_context(context.register_forward_hook(look, with_kwargs=True))
        cast(Any, encoder)(input_ids=input_ids)
    return seen


@torch.no_grad()
def attention_of_windows(
    backbone: EncoderBackbone, input_ids: Tensor, layers: Iterable[int]
) -> dict[int, LayerAttention]:
    """The attention of an encoder that reads one document, ``(1, N)``, in windows: a band, as no token sees further.

    The special tokens that stand in every window are exact tokens; their own rows are those of the first window, and of
    the last one.
    """
    config, body = backbone.config, backbone.body
    window, first, last, length = config.read_window, config.exact_first, config.exact_last, input_ids.shape[1]
    assert window is not None
    windows = Windows.of(Padding(torch.zeros_like(input_ids, dtype=torch.bool), in_order=True), window, first, last)
    usual = body.config._attn_implementation
    body.set_attn_implementation("eager")  # the one that tells
    try:
        told = body(
            input_ids=windows.cut(input_ids), attention_mask=windows.real.long(), output_attentions=True
        ).attentions
    finally:
        body.set_attn_implementation(usual)
    place, tokens = windows.place[0], torch.arange(length, device=input_ids.device)
    exact = tokens[(tokens < first) | (tokens >= length - last)]
    columns = windows.source[place // window]  # the token of each column of a token's window
    is_exact = (columns < first) | (columns >= length - last)
    number = torch.searchsorted(exact, columns)
    index = torch.where(is_exact, number, len(exact) + window - 1 + columns - tokens.unsqueeze(1))
    width = len(exact) + 2 * window - 1
    seen = windows.real[place // window] & (index >= 0) & (index < width)
    found = {}
    for layer in layers:
        rows = told[layer].transpose(0, 1).flatten(1, 2)[:, place].float()  # (H, N, n)
        weights = rows.new_zeros(rows.shape[0], length, width)
        weights.scatter_add_(2, index.clamp(0, width - 1).expand_as(rows), rows * seen)
        found[layer] = LayerAttention(weights.cpu(), exact=exact.cpu(), reach=window - 1)
    return found

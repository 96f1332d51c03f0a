"""Causal attention of many positions, in chunks that are worked on side by side."""

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.causal_state import CausalState
from torch_linformer.functional.running_means import Clock, RunningMeans, SlotWeights
from torch_linformer.functional.window import join_weights, local_blocks, local_mask


class Segment:
    """Positions whose chunks are worked on side by side.

    Args:
        query: scaled, ``(B, H, N, D)``.
        key: zeros at padding, as ``value``.
        value: likewise.
        padding: bool ``(B, N)`` or None.
        state: what came before.
        window: w or None.
        chunk: positions in a chunk.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        padding: Tensor | None,
        state: CausalState,
        window: int | None,
        chunk: int,
    ) -> None:
        self.state, self.window, self.chunk = state, window, chunk
        self.length, self.before = query.shape[2], (window or 1) - 1
        ones = torch.ones(1, self.length, dtype=torch.bool, device=query.device)
        self.real = ones if padding is None else ~padding
        self.has_padding = padding is not None
        # With the tokens that the first windows reach back to.
        self.keys = torch.cat([state.recent_keys.to(key.dtype), key], dim=2)
        self.values = torch.cat([state.recent_values.to(value.dtype), value], dim=2)
        self.queries = self._chunks(query, 2)

    def attend(
        self,
        proj: tuple[SlotWeights, SlotWeights] | None,
        score_bias: Tensor | None,
        dropout_p: float,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None, CausalState]:
        """Output, softmax (slots first, then the window) if it is wanted, and the state behind the segment."""
        keys, values = (local_blocks(self._fill(x, 2), self.chunk, self.before) for x in (self.keys, self.values))
        products = self.queries @ keys.mT
        means = None if proj is None else self._means(proj, keys, values)
        scores = []
        if means is not None:
            of_slots = means[0].products(self.queries, products[..., self.before :])
            if score_bias is not None:
                bias = score_bias if score_bias.dim() == 1 else score_bias[:, None, None]
                of_slots = of_slots + bias.to(of_slots.dtype)
            scores.append(of_slots)
        if self.window is not None:
            scores.append(products.masked_fill(~self._visible(), float("-inf")))
        softmax = torch.softmax(torch.cat(scores, dim=-1), dim=-1)
        kept = F.dropout(softmax, dropout_p) if dropout_p > 0 else softmax
        num_slots = self.state.mass_k.shape[-1]
        outputs = []
        if means is not None:
            outputs.append(means[1].mix(kept[..., :num_slots]))
        if self.window is not None:
            outputs.append(kept[..., num_slots:] @ values)
        output = sum(outputs[1:], start=outputs[0])
        weights = None
        if need_weights:
            weights = softmax.flatten(2, 3) if self.window is None else join_weights(softmax, num_slots, self.before, 0)
            weights = weights[:, :, : self.length]
        return output.flatten(2, 3)[:, :, : self.length], weights, self._state_behind(means)

    def _means(
        self, proj: tuple[SlotWeights, SlotWeights], keys: Tensor, values: Tensor
    ) -> tuple[RunningMeans, RunningMeans]:
        clock = Clock(self._chunks(self.real, 1), self.state.keys.dtype)
        sums = ((self.state.keys, self.state.mass_k), (self.state.values, self.state.mass_v))
        of_keys, of_values = (
            RunningMeans(clock, self._chunks_of_weights(each), blocks[..., self.before :, :], *before)
            for each, blocks, before in zip(proj, (keys, values), sums, strict=True)
        )
        return of_keys, of_values

    def _visible(self) -> Tensor:
        """Bool ``(B or 1, 1, n, c, span)``: the real tokens of each window, and at padding the position itself."""
        recent = torch.arange(self.before, 0, -1, device=self.real.device) <= self.state.tokens.unsqueeze(-1)
        real = torch.cat([recent, self.real.expand(recent.shape[0], -1)], dim=1)
        real = local_blocks(self._fill(real, 1).unsqueeze(-1), self.chunk, self.before).squeeze(-1)
        near = local_mask(self.chunk, self.before, 0, self.real.device)
        itself = torch.ones_like(near).tril(self.before) & torch.ones_like(near).triu(self.before)
        return ((real.unsqueeze(-2) & near) | itself).unsqueeze(1)

    def _state_behind(self, means: tuple[RunningMeans, RunningMeans] | None) -> CausalState:
        tokens = self.state.tokens + self.real.sum(dim=-1)
        recent_keys, recent_values = self._recent(self.keys), self._recent(self.values)
        # Copies: a view would keep the memory of the whole segment.
        state = replace(self.state, tokens=tokens, recent_keys=recent_keys.clone(), recent_values=recent_values.clone())
        if means is None:
            return state
        of_keys, of_values = means
        return replace(
            state,
            keys=of_keys.sums.clone(),
            mass_k=of_keys.mass_behind.clone(),
            values=of_values.sums.clone(),
            mass_v=of_values.mass_behind.clone(),
        )

    def _recent(self, sequence: Tensor) -> Tensor:
        """The last w − 1 real tokens of recent and own ones, ``(B, H, w − 1, D)``."""
        if not self.has_padding:
            return sequence[:, :, sequence.shape[2] - self.before :]
        # Recent tokens that there were not come first and stay first, whatever they are called here.
        own = self.real.flip(-1).cumsum(dim=-1).flip(-1)
        count = F.pad(own, (self.before, 0))
        recent = torch.arange(self.before, 0, -1, device=own.device)
        count[:, : self.before] = own[:, :1] + recent if self.length else recent
        real = F.pad(self.real, (self.before, 0), value=True)
        target = torch.where(real & (count <= self.before), self.before - count, self.before)
        last = sequence.new_zeros(*sequence.shape[:2], self.before + 1, sequence.shape[-1])
        last = last.scatter(2, target[:, None, :, None].expand_as(sequence), sequence)
        return last[:, :, : self.before]

    def _fill(self, x: Tensor, dim: int) -> Tensor:
        """``x`` up to whole chunks along ``dim``, one at least, with zeros (False)."""
        behind = [0, 0] * (x.dim() - dim - 1)
        return F.pad(x, (*behind, 0, -self.length % self.chunk if self.length else self.chunk))

    def _chunks(self, x: Tensor, dim: int) -> Tensor:
        return self._fill(x, dim).reshape(*x.shape[:dim], -1, self.chunk, *x.shape[dim + 1 :])

    def _chunks_of_weights(self, proj: SlotWeights) -> SlotWeights:
        if proj.weights is None:
            return proj
        return SlotWeights(proj.decay, self._chunks(proj.weights, proj.weights.dim() - 2))

"""A transformer layer: residual branches, each an attention or the feed-forward, whatever their number."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding, mask_of, reorder, zero_padding
from torch_linformer.functional.pytorch import runs_in_chunks
from torch_linformer.nn.attention.attention import Attention
from torch_linformer.nn.attention.keys_and_values import Past
from torch_linformer.nn.attention.slot_maps import SequenceMap, resize_maps
from torch_linformer.nn.chunks import Gathered, check_chunk_size, chunk_padding, cut, map_chunks, must_be_called
from torch_linformer.nn.linear import Activation, resolve_activation, run_activated, run_linear
from torch_linformer.nn.padding import KeyPaddingMask, read_padding

Attend = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class TransformerLayer(nn.Module):
    """Attentions and a feed-forward, each with dropout, a residual connection and a layer norm.

    Parameters are named as in the layers of ``torch.nn``: ``norm1`` and ``dropout1`` belong to the first branch.

    Args:
        attentions: by their names, in the order of their branches; the first is the self-attention ``self_attn``.
        dim_feedforward: width of the feed-forward, the last branch.
        dropout: after each branch and inside the feed-forward.
        activation: ``relu``, ``gelu``, ``silu`` or a callable.
        layer_norm_eps: of the norms.
        norm_first: norms before the branches (pre-norm) instead of after.
        bias: on linear maps and norms.
        gated: feed-forward ``W₂ (φ(W₁ x) ⊙ W_g x)``.
        chunk_size: positions worked on at once, None for all.
    """

    self_attn: Attention

    def __init__(
        self,
        attentions: Mapping[str, Attention],
        dim_feedforward: int = 2048,
        dropout: float = 0.1,
        activation: str | Activation = "relu",
        layer_norm_eps: float = 1e-5,
        norm_first: bool = False,
        bias: bool = True,
        *,
        gated: bool = False,
        chunk_size: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        check_chunk_size(chunk_size)
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        d_model = attentions["self_attn"].embed_dim
        self.self_attn = attentions["self_attn"]
        # The order of parameters is that of saved optimizer states: it must stay.
        self.linear1 = nn.Linear(d_model, dim_feedforward, **factory)
        self.linear_gate = nn.Linear(d_model, dim_feedforward, **factory) if gated else None
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(dim_feedforward, d_model, **factory)
        for name, attention in attentions.items():
            self.add_module(name, attention)
        self.num_branches = len(attentions) + 1
        for number in range(1, self.num_branches + 1):
            self.add_module(f"norm{number}", nn.LayerNorm(d_model, eps=layer_norm_eps, **factory))
        for number in range(1, self.num_branches + 1):
            self.add_module(f"dropout{number}", nn.Dropout(dropout))
        self.activation = resolve_activation(activation)
        self.norm_first, self.chunk_size = norm_first, chunk_size

    def reset_parameters(self) -> None:
        for module in self.children():
            if isinstance(module, Attention | nn.Linear | nn.LayerNorm):
                module.reset_parameters()

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`LinformerAttention.resize_max_len`."""
        resize_maps(self, max_len, mode)

    def norm(self, branch: int) -> nn.LayerNorm:
        """The norm of a branch, counted from 1."""
        norm: nn.LayerNorm = getattr(self, f"norm{branch}")
        return norm

    def drop(self, branch: int, added: Tensor) -> Tensor:
        """The dropout of a branch."""
        dropped: Tensor = getattr(self, f"dropout{branch}")(added)
        return dropped

    def run(self, x: Tensor, attends: Sequence[Attend]) -> Tensor:
        """Every branch after the other; ``attends`` are the attentions, given what they attend to.

        With ``norm_first`` a branch adds ``dropout(f(norm(x)))``; without, it is ``norm(x + dropout(f(x)))``.
        """
        for branch, attend in enumerate(attends, 1):
            norm = self.norm(branch)
            added, _ = attend(norm(x) if self.norm_first else x)
            x = x + self.drop(branch, added)
            x = x if self.norm_first else norm(x)
        x = x + map_chunks(self.feed_forward, self, x, self.chunk_size, self.sequence_dim(x))
        return x if self.norm_first else self.norm(self.num_branches)(x)

    def feed_forward(self, x: Tensor) -> Tensor:
        """What the last branch adds, its norm included if that comes first."""
        x = self.norm(self.num_branches)(x) if self.norm_first else x
        hidden = run_activated(self.activation, self.linear1, x)
        if self.linear_gate is not None:
            hidden = hidden * run_linear(self.linear_gate, x)
        return self.drop(self.num_branches, run_linear(self.linear2, self.dropout(hidden)))

    def run_in_chunks(
        self,
        streams: Sequence[Tensor],
        padding: Padding | None,
        run: Callable[..., Sequence[Tensor]],
        shared_projection: SequenceMap | None = None,
        past: Past | None = None,
        overwrite: bool = False,
    ) -> list[Tensor]:
        """What ``run`` makes of the streams, chunk by chunk: the streams after the layer first.

        One pass over the last stream makes the slots that its chunks attend to; a causal layer needs no such pass: what
        it has read is its past. ``run`` is given the self-attention and the streams of a chunk. With ``overwrite`` the
        results may take the place of the streams.
        """
        if padding is not None and padding.is_piece:
            raise ValueError("a piece of the rows is not read in chunks: leave chunk_size out here")
        attention, size = self.self_attn, self.chunk_size
        sequences = [attention.to_batch_first(x) for x in streams]
        length, trailing = sequences[0].shape[1], None
        if padding is not None:  # real tokens first; what is moved is nobody else's, and may be written over
            sequences = [reorder(x, padding.order, dim=1) for x in sequences]
            overwrite, trailing = overwrite or not padding.in_order, padding.justified
        if attention.causal:
            attend = partial(attention, past=Past() if past is None else past)
        else:
            norm = self.norm(1) if self.norm_first else None
            context = attention.compress_chunks(sequences[-1], trailing, size, norm, shared_projection)
            attend = partial(attention, key=context, past=past)
        outputs = [Gathered(length, 1, x if overwrite else None) for x in sequences]
        for chunk in cut(length, size):
            mask = chunk_padding(trailing, chunk)
            parts = [zero_padding(x[:, chunk], mask_of(mask)) for x in sequences]
            place: dict[str, Any] = {"key_padding_mask": mask} if attention.causal else {"start": chunk.start}
            results = run(partial(attend, **place), *(attention.from_batch_first(x, unbatched=False) for x in parts))
            outputs += [Gathered(length, 1) for _ in results[len(outputs) :]]
            for output, result in zip(outputs, results, strict=True):
                output.write(chunk, attention.to_batch_first(result))
        whole = (x.sequence() if padding is None else padding.restore(x.sequence()) for x in outputs)
        return [attention.from_batch_first(x, unbatched=streams[0].dim() == 2) for x in whole]

    def read_padding(self, x: Tensor, key_padding_mask: KeyPaddingMask) -> Padding | None:
        """The padding of ``x`` as the self-attention needs it, read once for all that the layer does."""
        ordered = self.self_attn.context.is_ordered
        return read_padding(key_padding_mask, self.self_attn.to_batch_first(x), ordered=ordered)

    def clean(self, x: Tensor, padding: Padding | None) -> Tensor:
        """Zeros at padding: NaN there would reach the norms' gradients through the residual connection."""
        if padding is None:
            return x
        return self.self_attn.from_batch_first(padding.clean(self.self_attn.to_batch_first(x)), x.dim() == 2)

    def sequence_dim(self, x: Tensor) -> int:
        """The dimension of ``x`` along which the sequence runs."""
        return 1 if self.self_attn.batch_first and x.dim() == 3 else 0


class SelfAttentionLayer(TransformerLayer):
    """Self-attention and feed-forward: the two branches of an encoder layer, however they are coupled.

    Takes any attention of this package, then the arguments of :class:`TransformerLayer`; parameters are named as in
    ``torch.nn.TransformerEncoderLayer``.
    """

    def __init__(self, self_attn: Attention, *layout: Any, **options: Any) -> None:
        super().__init__({"self_attn": self_attn}, *layout, **options)

    def can_chunk(self, padding: Padding | None, src_mask: Tensor | None, is_causal: bool, need_weights: bool) -> bool:
        """Whether a call with these arguments runs in chunks; a mask that is to be refused goes to the attention.

        Of a piece of the rows, which is short already, only the feed-forward does; so where the attention must be
        called to have its parameters.
        """
        refused = not self.self_attn.causal if is_causal else src_mask is not None
        whole = padding is None or not padding.is_piece
        in_chunks = self.self_attn.causal or not must_be_called(self.self_attn)
        return runs_in_chunks(self.chunk_size) and whole and in_chunks and not need_weights and not refused

    def attend_with(
        self,
        padding: Padding | None,
        src_mask: Tensor | None,
        is_causal: bool,
        shared_projection: SequenceMap | None,
        need_weights: bool,
        past: Past | None,
    ) -> Attend:
        """The self-attention with these arguments."""
        return partial(
            self.self_attn,
            key_padding_mask=padding,
            need_weights=need_weights,
            attn_mask=src_mask,
            average_attn_weights=False,
            is_causal=is_causal,
            shared_projection=shared_projection,
            past=past,
        )

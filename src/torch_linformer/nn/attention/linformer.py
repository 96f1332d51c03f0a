"""The two attentions of this package, called as ``torch.nn.MultiheadAttention``: Linformer's, and its ordinary twin."""

from typing import Any, Unpack

import torch

from torch_linformer.nn.attention.attention import Attention
from torch_linformer.nn.attention.causal_context import CausalFullContext, CausalSlotContext
from torch_linformer.nn.attention.context import Context, FullContext, head_sizes
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.options import AttentionConfig, AttentionOptions, default_k

CONTEXTS: dict[str, dict[bool, type[Context]]] = {
    "linformer": {False: SlotContext, True: CausalSlotContext},
    "full": {False: FullContext, True: CausalFullContext},
}
"""The context that each kind of attention has, not causal and causal."""


class LinformerAttention(Attention):
    r"""Multi-head attention over K slots instead of M positions: O(N·K) time and memory.

    Called as :class:`torch.nn.MultiheadAttention`, with three other defaults: ``batch_first=True``, so inputs are
    ``(B, N, C)``; ``need_weights=False``; and ``key`` is ``query``, ``value`` is ``key`` where they are left out.

    .. math::
        \bar K = s E^\top (m \odot (X W_k + b_k)), \quad \bar V = s F^\top (m \odot (X W_v + b_v)), \quad
        \mathrm{out} = \mathrm{softmax}(Q \bar K^\top / \sqrt D)\, \bar V

    Padding is exact, wherever it stands: a padded batch gives each row's real tokens what the row by itself would give,
    and whatever stands at padding, NaN included, changes nothing. Row i of E belongs to the i-th real token.

    Where the heads share a linear map, :math:`E^\top (X W + b) = (E^\top X) W + (E^\top 1) b` lets the sequence be
    compressed before the channels are mixed; the order with fewer multiplications is taken.

    Args:
        embed_dim: model width C.
        num_heads: heads H.
        max_len: longest key sequence M, in tokens.
        k: slots K, 1 to ``max_len``, min(256, max_len / 4) by default; 0 with a ``window``, for no slots.
        dropout: on the attention weights, in training.
        bias: on the four linear maps.
        kdim: width of ``key``, C by default.
        vdim: width of ``value``, C by default.
        batch_first: inputs are ``(B, N, C)``; False for ``(N, B, C)``.
        options: :class:`~torch_linformer.nn.options.AttentionConfig`: ``num_kv_heads``, ``head_dim``, ``projection``,
            ``sharing`` (not ``layerwise``, which spans layers), ``length_scaling``, ``causal``, ``window``,
            ``rotary_dim``, ``slot_bias``, ``slot_mass``, ``exact_first``, ``exact_last``.

    Raises:
        ValueError: for arguments out of range, for an option that this attention would not use, and for
            ``sharing="layerwise"``.

    Source: arXiv 2006.04768, section 4.

    Example:
        >>> import torch
        >>> from torch_linformer.nn import LinformerAttention
        >>> attention = LinformerAttention(embed_dim=64, num_heads=4, max_len=4096, k=128)
        >>> texts = torch.randn(2, 1000, 64)
        >>> padding = torch.arange(1000) >= torch.tensor([[1000], [600]])  # the second text has 600 tokens
        >>> output, _ = attention(texts, key_padding_mask=padding)
        >>> alone, _ = attention(texts[1:, :600])
        >>> torch.allclose(output[1:, :600], alone, atol=1e-5)
        True
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_len: int,
        k: int | None = None,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[AttentionOptions],
    ) -> None:
        config = AttentionConfig.of(self, options)
        k = default_k(max_len) if k is None else k
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        sizes = head_sizes(embed_dim, num_heads, config, kdim, vdim)
        context = CONTEXTS["linformer"][config.causal](sizes, config, max_len, k, **factory)
        super().__init__(embed_dim, context, dropout=dropout, bias=bias, batch_first=batch_first, **factory)


class FullAttention(Attention):
    """Ordinary multi-head attention, O(N·M), with the parameters and the contracts of :class:`LinformerAttention`.

    It is the twin that comparisons need. The arguments mean what they mean there; of the options it has
    ``num_kv_heads``, ``head_dim``, ``causal`` and, when causal, ``rotary_dim``.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Unpack[AttentionOptions],
    ) -> None:
        config = AttentionConfig.of(self, options)
        context = CONTEXTS["full"][config.causal](head_sizes(embed_dim, num_heads, config, kdim, vdim), config)
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(embed_dim, context, dropout=dropout, bias=bias, batch_first=batch_first, **factory)

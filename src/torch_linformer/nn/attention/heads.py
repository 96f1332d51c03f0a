"""The heads of attention: their linear maps, the layout of inputs, and the state dict, whatever is attended to."""

from typing import Any

import torch
from torch import Tensor, nn

from torch_linformer.nn.options import DEFAULTS, AttentionOptions


class Heads(nn.Module):
    """Queries, keys, values and output of ``num_heads`` heads, named and called as in ``torch.nn``.

    Args:
        embed_dim: model width C.
        num_heads: heads H.
        options: of which ``num_kv_heads``, ``head_dim`` and ``rotary_dim`` are read here.
        dropout: on the attention weights, in training.
        bias: on the four linear maps.
        kdim: width of ``key``, C by default.
        vdim: width of ``value``, C by default.
        batch_first: inputs are ``(B, N, C)``; False for ``(N, B, C)``.

    Raises:
        ValueError: for heads that do not fit.
    """

    # torch.nn.TransformerEncoderLayer asks its attention for this before it computes ordinary attention by a kernel of
    # its own, in inference: None tells it to call the attention that it was given.
    in_proj_bias = None
    _qkv_same_embed_dim = False

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        options: AttentionOptions = DEFAULTS,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        head_dim = options["head_dim"]
        num_kv_heads = num_heads if options["num_kv_heads"] is None else options["num_kv_heads"]
        check_sizes(embed_dim, num_heads, num_kv_heads, head_dim, options["rotary_dim"])
        self.embed_dim, self.num_heads, self.num_kv_heads = embed_dim, num_heads, num_kv_heads
        self.head_dim = embed_dim // num_heads if head_dim is None else head_dim
        self.dropout, self.batch_first = dropout, batch_first
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        width, kv_width = num_heads * self.head_dim, num_kv_heads * self.head_dim
        self.q_proj = nn.Linear(embed_dim, width, bias, **factory)
        self.k_proj = nn.Linear(embed_dim if kdim is None else kdim, kv_width, bias, **factory)
        self.v_proj = nn.Linear(embed_dim if vdim is None else vdim, kv_width, bias, **factory)
        self.out_proj = nn.Linear(width, embed_dim, bias, **factory)
        Heads.reset_parameters(self)  # a subclass has no maps yet

    def reset_parameters(self) -> None:
        for linear in (self.q_proj, self.k_proj, self.v_proj, self.out_proj):
            nn.init.xavier_uniform_(linear.weight)
            if linear.bias is not None:
                nn.init.zeros_(linear.bias)

    @property
    def dropout_p(self) -> float:
        """Probability of dropping an attention weight now."""
        return self.dropout if self.training else 0.0

    def split_heads(self, x: Tensor, heads: int) -> Tensor:
        """``(B, N, H · D)`` to ``(B, H, N, D)``."""
        return x.view(*x.shape[:-1], heads, self.head_dim).transpose(1, 2)

    def to_batch_first(self, x: Tensor) -> Tensor:
        """``(B, N, C)``, whichever way ``x`` came."""
        if x.dim() == 2:
            return x.unsqueeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def from_batch_first(self, x: Tensor, unbatched: bool) -> Tensor:
        """``(B, N, C)`` in the layout of this module's inputs."""
        if unbatched:
            return x.squeeze(0)
        return x if self.batch_first else x.transpose(0, 1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any, **kwargs: Any) -> None:
        """Accept the parameters of ``torch.nn.MultiheadAttention``, packed or (kdim, vdim) separate."""
        names = ("q_proj", "k_proj", "v_proj")
        for kind in ("weight", "bias"):
            packed = state_dict.pop(f"{prefix}in_proj_{kind}", None)
            parts = (None, None, None) if packed is None else packed.chunk(3)
            for name, part in zip(names, parts, strict=True):
                part = state_dict.pop(f"{prefix}{name}_{kind}", part)
                if part is not None:
                    state_dict[f"{prefix}{name}.{kind}"] = part
        super()._load_from_state_dict(state_dict, prefix, *args, **kwargs)


def check_sizes(embed_dim: int, num_heads: int, num_kv_heads: int, head_dim: int | None, rotary_dim: int) -> None:
    """Raise ``ValueError`` for heads that do not fit the model's width or each other."""
    if num_heads < 1 or num_kv_heads < 1:
        raise ValueError(f"num_heads and num_kv_heads must be at least 1, got {num_heads} and {num_kv_heads}")
    if head_dim is None and embed_dim % num_heads:
        raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}; give head_dim")
    if num_heads % num_kv_heads:
        raise ValueError(f"num_heads {num_heads} is not a multiple of num_kv_heads {num_kv_heads}")
    width = embed_dim // num_heads if head_dim is None else head_dim
    if rotary_dim % 2 or not 0 <= rotary_dim <= width:
        raise ValueError(f"rotary_dim must be even and lie between 0 and head_dim = {width}, got {rotary_dim}")

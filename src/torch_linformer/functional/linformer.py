"""Linformer attention with dense E and F, as the paper has it."""

from torch import Tensor

from torch_linformer.functional.attention.operation import attend
from torch_linformer.functional.attention.softmax_parts import Slots, check_heads
from torch_linformer.functional.kernels.implementations import Name, check_implementation
from torch_linformer.functional.padding import justify
from torch_linformer.functional.slots.dense import check_dense, compress


def linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    proj_k: Tensor,
    proj_v: Tensor,
    *,
    key_padding_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    scale: float | None = None,
    length_scaling: bool = True,
    impl: Name = "auto",
) -> Tensor:
    r"""Attention of N queries over M positions compressed into K slots.

    .. math::
        \bar K = s E^\top (m \odot K), \quad \bar V = s F^\top (m \odot V), \quad
        \mathrm{out} = \mathrm{softmax}(Q \bar K^\top / \sqrt D)\, \bar V

    where m is 0 at padding and s is the length factor of :func:`project_sequence`. Time and memory are
    O(N·K + M·K) instead of O(N·M).

    Args:
        query: ``(B, H, N, D)``.
        key: ``(B, H, M, D)``; fewer heads than the query's (multi-query), dividing H, are allowed.
        value: ``(B, H, M, Dv)``, with the key's number of heads.
        proj_k: E, ``(max_len, K)`` or one matrix a key/value head, ``(H, max_len, K)``.
        proj_v: F, likewise.
        key_padding_mask: bool ``(B, M)``, True at padding.
        dropout_p: probability of dropping an attention weight; as in SDPA it applies whenever it is above 0.
        scale: factor on the scores, ``1 / sqrt(D)`` by default.
        length_scaling: False leaves s out.
        impl: ``"auto"``, ``"torch"`` or ``"onednn"``: see :func:`use_implementation`.

    Returns:
        ``(B, H, N, Dv)``.

    Raises:
        ValueError: if shapes do not fit, M exceeds ``max_len``, or ``impl`` cannot compute it.

    Source: arXiv 2006.04768, equation 7.

    Example:
        >>> import torch
        >>> from torch_linformer.functional import linformer_attention
        >>> sequence = torch.randn(2, 4, 3000, 16)  # (B, H, N, D)
        >>> proj = torch.randn(4096, 64) / 64  # E = F, for up to 4,096 positions, with variance 1 / max_len
        >>> linformer_attention(sequence, sequence, sequence, proj, proj).shape
        torch.Size([2, 4, 3000, 16])
    """
    _check_inputs(query, key, value)
    for sequence, proj in ((key, proj_k), (value, proj_v)):
        check_dense(sequence, proj, key_padding_mask)
    check_implementation(impl)
    (key, value), padding = justify(key_padding_mask, key, value)
    slots_k = compress(key, proj_k, padding, length_scaling, impl=impl)
    slots_v = compress(value, proj_v, padding, length_scaling, impl=impl)
    return attend(query, Slots(slots_k, slots_v), dropout_p=dropout_p, scale=scale, impl=impl)[0]


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    shapes = [tuple(x.shape) for x in (query, key, value)]
    fits = query.dim() == key.dim() == value.dim() == 4 and shapes[1][:3] == shapes[2][:3]
    if not fits or (shapes[0][0], shapes[0][3]) != (shapes[1][0], shapes[1][3]):
        raise ValueError(
            f"query, key and value must be (B, H, N, D), (B, H, M, D) and (B, H, M, Dv), got {shapes[0]}, {shapes[1]} "
            f"and {shapes[2]}"
        )
    check_heads(query.shape[1], key.shape[1])

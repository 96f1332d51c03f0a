"""The operator below SDPA on a CPU: it gives the logarithms of the sums of its softmax, and has no gradient here."""

import torch
from torch import Tensor, nn

from torch_linformer.functional.torch_state import is_watched


def can_flash(*tensors: Tensor) -> bool:
    """Whether these are plain tensors on a CPU, and nobody counts operations."""
    return not is_watched() and all(type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" for x in tensors)


def flash(query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, scale: float) -> tuple[Tensor, Tensor]:
    """Softmax attention ``(B, H, N, D)``, whose keys and values are of one width, and the logarithms ``(B, H, N)``.

    The mask is added to the scores, and broadcast; it has the type of the query, or float32.
    """
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    # It reads rows of channels, which SDPA sees to and the operator does not.
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    output, log_sums = operator(query, key, value, attn_mask=mask, scale=scale)
    return output, log_sums

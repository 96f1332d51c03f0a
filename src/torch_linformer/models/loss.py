"""Cross-entropy of tokens."""

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.padding import Padding

IGNORED = -100  # a label that the loss ignores


def token_loss(
    logits: Tensor, labels: Tensor, num_items: Tensor | int | None = None, *, rows: Tensor | Padding | None = None
) -> Tensor:
    """Cross-entropy of ``(…, classes)`` and ``(…)``, in float32: its mean over the labels that are not −100.

    With ``num_items`` the sum is divided by that instead: by the labels of a whole step of which this is a part. Where
    ``rows`` is a piece of them, sum and mean are those of whole rows.
    """
    scores, targets = logits.flatten(0, -2).float(), labels.flatten()
    if num_items is None and not isinstance(rows, Padding):
        return F.cross_entropy(scores, targets, ignore_index=IGNORED)
    total = F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
    if isinstance(rows, Padding):
        total = rows.total(total)
        num_items = rows.total((targets != IGNORED).sum()) if num_items is None else num_items
    return total / torch.as_tensor(num_items, device=total.device)

"""Cross-entropy of tokens."""

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORED = -100  # a label that the loss ignores


def token_loss(logits: Tensor, labels: Tensor, num_items: Tensor | int | None = None) -> Tensor:
    """Cross-entropy of ``(…, classes)`` and ``(…)``, in float32: its mean over the labels that are not −100.

    With ``num_items`` the sum is divided by that instead: by the labels of a whole step of which this is a part.
    """
    scores, targets = logits.flatten(0, -2).float(), labels.flatten()
    if num_items is None:
        return F.cross_entropy(scores, targets, ignore_index=IGNORED)
    total = F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
    return total / torch.as_tensor(num_items, device=total.device)

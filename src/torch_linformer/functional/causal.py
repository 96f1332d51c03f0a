"""Causal Linformer attention: every slot is a running mean, so that no query sees what comes after it.

Position i enters slot j with a positive weight, and its weight fades with every real token that follows:

.. math:: w_{tij} = e_{ij} \\, \\exp(-\\lambda_j (p_t - p_i)), \\qquad
    \\bar K_{tj} = \\frac{\\sum_{i \\le t} w_{tij} k_i}{\\sum_{i \\le t} w_{tij}}

where :math:`p_i` counts real tokens. The sums are made chunk by chunk: inside a chunk by two triangular products,
between chunks by a state of K × D numbers a head. See docs/causal.md.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.functional.projection import check_padding_mask, zero_padding
from torch_linformer.functional.window import local_blocks, local_mask

CHUNK = 64  # positions in a chunk
SEGMENT = 4096  # positions whose chunks are worked on side by side
STEEPEST = 0.5  # largest decay: in float32 the weights of a chunk must not underflow


class SlotWeights(NamedTuple):
    """How positions enter the slots: E (or F) of causal attention.

    Args:
        decay: :math:`\\lambda \\ge 0`, ``(H or 1, K)``, in nats a token.
        weights: e > 0, ``(B or 1, H or 1, N, K)``; None where every position counts the same.
    """

    decay: Tensor
    weights: Tensor | None = None

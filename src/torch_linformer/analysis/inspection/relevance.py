"""Which tokens an answer draws on: integrated gradients."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torch_linformer.models.embeddings import LinformerEmbeddings

STEPS = 16


@dataclass(frozen=True, kw_only=True)
class Relevance:
    """What each token adds to each of A scores, on the CPU.

    Attributes:
        values: ``(A, N)``: positive where the token raises the score.
        scores: the scores ``(A,)``.
        blank_scores: the scores of the same text with every word left blank, ``(A,)``. Up to the error of the numerical
            integration a row of ``values`` sums to the difference.
    """

    values: Tensor
    scores: Tensor
    blank_scores: Tensor


def integrated_gradients(
    score: Callable[[], Tensor], embeddings: LinformerEmbeddings, input_ids: Tensor, blank: Tensor, steps: int = STEPS
) -> Relevance:
    r"""Integrated gradients of A scores with respect to the embeddings of one document.

    .. math:: r_i = \sum_c (x_{ic} - x'_{ic}) \int_0^1 \frac{\partial f(x' + \alpha (x - x'))}{\partial x_{ic}} d\alpha

    x are the embeddings of the document as the first layer reads them; in x' the word embeddings of its text are zero,
    while positions, and the special tokens around the text, stay. The integral is computed by Gaussian quadrature, so
    the values of a smooth f sum to f(x) − f(x').

    Args:
        score: runs the model on ``input_ids`` and returns scores ``(A,)``.
        embeddings: those of the model, which must be in eval mode.
        input_ids: ``(1, N)``.
        blank: bool ``(1, N)``, True at the tokens of the text.
        steps: points of the quadrature, each a forward pass and A backward passes.

    Source: Sundararajan, Taly and Yan, arXiv 1703.01365, with layer normalization kept out of the path.
    """
    with torch.no_grad():
        words = embeddings.word_embeddings(input_ids)
        whole = embeddings(None, words, None, None)
        empty = embeddings(None, words.masked_fill(blank.unsqueeze(-1), 0.0), None, None)
        with _embedded_as(embeddings, whole):
            scores = score()
        with _embedded_as(embeddings, empty):
            blank_scores = score()
    difference = whole - empty
    values = whole.new_zeros(len(scores), whole.shape[1])
    places, shares = np.polynomial.legendre.leggauss(steps)
    for place, share in zip((places + 1) / 2, shares / 2, strict=True):
        point = (empty + float(place) * difference).requires_grad_()
        with torch.enable_grad(), _embedded_as(embeddings, point):
            reached = score()
            for number in range(len(scores)):
                (gradient,) = torch.autograd.grad(reached[number], point, retain_graph=number < len(scores) - 1)
                values[number] += float(share) * (gradient * difference).sum(dim=-1)[0]
    return Relevance(values=values.cpu(), scores=scores.cpu(), blank_scores=blank_scores.cpu())


def _embedded_as(embeddings: nn.Module, point: Tensor) -> RemovableHandle:
    """A context in which the embeddings return ``point``, whatever they are given."""
    return embeddings.register_forward_hook(lambda module, inputs, output: point)

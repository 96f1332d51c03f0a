"""Which tokens an answer draws on: integrated gradients, and the shares of a lexical head's features."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from torch_linformer.models.lexical_features import NOTHING
from torch_linformer.models.lexical_head import LexicalHead

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
    score: Callable[[], Tensor], embeddings: nn.Module, words: nn.Module, blank: Tensor, steps: int = STEPS
) -> Relevance:
    r"""Integrated gradients of A scores with respect to the embeddings of one document.

    .. math:: r_i = \sum_c (x_{ic} - x'_{ic}) \int_0^1 \frac{\partial f(x' + \alpha (x - x'))}{\partial x_{ic}} d\alpha

    x are the embeddings of the document as the first layer reads them; in x' the word embeddings of its text are zero,
    while positions, and the special tokens around the text, stay. The integral is computed by Gaussian quadrature, so
    the values of a smooth f sum to f(x) − f(x').

    Args:
        score: runs the model, in eval mode, on the document and returns scores ``(A,)``.
        embeddings: the module of the model that makes what its first layer reads, ``(1, N, C)``.
        words: its word embeddings; they may be all of it.
        blank: bool ``(1, N)``, True at the tokens of the text.
        steps: points of the quadrature, each a forward pass and A backward passes.

    Source: Sundararajan, Taly and Yan, arXiv 1703.01365, with layer normalization kept out of the path.
    """
    whole, scores = _read(score, embeddings)
    with words.register_forward_hook(lambda module, inputs, output: output.masked_fill(blank.unsqueeze(-1), 0.0)):
        empty, blank_scores = _read(score, embeddings)
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


@torch.no_grad()
def lexical_shares(head: LexicalHead, input_ids: Tensor) -> Tensor:
    """What each token of ``input_ids`` ``(1, N)`` adds to the logits of a lexical head, ``(num_labels, N)``.

    The occurrences of a feature share equally in what it adds, the two tokens of a pair in halves. A row sums to the
    logit without its bias.
    """
    counted_as = head.counts_as[input_ids[0]]
    places = torch.nonzero(counted_as != NOTHING)[:, 0]
    tokens = counted_as[places].unsqueeze(0)
    features, counted = head.features(tokens, torch.ones_like(tokens, dtype=torch.bool))
    occurring = torch.nonzero(counted[0])[:, 0]  # the tokens, and after them each token's pair with the next one
    found = features[0, occurring]
    accurate = torch.promote_types(head.weight.dtype, torch.float32)
    counts = torch.bincount(found, minlength=len(head.idf)).to(accurate)
    weights = nn.functional.normalize(torch.where(counts > 0, (1 + counts.log()) * head.idf, 0.0), dim=0)
    added = (weights / counts)[found].unsqueeze(-1) * head.weight[found]
    pairs = occurring >= len(places)
    added[pairs] /= 2
    second = places[occurring[pairs] - len(places) + 1]
    shares = added.new_zeros(input_ids.shape[1], added.shape[1])
    shares.index_add_(0, torch.cat([places, places])[occurring], added)
    shares.index_add_(0, second, added[pairs])
    return shares.mT.cpu()


@torch.enable_grad()  # as below: without gradients a model may read a document in chunks
def _read(score: Callable[[], Tensor], embeddings: nn.Module) -> tuple[Tensor, Tensor]:
    """What the first layer reads, and the scores."""
    outputs: list[Tensor] = []
    with embeddings.register_forward_hook(lambda module, inputs, output: outputs.append(output)):
        scores = score()
    return outputs[0].detach(), scores.detach()


def _embedded_as(embeddings: nn.Module, point: Tensor) -> RemovableHandle:
    """A context in which the embeddings return ``point``, whatever they are given."""
    return embeddings.register_forward_hook(lambda module, inputs, output: point)

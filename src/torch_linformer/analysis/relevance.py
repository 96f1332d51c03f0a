"""Which tokens and which passages of a document an answer draws on, as text that can be shown."""

import re
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from torch_linformer.models.lexical_head import KINDS, PAIR, LexicalHead
from torch_linformer.models.row_windows import Windows

STEPS = 16
MOST_PASSAGES = 5  # that are shown
MOST_TOKENS = 40  # in a passage
MOST_CHARACTERS = 160  # of a passage that are shown
_END = re.compile(r"\n|[.!?…]\s")  # of a line or of a sentence


class Piece(NamedTuple):
    """A stretch of a document, as it is shown.

    ``first`` and ``last`` are its tokens, more than one where they share a character, and −1 where it belongs to none;
    a ``special`` token stands for no text.
    """

    text: str
    first: int
    last: int
    special: bool = False


def cut_into_pieces(text: str, spans: Sequence[tuple[int, int]], tokens: Sequence[str]) -> list[Piece]:
    """Every character of ``text`` up to its last token once, and every token once, in order.

    ``spans`` are the characters of each token, from and up to, empty for special tokens, which show as in ``tokens``.
    """
    pieces: list[Piece] = []
    reached = 0
    for number, (start, end) in enumerate(spans):
        if start == end:
            pieces.append(Piece(visible(tokens[number]), number, number, special=True))
            continue
        if start > reached:
            pieces.append(Piece(visible(text[reached:start]), -1, -1))
        if start >= reached or pieces[-1].special:
            pieces.append(Piece(visible(text[max(start, reached) : end]), number, number))
        else:  # the bytes of one character
            before = pieces[-1]
            pieces[-1] = Piece(before.text + visible(text[reached:end]), before.first, number)
        reached = max(reached, end)
    return pieces


def visible(text: str) -> str:
    """``text`` with a symbol for every control character and the code of every other invisible one."""
    shown = []
    for char in text:
        category, code = unicodedata.category(char), ord(char)
        if category == "Cc" and char not in "\n\t" and code <= 0x7F:
            char = chr(0x2400 + code) if code < 0x20 else "\N{SYMBOL FOR DELETE}"
        elif code > 0x7F and category in ("Cc", "Cf", "Zl", "Zp", "Cs"):  # marks of direction would rearrange the text
            char = f"⟨U+{code:04X}⟩"
        shown.append(char)
    return "".join(shown)


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
    score: Callable[[], Tensor],
    embeddings: nn.Module,
    words: nn.Module,
    blank: Tensor,
    windows: Windows | None = None,
    steps: int = STEPS,
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
        windows: those in which the model reads the document, and then so do ``embeddings``; None for as a whole.
        steps: points of the quadrature, each a forward pass and A backward passes.

    Source: Sundararajan, Taly and Yan, arXiv 1703.01365, with layer normalization kept out of the path.
    """
    if windows is not None:
        blank = windows.cut(blank) & windows.real
    whole, scores = _read(score, embeddings)
    with words.register_forward_hook(lambda module, inputs, output: output.masked_fill(blank.unsqueeze(-1), 0.0)):
        empty, blank_scores = _read(score, embeddings)
    difference = whole - empty
    values = whole.new_zeros(*whole.shape[:2], len(scores))
    places, shares = np.polynomial.legendre.leggauss(steps)
    for place, share in zip((places + 1) / 2, shares / 2, strict=True):
        point = (empty + float(place) * difference).requires_grad_()
        with torch.enable_grad(), embeddings.register_forward_hook(lambda *_, point=point: point):
            reached = score()
            for number in range(len(scores)):
                (gradient,) = torch.autograd.grad(reached[number], point, retain_graph=number < len(scores) - 1)
                values[..., number] += float(share) * (gradient * difference).sum(dim=-1)
    values = (values if windows is None else windows.join(values))[0].mT
    return Relevance(values=values.cpu(), scores=scores.cpu(), blank_scores=blank_scores.cpu())


@torch.enable_grad()  # as above: without gradients a model may read a document in chunks
def _read(score: Callable[[], Tensor], embeddings: nn.Module) -> tuple[Tensor, Tensor]:
    """What the first layer reads, and the scores."""
    outputs: list[Tensor] = []
    with embeddings.register_forward_hook(lambda module, inputs, output: outputs.append(output)):
        scores = score()
    return outputs[0].detach(), scores.detach()


@torch.no_grad()
def lexical_shares(head: LexicalHead, input_ids: Tensor) -> Tensor:
    """What each token of ``input_ids`` ``(1, N)`` adds to the logits of a lexical head, ``(num_labels, N)``.

    The occurrences of a feature share equally in what it adds, the two words of a pair in halves, and the tokens of a
    word likewise. A row sums to the logit without its bias.
    """
    words = head.words(input_ids)
    rows, weights = head.weigh(words)
    places = head.find(words)[0]
    accurate = weights.dtype
    of_feature = torch.zeros(len(head.codes), dtype=accurate, device=weights.device).index_add_(0, rows[0], weights[0])
    occurring = torch.nonzero(places < len(head.codes))[:, 0]
    features, word = places[occurring], words.begins_in[0, occurring]
    counts = torch.bincount(features, minlength=len(head.codes)).to(accurate)
    added = (of_feature / counts.clamp(min=1))[features].unsqueeze(-1) * head.weight[features].to(accurate)
    pairs = head.codes[features] % KINDS == PAIR
    added[pairs] /= 2
    of_words = added.new_zeros(input_ids.shape[1] + 1, added.shape[1])
    of_words.index_add_(0, word, added).index_add_(0, word[pairs] + 1, added[pairs])
    number = words.of_tokens[0]
    sizes = torch.bincount(number[number >= 0], minlength=len(of_words)).to(accurate)
    shares = torch.where((number >= 0).unsqueeze(-1), (of_words / sizes.clamp(min=1).unsqueeze(-1))[number], 0.0)
    return shares.mT.cpu()


class Passage(NamedTuple):
    """Tokens ``first`` to ``last`` of a document, what they add to a score, and which of them adds or takes most."""

    first: int
    last: int
    added: float
    strongest: int


def cut_into_passages(text: str, spans: Sequence[tuple[int, int]]) -> list[range]:
    """The tokens of each sentence or line, of 40 tokens at most; special tokens, whose span is empty, are in none."""
    passages: list[range] = []
    reached = 0
    for number, (start, end) in enumerate(spans):
        if start == end:
            continue
        last = passages[-1] if passages else range(-1)
        goes_on = last.stop == number and len(last) < MOST_TOKENS
        if goes_on and not _END.search(text, reached - 1, start + 1):
            passages[-1] = range(last.start, number + 1)
        else:
            passages.append(range(number, number + 1))
        reached = end
    return passages


def ranked_passages(passages: Sequence[range], values: Tensor) -> list[Passage]:
    """The passages of the largest sums of ``values`` (N,), whatever their sign, the largest first; 0 is left out."""
    ranked = []
    for tokens in passages:
        part = values[tokens.start : tokens.stop]
        strongest = tokens.start + int(part.abs().argmax())
        ranked.append(Passage(tokens.start, tokens.stop - 1, float(part.sum()), strongest))
    ranked.sort(key=lambda passage: -abs(passage.added))
    return [passage for passage in ranked[:MOST_PASSAGES] if passage.added]


def shown_passage(text: str, spans: Sequence[tuple[int, int]], passage: Passage) -> str:
    """Its text on one line, the end of a long one left out."""
    line = visible(" ".join(text[spans[passage.first][0] : spans[passage.last][1]].split()))
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"

"""Which passages of a document an answer draws on, the strongest first."""

import re
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from torch_linformer.analysis.inspection.pieces import visible

MOST_PASSAGES = 5  # that are shown
MOST_TOKENS = 40  # in a passage
MOST_CHARACTERS = 160  # of a passage that are shown
_END = re.compile(r"\n|[.!?…]\s")  # of a line or of a sentence


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
    found = []
    for tokens in passages:
        part = values[tokens.start : tokens.stop]
        strongest = tokens.start + int(part.abs().argmax())
        found.append(Passage(tokens.start, tokens.stop - 1, float(part.sum()), strongest))
    found.sort(key=lambda passage: -abs(passage.added))
    return [passage for passage in found[:MOST_PASSAGES] if passage.added]


def shown_passage(text: str, spans: Sequence[tuple[int, int]], passage: Passage) -> str:
    """Its text on one line, the end of a long one left out."""
    line = visible(" ".join(text[spans[passage.first][0] : spans[passage.last][1]].split()))
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 1]}…"

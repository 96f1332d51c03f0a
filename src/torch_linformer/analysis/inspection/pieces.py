"""A document cut where its tokens are, as text that can be shown."""

import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

SHOWN_AS_THEY_ARE = "\n\t"


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
    return "".join(char if char in SHOWN_AS_THEY_ARE else _shown(char) for char in text)


def _shown(char: str) -> str:
    category, code = unicodedata.category(char), ord(char)
    if category == "Cc":
        return chr(0x2400 + code) if code < 0x20 else "\N{SYMBOL FOR DELETE}" if code == 0x7F else f"⟨U+{code:04X}⟩"
    if category in ("Cf", "Zl", "Zp", "Cs"):  # marks of direction, for instance, would rearrange the text around them
        return f"⟨U+{code:04X}⟩"
    return char

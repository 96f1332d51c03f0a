"""A document in pieces is the document, and nothing in it can hide or run."""

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from torch_linformer.analysis.inspection.relevance import Piece, cut_into_pieces, visible
from torch_linformer.data.tokenizer import build_tokenizer


def test_words_gaps_and_special_tokens():
    spans = [(0, 0), (1, 4), (6, 9), (0, 0)]
    assert cut_into_pieces(" wet  mud!", spans, ["<cls>", "wet", "mud", "<sep>"]) == [
        Piece("<cls>", 0, 0, special=True),
        Piece(" ", -1, -1),
        Piece("wet", 1, 1),
        Piece("  ", -1, -1),
        Piece("mud", 2, 2),
        Piece("<sep>", 3, 3, special=True),
    ]


def test_tokens_that_share_a_character_are_one_piece():
    assert cut_into_pieces("日x", [(0, 1), (0, 1), (0, 1), (1, 2)], list("abcd")) == [
        Piece("日", 0, 2),
        Piece("x", 3, 3),
    ]


def test_what_shows_nothing_is_shown():
    assert visible("a\0\x1b[31m\x7f\x85\u202e\u200b\ud800\n\tb") == "a␀␛[31m␡⟨U+0085⟩⟨U+202E⟩⟨U+200B⟩⟨U+D800⟩\n\tb"
    assert visible("naïve 日本 <b>&amp;") == "naïve 日本 <b>&amp;"


@given(st.text(max_size=60))
def test_every_character_and_every_token_is_there_once(text):
    encoding = BYTES(text, return_offsets_mapping=True, split_special_tokens=True)
    tokens = BYTES.convert_ids_to_tokens(encoding["input_ids"])
    pieces = cut_into_pieces(text, encoding["offset_mapping"], tokens)
    assert "".join(piece.text for piece in pieces if not piece.special) == visible(text)
    numbers = [number for piece in pieces if piece.first >= 0 for number in range(piece.first, piece.last + 1)]
    assert numbers == list(range(len(tokens)))


@given(st.characters())
def test_nothing_stays_that_could_rearrange_its_surroundings(char):
    assert not any(unicodedata.category(shown) in ("Cf", "Cs") for shown in visible(char))


BYTES = build_tokenizer("bytes", [], max_length=100)

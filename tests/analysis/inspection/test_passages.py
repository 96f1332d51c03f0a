"""Documents are cut at the ends of sentences and lines, and ranked by what their tokens add."""

import re

import pytest
import torch

from torch_linformer.analysis.inspection.relevance import (
    MOST_CHARACTERS,
    MOST_TOKENS,
    Passage,
    cut_into_passages,
    ranked_passages,
    shown_passage,
)


def spans_of(text):
    """A token a word or mark, between two special ones."""
    return [(0, 0), *(found.span() for found in re.finditer(r"\w+|[^\w\s]", text)), (0, 0)]


@pytest.mark.parametrize(
    ("text", "passages"),
    [
        ("Wet mud. It rains! Sun? No…  sand", ["Wet mud.", "It rains!", "Sun?", "No…", "sand"]),
        ("a = 1\nb = 2.5\n\n\nreturn a.b", ["a = 1", "b = 2.5", "return a.b"]),
        ("wet", ["wet"]),
    ],
)
def test_sentences_and_lines(text, passages):
    spans = spans_of(text)
    found = cut_into_passages(text, spans)
    assert [text[spans[each.start][0] : spans[each[-1]][1]] for each in found] == passages
    assert [token for each in found for token in each] == list(range(1, len(spans) - 1))


def test_a_long_sentence_has_several_passages():
    text = "mud " * (2 * MOST_TOKENS + 1)
    assert list(map(len, cut_into_passages(text, spans_of(text)))) == [MOST_TOKENS, MOST_TOKENS, 1]


def test_a_special_token_inside_parts_two_passages_and_is_in_none():
    assert cut_into_passages("wet mud", [(0, 3), (0, 0), (4, 7)]) == [range(0, 1), range(2, 3)]


def test_the_largest_sums_come_first_whatever_their_sign():
    values = torch.tensor([9.0, 1.0, 1.0, -5.0, 1.0, 0.0, 0.0, 0.5, 0.25])
    passages = [range(1, 3), range(3, 5), range(5, 7), range(7, 9)]
    assert ranked_passages(passages, values) == [Passage(3, 4, -4.0, 3), Passage(1, 2, 2.0, 1), Passage(7, 8, 0.75, 7)]


def test_only_the_first_five_are_kept():
    values = torch.arange(1.0, 10.0)
    found = ranked_passages([range(number, number + 1) for number in range(9)], values)
    assert [each.first for each in found] == [8, 7, 6, 5, 4]


def test_a_passage_is_shown_on_one_line_and_shortened():
    text = "wet\n  mud \x1b" + " sea" * 100
    spans = spans_of(text)
    shown = shown_passage(text, spans, Passage(1, len(spans) - 2, 1.0, 1))
    assert shown.startswith("wet mud ␛ sea") and shown.endswith("…") and len(shown) == MOST_CHARACTERS

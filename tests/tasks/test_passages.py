"""Passages of documents as queries: where they are cut, and that they can be drawn again."""

import pytest

from torch_linformer.tasks.passages import LONGEST, SHORTEST, Passages

FIRST, LAST = 1, 2
DOCUMENT = [FIRST, *range(100, 1100), LAST]


@pytest.fixture
def passages():
    return Passages(64, [FIRST, LAST], seed=3)


def test_a_passage_is_a_piece_of_its_document_between_its_special_tokens(passages):
    found = passages.of(DOCUMENT, document=5, epoch=0)
    lengths = [len(each) - 2 for each in found]
    assert len(found) == 64 and SHORTEST <= min(lengths) < 16 and 64 < max(lengths) <= LONGEST
    for each in found:
        start = each[1]
        assert each == [FIRST, *range(start, start + len(each) - 2), LAST] and start + len(each) - 2 <= 1100
    starts = [each[1] for each in found]
    assert min(starts) < 200 and max(starts) > 900


def test_what_is_drawn_depends_on_seed_epoch_and_document_only(passages):
    first = passages.of(DOCUMENT, 5, 0)
    assert Passages(64, [FIRST, LAST], 3).of(DOCUMENT, 5, 0) == first
    others = passages.of(DOCUMENT, 6, 0), passages.of(DOCUMENT, 5, 1), Passages(64, [], 4).of(DOCUMENT, 5, 0)
    assert first not in others


def test_a_short_document_has_short_passages_or_none(passages):
    assert {len(each) for each in passages.of([*range(100, 116)], 0, 0)} == {SHORTEST}
    assert passages.of([FIRST, *range(100, 115), LAST], 0, 0) == []
    assert passages.of([FIRST, LAST], 0, 0) == passages.of([], 0, 0) == []
    assert Passages(0, [], 0).of(DOCUMENT, 0, 0) == []

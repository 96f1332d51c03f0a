"""The teacher reads what the original reads, and longer texts window by window."""

import copy

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.adaptation.distillation import Teacher


@pytest.fixture(scope="module")
def teacher(small_bert):
    return Teacher(copy.deepcopy(small_bert), 10, 1, 1)


def original(bert, ids, mask):
    with torch.no_grad():
        return bert(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states[1:]


def test_texts_that_it_reads_at_once(teacher, small_bert, rows):
    ids, mask = rows(10, 4)
    real = mask.bool()
    for ours, theirs in zip(teacher.hidden_states(ids, mask), original(small_bert, ids, mask), strict=True):
        assert_close(ours[real], theirs[real])


def literal(bert, ids):
    """Windows of 8 tokens of text, every 4, the last at the end; each token from where it stands farthest inside."""
    text = ids[1:-1]
    starts = [*range(0, len(text) - 8, 4), len(text) - 8]
    windows = [torch.cat([ids[:1], text[start : start + 8], ids[-1:]])[None] for start in starts]
    read = [torch.stack(original(bert, window, torch.ones_like(window)))[:, 0] for window in windows]
    out = torch.zeros(len(read[0]), len(ids), 12, dtype=torch.float64)
    for place in range(len(text)):
        insides = [min(place - start, start + 7 - place) for start in starts]
        best = insides.index(max(insides))
        out[:, 1 + place] = read[best][:, 1 + place - starts[best]]
    for mark in (0, -1):
        out[:, mark] = torch.stack([states[:, mark] for states in read]).mean(dim=0)
    return out


@pytest.mark.parametrize("length", [11, 14, 15, 23, 31])
def test_longer_texts_are_read_window_by_window(teacher, small_bert, rows, length):
    ids, mask = rows(length)
    found = torch.stack(teacher.hidden_states(ids, mask))[:, 0]
    assert_close(found, literal(small_bert, ids[0]))


@pytest.mark.parametrize("length", [11, 17, 18, 19, 31])
def test_windows_one_after_the_other(small_bert, rows, length):
    ids, mask = rows(length)
    found = torch.stack(Teacher(copy.deepcopy(small_bert), 10, 1, 1, 0.0).hidden_states(ids, mask))[:, 0]
    pieces = [torch.cat([ids[0, :1], piece, ids[0, -1:]])[None] for piece in ids[0, 1:-1].split(8)]
    read = [torch.stack(original(small_bert, piece, torch.ones_like(piece)))[:, 0] for piece in pieces]
    assert_close(found[:, 1:-1], torch.cat([states[:, 1:-1] for states in read], dim=1))


def test_every_row_of_a_batch_is_what_it_is_alone(teacher, rows):
    lengths = 23, 4, 10, 31
    ids, mask = rows(*lengths)
    together = torch.stack(teacher.hidden_states(ids, mask))
    for row, length in enumerate(lengths):
        alone = torch.stack(teacher.hidden_states(ids[row : row + 1, :length], mask[row : row + 1, :length]))
        assert_close(together[:, row, :length], alone[:, 0])


def test_nothing_of_it_learns(teacher, rows):
    assert not any(parameter.requires_grad for parameter in teacher.model.parameters())
    assert not any(states.requires_grad for states in teacher.hidden_states(*rows(10, 4)))
    assert not teacher.model.training

"""Several vectors of a row: means of pieces by hand, padding anywhere, windows, products of sets, saving."""

from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.models import pieces as module
from torch_linformer.models.pieces import PieceVectors, largest_products

NAN, CHANNELS, MOST = float("nan"), 3, 4


@pytest.fixture
def two_tokens(monkeypatch):
    """A vector stands for two tokens at least."""
    monkeypatch.setattr(module, "LEAST_TOKENS", 2)


@pytest.fixture
def fitted():
    made = PieceVectors(CHANNELS, MOST)
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    made.map.weight.copy_(torch.randn(CHANNELS, CHANNELS, generator=generator))
    made.map.bias.copy_(torch.randn(CHANNELS, generator=generator))
    return made


@pytest.mark.parametrize(("tokens", "number"), [(0, 1), (1, 1), (64, 1), (65, 2), (250, 4), (9999, 4)])
def test_a_vector_stands_for_64_tokens_at_least(tokens, number):
    assert PieceVectors(CHANNELS, MOST).number(torch.tensor([tokens])).tolist() == [number]


@pytest.mark.parametrize("first", [0, 2, 5])
@pytest.mark.parametrize(
    ("tokens", "cuts"), [(1, [0, 1]), (3, [0, 2, 3]), (5, [0, 2, 4, 5]), (11, [0, 3, 6, 9, 11])], ids=str
)
def test_pieces_by_hand(two_tokens, fitted, tokens, cuts, first):
    """Wherever padding stands, which holds what would poison a careless mean."""
    states = torch.randn(tokens, CHANNELS)
    hidden, mask = torch.full((1, 16, CHANNELS), NAN), torch.zeros(1, 16, dtype=torch.long)
    hidden[0, first : first + tokens], mask[0, first : first + tokens] = states, 1
    own, whole = [], F.normalize(states.mean(dim=0), dim=0)
    for begin, end in pairwise(cuts):
        unit = F.normalize(F.normalize(states[begin:end].mean(dim=0), dim=0) + whole, dim=0)
        own.append(F.normalize(fitted.map.weight @ unit + fitted.map.bias, dim=0))
    found = fitted.vectors(hidden, mask)
    assert found.shape == (1, MOST, CHANNELS)
    assert_close(found[0], torch.stack([own[number % len(own)] for number in range(MOST)]))
    with torch.autocast(torch.get_default_device().type, torch.bfloat16):
        assert torch.equal(fitted.vectors(hidden, mask), found)


def test_a_new_map_changes_nothing_and_is_not_learned():
    means = torch.randn(2, 5, CHANNELS)
    made = PieceVectors(CHANNELS, MOST)
    assert_close(made.mapped(means), F.normalize(means, dim=-1))
    assert not any(weight.requires_grad for weight in made.parameters()) and not made.is_fitted


@pytest.mark.parametrize(("of_query", "of_document"), [(None, None), (None, 3), (2, 3), (2, None)])
def test_the_largest_product_counts(of_query, of_document):
    queries = torch.randn(5, *([of_query] if of_query else []), CHANNELS)
    documents = torch.randn(7, *([of_document] if of_document else []), CHANNELS)
    found = largest_products(queries, documents)
    for i, query in enumerate(queries.view(5, -1, CHANNELS)):
        for j, document in enumerate(documents.view(7, -1, CHANNELS)):
            assert_close(found[i, j], (query @ document.T).max())
    repeated = queries.view(5, -1, CHANNELS)[:, :1].expand(-1, 4, -1)
    assert_close(largest_products(repeated, documents), largest_products(repeated[:, 0], documents))


def test_windows_are_read_one_by_one_between_special_tokens(monkeypatch):
    """Rows of 7 and 3 tokens of text, and of none, in windows with room for 3; wherever padding stands."""
    monkeypatch.setattr(module, "AT_ONCE", 2)
    calls = []

    def model(input_ids, attention_mask):
        """The state of a token is its number, the first one of its window and the tokens of its window."""
        calls.append([row[real.bool()].tolist() for row, real in zip(input_ids, attention_mask, strict=True)])
        counts = attention_mask.sum(dim=1, keepdim=True).expand_as(input_ids)
        return SimpleNamespace(last_hidden_state=torch.stack([input_ids, input_ids * 0 + 1, counts], dim=-1).float())

    ids = torch.tensor([[90, 1, 2, 3, 4, 5, 6, 7, 99], [0, 0, 90, 8, 9, 10, 99, 0, 0], [90, 99, 0, 0, 0, 0, 0, 0, 0]])
    made = PieceVectors(CHANNELS, 2, 5, [90], [99])
    windows = made.windows(model, ids, (ids > 0).long())
    assert [row for call in calls for row in call] == [
        [90, 1, 2, 3, 99],
        [90, 4, 5, 6, 99],
        [90, 7, 99],
        [90, 8, 9, 10, 99],
        [90, 99],
    ]
    assert_close(windows[0], torch.tensor([[39.0, 1, 5, 5], [40.8, 1, 5, 5], [196 / 3, 1, 3, 3]]))
    assert [len(row) for row in windows] == [3, 1, 1]
    assert made.number(torch.tensor([9, 5, 2, 0])).tolist() == [2, 1, 1, 1]
    # The first piece is two windows, as 3 windows do not make 2 pieces of equally many.
    first, second, whole = (
        F.normalize(row, dim=0)
        for row in (
            windows[0][:2, :3].mean(dim=0),
            windows[0][2, :3],
            (windows[0][:, :3] * windows[0][:, 3:]).sum(dim=0),
        )
    )
    found = made.of_windows(windows)
    assert_close(found[0], torch.stack([F.normalize(piece + whole, dim=0) for piece in (first, second)]))
    assert_close(found[1], F.normalize(windows[1][:, :3], dim=1).expand(2, -1))


def test_without_gradients_short_windows_are_read_without_padding():
    """Windows of 5, 5, 3, 5, 2 and 0 tokens; one of no tokens has one of padding."""
    shapes = []

    def model(input_ids, attention_mask):
        shapes.append(tuple(input_ids.shape))
        return SimpleNamespace(last_hidden_state=torch.stack([input_ids, input_ids + 1], dim=-1).float())

    ids = torch.zeros(4, 9, dtype=torch.long)
    ids[0], ids[1, :5], ids[2, :2] = torch.arange(90, 99), torch.tensor([90, 8, 9, 10, 99]), torch.tensor([90, 99])
    made = PieceVectors(CHANNELS, 2, 5, [90], [99])
    expected = made.windows(model, ids, (ids > 0).long())
    assert shapes == [(6, 5)]
    with torch.no_grad():
        found = made.windows(model, ids, (ids > 0).long())
    assert shapes[1:] == [(1, 1), (1, 2), (1, 3), (3, 5)]
    assert_close(found, expected, rtol=0, atol=0)


def test_it_is_saved_whole(fitted, tmp_path):
    fitted.window, fitted.before, fitted.after = 5, [1, 2], [3]
    fitted.save(str(tmp_path / "pieces"))
    loaded, means = PieceVectors.load(str(tmp_path / "pieces")), torch.randn(2, CHANNELS)
    assert loaded.options == fitted.options and (loaded.window, loaded.before, loaded.after) == (5, [1, 2], [3])
    assert torch.equal(loaded.mapped(means), fitted.mapped(means))


def test_sentence_transformers_calls_it_with_a_dictionary(two_tokens, fitted):
    """It keeps the vectors that a text has, and for one vector a text its own name."""
    hidden, mask = torch.randn(2, 8, CHANNELS), torch.tensor([[1] * 8, [1] * 3 + [0] * 5])
    features = {"token_embeddings": hidden, "attention_mask": mask, "input_ids": mask}
    found = fitted(features)
    assert_close(found["token_embeddings"], fitted.vectors(hidden, mask))
    assert found["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]] and found["token_mask"] is mask
    one = PieceVectors(CHANNELS, 1)
    assert_close(one(features)["sentence_embedding"], one.vectors(hidden, mask))
    fitted.window = 7
    with pytest.raises(ValueError, match="reads 7 tokens at once, window by window, which sentence-transformers does"):
        fitted(features)

"""Integrated gradients add up to the change of the score, and are exact where the score is linear."""

import re
import unicodedata

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from torch_linformer.analysis import inspect_text
from torch_linformer.analysis.relevance import (
    MOST_CHARACTERS,
    MOST_TOKENS,
    Passage,
    Piece,
    cut_into_passages,
    cut_into_pieces,
    integrated_gradients,
    lexical_shares,
    ranked_passages,
    shown_passage,
    visible,
)
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.models.backbone import Inputs
from torch_linformer.models.lexical_head import KINDS, PAIR, LexicalHead

BYTES = build_tokenizer("bytes", [], max_length=100)
IDS = torch.tensor([[2, 4, 5, 6, 7, 4, 3]])
OF_TEXT = torch.tensor([[False, True, True, True, True, True, False]])


def embeddings_of(model):
    """What the first layer reads, and the part of it that is of words."""
    return model.linformer.embeddings, model.get_input_embeddings()


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"attention": "full"},
        {"projection": "dynamic", "exact_first": 1, "slot_mass": "learned"},
        {"position_embedding": "none", "pooling": "cls"},
    ],
    ids=str,
)
def test_they_add_up(build, fields):
    model = build(**fields)
    found = integrated_gradients(lambda: model(IDS).logits[0, [3, 1]], *embeddings_of(model), OF_TEXT, steps=64)
    assert found.values.shape == (2, 7)
    torch.testing.assert_close(found.scores, model(IDS).logits[0, [3, 1]].detach())  # which is left as it was
    assert all(parameter.grad is None for parameter in model.parameters())
    torch.testing.assert_close(found.values.sum(-1), found.scores - found.blank_scores, rtol=1e-4, atol=1e-4)
    assert (found.scores - found.blank_scores).abs().min() > 1e-2  # there is something to add up


def test_blank_words_leave_positions_and_special_tokens(build):
    model = build()
    words = model.get_input_embeddings()(IDS).detach()
    words[0, 1:6] = 0
    found = integrated_gradients(lambda: model(IDS).logits[0], *embeddings_of(model), OF_TEXT, steps=2)
    torch.testing.assert_close(found.blank_scores, model(inputs_embeds=words).logits[0].detach())
    assert not found.values[:, [0, 6]].any()
    assert found.values[:, 1:6].all()


def test_a_linear_score_needs_one_step(build):
    embeddings = build().linformer.embeddings
    weight = torch.randn(7, 12, dtype=torch.float64)
    score = lambda: (embeddings(Inputs(IDS, None, None, None)) * weight).sum()[None]  # noqa: E731
    found = integrated_gradients(score, embeddings, embeddings.word_embeddings, OF_TEXT, steps=1)
    with torch.no_grad():
        blank = embeddings.word_embeddings(IDS).masked_fill(OF_TEXT[..., None], 0.0)
        difference = embeddings(Inputs(IDS, None, None, None)) - embeddings(Inputs(None, None, None, blank))
    torch.testing.assert_close(found.values, (difference * weight).sum(-1))


@pytest.fixture
def lexical():
    """Tokens 2 and 3 count for nothing, 9 as 4, 10 goes on with a word; the pairs 4 5 and 5 5 are features."""
    torch.manual_seed(1)
    head = LexicalHead(12, 12, 3).double()
    with torch.no_grad():
        for tensor in (head.weight, head.bias, head.idf):
            tensor.uniform_(0.5, 2.0)
        counted = torch.tensor([number for number in range(12) if number not in (2, 3)])
        head.spelling[counted], head.sizes[counted] = 1000 * counted, 1
        head.spelling[9] = head.spelling[4]
        head.joins[0, 10], head.joins[1, counted] = True, True
        words, pairs = head.words(counted[counted < 9].unsqueeze(-1)), head.words(torch.tensor([[4, 5], [5, 5]]))
        joined = head.words(torch.tensor([[5, 10]]))
        codes = torch.cat([words.codes[:, 0], joined.codes[:, 0], pairs.codes[:, 2], torch.tensor([4, 8])])
        head.codes.copy_(codes.sort().values)
    return head


@pytest.mark.parametrize("ids", [[2, 4, 5, 5, 3, 5, 9, 5, 7, 2], [4], [5, 5], [2, 3], [7, 6, 8], [5, 10, 5]], ids=str)
def test_shares_of_a_lexical_head_add_up_to_its_logits(lexical, ids):
    ids = torch.tensor([ids])
    shares = lexical_shares(lexical, ids)
    assert shares.shape == (3, ids.shape[1])
    torch.testing.assert_close(shares.sum(-1), (lexical(ids)[0] - lexical.bias).detach())
    assert not shares[:, (ids[0] == 2) | (ids[0] == 3)].any()


def test_a_feature_is_shared_by_its_occurrences_and_a_pair_by_its_tokens(lexical):
    """4 5 by hand: two tokens and a pair, each once."""
    words = lexical.words(torch.tensor([[4, 5]]))
    features = lexical.find(words)[0, words.real[0]]
    assert len(features.unique()) == 3 and (lexical.codes[features] % KINDS == PAIR).tolist() == [False, False, True]
    added = (lexical.idf[features] / lexical.idf[features].norm()).unsqueeze(-1) * lexical.weight[features]
    expected = torch.stack([added[0] + added[2] / 2, added[1] + added[2] / 2]).mT
    torch.testing.assert_close(lexical_shares(lexical, torch.tensor([[4, 5]])), expected.detach())
    once, twice = (lexical_shares(lexical, torch.tensor([ids])) for ids in ([7, 8], [7, 8, 7]))
    torch.testing.assert_close(twice[:, 0], twice[:, 2])
    assert not torch.allclose(once[:, 0], twice[:, 0])
    one, other = lexical_shares(lexical, torch.tensor([[5, 10]])).mT
    assert one.any()
    torch.testing.assert_close(one, other)  # tokens of a word


def test_an_answer_draws_on_the_lexical_head_too(build, words, lexical):
    model = build(lexical_features=12, num_labels=3)
    model.lexical.load_state_dict(lexical.state_dict())
    seen = inspect_text(model, words, "wet mud sea wet mud mud")
    relevance = seen.answer.relevance
    model.lexical = None
    rest = inspect_text(model, words, "wet mud sea wet mud mud")
    assert seen.lexical and not rest.lexical
    order = [rest.answer.labels.index(label) for label in seen.answer.labels]
    shares = relevance.values - rest.answer.relevance.values[order]
    names = [int(label.removeprefix("LABEL_")) for label in seen.answer.labels]
    ids = torch.tensor([words("wet mud sea wet mud mud")["input_ids"]])
    torch.testing.assert_close(shares, lexical_shares(lexical, ids)[names])
    torch.testing.assert_close(
        relevance.values.sum(-1), relevance.scores - relevance.blank_scores, rtol=1e-2, atol=1e-2
    )


# The text in passages and in pieces


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


def test_long_sentences_and_special_tokens_part_passages():
    text = "mud " * (2 * MOST_TOKENS + 1)
    assert list(map(len, cut_into_passages(text, spans_of(text)))) == [MOST_TOKENS, MOST_TOKENS, 1]
    assert cut_into_passages("wet mud", [(0, 3), (0, 0), (4, 7)]) == [range(0, 1), range(2, 3)]


def test_the_largest_sums_come_first_whatever_their_sign():
    values = torch.tensor([9.0, 1.0, 1.0, -5.0, 1.0, 0.0, 0.0, 0.5, 0.25])
    passages = [range(1, 3), range(3, 5), range(5, 7), range(7, 9)]
    assert ranked_passages(passages, values) == [Passage(3, 4, -4.0, 3), Passage(1, 2, 2.0, 1), Passage(7, 8, 0.75, 7)]
    found = ranked_passages([range(number, number + 1) for number in range(9)], torch.arange(1.0, 10.0))
    assert [each.first for each in found] == [8, 7, 6, 5, 4]


def test_a_passage_is_shown_on_one_line_and_shortened():
    text = "wet\n  mud \x1b" + " sea" * 100
    spans = spans_of(text)
    shown = shown_passage(text, spans, Passage(1, len(spans) - 2, 1.0, 1))
    assert shown.startswith("wet mud ␛ sea") and shown.endswith("…") and len(shown) == MOST_CHARACTERS


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

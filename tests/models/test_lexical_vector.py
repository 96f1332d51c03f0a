"""The lexical part of a vector: its numbers by hand, padding on any side, products of sketches, saving."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch.testing import assert_close
from transformers.modeling_outputs import BaseModelOutput

from torch_linformer.models.lexical_vector import NOTHING, PAIRS, WORDS, LexicalVector
from torch_linformer.models.pooling import DocumentVectors, embed

VOCABULARY, CHANNELS, WIDTH, SHARE = 37, 5, 11, 0.3
ROWS = [
    [5, 6, 5, 6, 11, 9, 9, 9],  # repeated tokens
    [4, 20, 6, 6, 20],  # a token that counts as another
    [0, 1, 2],  # nothing that counts
]


@pytest.fixture(params=["hashed", "fitted"])
def lexical(request):
    """Tokens 0 to 3 count for nothing, 20 as 5; the column of a token is a hash, or was fitted."""
    made = LexicalVector(VOCABULARY, CHANNELS, WIDTH, SHARE).double()
    made.weights.uniform_(0.5, 2.0, generator=torch.Generator(torch.get_default_device()).manual_seed(0))
    made.counts_as.copy_(torch.arange(VOCABULARY))
    made.counts_as[:4], made.counts_as[20] = NOTHING, 5
    made.begins[[6, 9]] = False  # 5 6 is a word, as is 11 9 9 9
    if request.param == "fitted":
        generator = torch.Generator(torch.get_default_device()).manual_seed(1)
        made.columns.copy_(torch.randint(WIDTH, made.columns.shape, generator=generator))
    return made


def features_by_hand(lexical, ids):
    """Tokens, words of several tokens, pairs: as numbers, words and pairs by the hashes of the module."""
    prime, places = 2**31 - 1, [pow(1_000_003, place + 1, 2**31 - 1) for place in range(16)]
    words, tokens = [[]], []
    for token in ids:
        counted = int(lexical.counts_as[token])
        if counted == NOTHING or lexical.begins[token]:
            words.append([])
        if counted != NOTHING:
            words[-1].append(counted)
            tokens.append(counted)
    code = lambda run: sum((token + 1) * place % prime for token, place in zip(run, places, strict=False)) % prime  # noqa: E731
    found = [VOCABULARY + code(word) % WORDS for word in words if len(word) > 1]
    pairs = [((a + 1) * places[0] + (b + 1) * places[1]) % prime for a, b in pairwise(tokens)]
    return Counter(tokens + found), Counter(VOCABULARY + WORDS + pair % PAIRS for pair in pairs)


def by_hand(lexical, ids):
    """The sketch of one row, a feature at a time."""
    y = [0.0] * lexical.width
    for feature, count in features_by_hand(lexical, ids)[0].items():
        sign = 1 - 2 * (feature * 1_103_515_245 % (2**31 - 1) % 2)
        y[int(lexical.columns[feature])] += sign * (1 + math.log(count)) * float(lexical.weights[feature])
    length = math.sqrt(sum(each**2 for each in y))
    return torch.tensor(y, dtype=torch.float64) / (length or 1.0)


def test_features_are_tokens_words_and_pairs(lexical):
    for row in ROWS:
        features, real = lexical.features(torch.tensor([[2, *row, 3]]))
        words, pairs = features_by_hand(lexical, row)
        assert Counter(features[real].tolist()) == words + pairs
    assert sum(feature >= VOCABULARY for feature in features_by_hand(lexical, ROWS[0])[0]) >= 2


@pytest.mark.parametrize("side", ["left", "right", "both"])
def test_a_sketch_is_its_formula_wherever_padding_stands(lexical, side):
    width = max(map(len, ROWS)) + 3
    ids, mask = torch.full((len(ROWS), width), 7), torch.zeros(len(ROWS), width, dtype=torch.long)
    for row, tokens in enumerate(ROWS):
        first = {"left": width - len(tokens), "right": 0, "both": 2}[side]
        ids[row, first : first + len(tokens)] = torch.tensor(tokens)
        mask[row, first : first + len(tokens)] = 1
    assert_close(lexical.sketch(ids, mask), torch.stack([by_hand(lexical, row) for row in ROWS]))


def reader_of(hidden):
    return lambda **rows: BaseModelOutput(hidden)


def test_a_vector_has_both_parts_by_their_shares(lexical):
    hidden, ids, mask = torch.randn(2, 8, CHANNELS).double(), torch.tensor([ROWS[0], ROWS[0][::-1]]), torch.ones(2, 8)
    made = DocumentVectors("mean", lexical)
    vectors, pooled = made(reader_of(hidden), ids, mask), embed(hidden, mask, "mean")
    assert vectors.shape == (2, CHANNELS + WIDTH) and made.width(CHANNELS) == CHANNELS + WIDTH
    assert_close(vectors[:, :CHANNELS], pooled * (1 - SHARE) ** 0.5)
    assert_close(vectors[0, CHANNELS:].double(), by_hand(lexical, ROWS[0]) * SHARE**0.5, rtol=1e-6, atol=1e-6)
    assert_close(vectors.norm(dim=1), torch.ones(2, dtype=vectors.dtype))
    assert_close(DocumentVectors("mean")(reader_of(hidden), ids, mask), pooled)
    assert DocumentVectors("mean_max").width(CHANNELS) == 2 * CHANNELS


def test_words_are_those_of_whole_documents_where_rows_are_parts(lexical):
    """Padded on the left: tokens that count for nothing are no words wherever they stand."""
    hidden, mask = torch.randn(2, 3, CHANNELS).double(), torch.ones(2, 3)
    width = max(map(len, ROWS[:2]))
    nothing = int((lexical.counts_as == NOTHING).nonzero()[0])
    whole = torch.tensor([[nothing] * (width - len(row)) + row for row in ROWS[:2]])
    vectors = DocumentVectors("mean", lexical)(reader_of(hidden), whole[:, -3:], mask, whole)
    wanted = torch.stack([by_hand(lexical, row) for row in ROWS[:2]]) * SHARE**0.5
    assert_close(vectors[:, CHANNELS:].double(), wanted, rtol=1e-6, atol=1e-6)


def test_the_product_of_two_sketches_is_nearly_that_of_their_words():
    """Of 200 rows of 60 words, 12 of them those of the row before; the error falls with the width."""
    vocabulary, generator = 5000, torch.Generator(torch.get_default_device()).manual_seed(0)
    rows = torch.randint(vocabulary, (200, 60), generator=generator)
    rows[1:, :12] = rows[:-1, 48:]
    counts = torch.zeros(200, vocabulary).scatter_add(1, rows, torch.ones_like(rows, dtype=torch.float32))
    words = torch.nn.functional.normalize(torch.where(counts > 0, 1 + counts.clamp(min=1).log(), 0.0), dim=1)
    errors = {}
    for width in (512, 8192):
        lexical = LexicalVector(vocabulary, CHANNELS, width)
        lexical.weights.fill_(1.0)
        lexical.counts_as.copy_(torch.arange(vocabulary))
        sketches = lexical.sketch(rows)
        errors[width] = float((sketches @ sketches.T - words @ words.T).square().mean().sqrt())
    assert errors[512] < 1.3 / 512**0.5 and errors[8192] < 1.3 / 8192**0.5


def test_it_is_saved_whole(lexical, tmp_path):
    lexical.float().save(str(tmp_path / "words"))
    loaded, ids = LexicalVector.load(str(tmp_path / "words")), torch.tensor([ROWS[0]])
    assert (loaded.channels, loaded.width, loaded.share) == (CHANNELS, WIDTH, SHARE)
    assert loaded.get_embedding_dimension() == CHANNELS + WIDTH
    assert torch.equal(loaded.sketch(ids), lexical.sketch(ids))


def test_sentence_transformers_calls_it_with_a_dictionary(lexical):
    ids, mask, vector = torch.tensor([ROWS[1]]), torch.ones(1, 5), torch.ones(1, CHANNELS) / CHANNELS**0.5
    features = {"input_ids": ids, "attention_mask": mask, "sentence_embedding": vector}
    assert_close(lexical(features)["sentence_embedding"], lexical.beside(vector, ids, mask))
    assert features["sentence_embedding"] is vector

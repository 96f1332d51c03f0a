"""The lexical head: its logits by hand, words of several tokens, padding on any side, whole documents, saving."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.models.lexical_head import BASE, CHARACTERS, KINDS, NOTHING, PAIR, PRIME, LexicalHead

LABELS = 3
# Token ids by their letters; "+" is one that goes on with the word before it, "" counts for nothing.
TOKENS = ["", "", "", "", "sun", "rain", "+y", "a", "+fall", "b", "snow", "+s", "é"]
VOCABULARY = len(TOKENS) + 2  # the last two have no spelling, as new ones
OTHERS = (998_244_353, 1_004_535_809)


def hashed(text):
    return sum(ord(letter) * pow(BASE, place, PRIME) for place, letter in enumerate(text)) % PRIME


def code_of(feature):
    """Of a word, a pair of words, or an n-gram, which is told by a list of its characters."""
    if isinstance(feature, list):
        return hashed("".join(feature)) * KINDS + CHARACTERS
    if isinstance(feature, tuple):
        return sum(hashed(word) * factor for word, factor in zip(feature, OTHERS, strict=True)) % PRIME * KINDS + PAIR
    return hashed(feature) * KINDS


def words_of(ids):
    words = []
    before = False
    for token in ids:
        letters = TOKENS[token] if 0 <= token < len(TOKENS) else ""
        if letters.startswith("+") and before:
            words[-1] += letters[1:]
        elif letters:
            words.append(letters.removeprefix("+"))
        before = bool(letters)
    return words


def n_grams_of(word):
    word = f" {word} "
    return [list(word[start : start + n]) for n in range(2, 6) for start in range(len(word) - n + 1)]


FEATURES = ["sun", "sunny", "rainfall", "rain", "a", "y", "é", "snows", ("sun", "rain"), ("a", "a"), ("rainfall", "a")]
GRAMS = [list(" s"), list("un"), list("ny "), list(" rain"), list("a "), list(" a "), list("fall ")]


def fill(head, features):
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in (head.weight, head.bias):
            tensor.normal_()
        head.idf.uniform_(0.5, 2.0)
        for token, letters in enumerate(TOKENS):
            if letters:
                text = letters.removeprefix("+")
                head.spelling[token], head.sizes[token] = hashed(text), len(text)
                head.joins[0, token], head.joins[1, token] = letters != text, True
                if head.letters is not None:
                    head.letters[token, : len(text)] = torch.tensor([ord(letter) for letter in text])
        head.codes.copy_(torch.tensor(sorted(map(code_of, features))))
    return head


@pytest.fixture(params=["words", "and n-grams"])
def features(request):
    return FEATURES if request.param == "words" else FEATURES + GRAMS


@pytest.fixture
def head(features):
    return fill(LexicalHead(VOCABULARY, len(features), LABELS, 4 * (features is not FEATURES)).double(), features)


@pytest.fixture
def model(build):
    built = build(LinformerForSequenceClassification, num_labels=LABELS, lexical_features=len(FEATURES))
    fill(built.lexical, FEATURES)
    return built


def by_hand(head, ids):
    words = words_of(ids)
    found = [*words, *pairwise(words)]
    grams = [gram for word in words for gram in n_grams_of(word)] if head.letters is not None else []
    codes, logits = head.codes.tolist(), head.bias.clone()
    for kind in (found, grams):
        x = torch.zeros(len(codes), dtype=torch.float64)
        for code, count in Counter(map(code_of, kind)).items():
            if code in codes:
                x[codes.index(code)] = (1 + math.log(count)) * head.idf[codes.index(code)]
        logits = logits + (x / max(x.norm(), 1e-12)) @ head.weight
    return logits


ROWS = [
    [0, 4, 6, 4, 6, 5, 8, 7, 7, 7, 1],  # words of two tokens, repeated words and pairs
    [4, 3, 6],  # punctuation ends a word: what would go on with it begins another
    [6, 4, 5, 4, 5],  # nothing is there to go on with
    [4, 11, 11, 6],  # a word of four tokens
    [0, 1, 2, 3],  # nothing counts
    [12],
    [10, 11, 9, 13, 14, 4],  # tokens without a spelling
]


@pytest.mark.parametrize("row", ROWS)
@torch.no_grad()
def test_logits_are_those_of_the_definition(head, row):
    assert_close(head(torch.tensor([row])), by_hand(head, row)[None])


@torch.no_grad()
def test_rows_of_a_batch_do_not_meet(head):
    length = max(map(len, ROWS))
    ids = torch.tensor([row + [NOTHING] * (length - len(row)) for row in ROWS])
    assert_close(head(ids), torch.stack([by_hand(head, row) for row in ROWS]))


@pytest.mark.parametrize(
    "places", [(0, 1, 2, 3, 4), (3, 4, 5, 6, 7), (0, 2, 3, 6, 7)], ids=["right", "left", "between"]
)
@torch.no_grad()
def test_padding_counts_for_nothing(head, places):
    row, ids, mask = torch.tensor([4, 6, 5, 8, 7]), torch.full((2, 8), 6), torch.zeros(2, 8, dtype=torch.long)
    ids[0, list(places)], mask[0, list(places)] = row, 1
    assert_close(head(ids, mask)[0], head(row[None])[0])
    assert_close(head(ids, mask)[1], head.bias)  # a row of padding
    words = head.words(ids, mask)
    assert words.of_tokens[0, list(places)].tolist() == [0, 0, 1, 1, 2] and set(words.of_tokens[1].tolist()) == {-1}


@pytest.mark.parametrize("number", range(1, len(FEATURES) + 1))
@torch.no_grad()
def test_every_feature_is_found(number):
    codes = sorted(map(code_of, FEATURES))[:number]
    head = LexicalHead(VOCABULARY, number, LABELS)
    head.codes.copy_(torch.tensor(codes))
    words = head.words(torch.tensor([[4]]))
    asked = torch.tensor([[*codes, codes[0] - 1, codes[-1] + 1]])
    found = head.find(words._replace(codes=asked, real=torch.ones_like(asked, dtype=torch.bool)))
    assert found.tolist() == [[*range(number), number, number]]


def test_gradients_are_finite_and_only_of_what_a_row_has(head):
    head(torch.tensor([[4, 5, 4], [0, 0, 0]])).sum().backward()
    codes = head.codes[head.weight.grad[:, 0].nonzero().flatten()]
    assert {code_of("sun"), code_of("rain"), code_of(("sun", "rain"))} == {c for c in codes.tolist() if c % KINDS < 2}
    assert head.weight.grad.isfinite().all() and torch.equal(head.bias.grad, torch.full((LABELS,), 2.0).double())


@torch.no_grad()
def test_a_new_head_says_nothing():
    assert torch.equal(LexicalHead(VOCABULARY, 5, LABELS)(torch.tensor([[4, 5, 6]])), torch.zeros(1, LABELS))


@torch.no_grad()
def test_its_logits_are_added_to_those_of_the_pooled_states(model, token_ids):
    ids, mask = token_ids(2, 9) % VOCABULARY, torch.tensor([[1] * 9, [0, 0, *[1] * 5, 0, 0]])
    found, labels = model(ids, attention_mask=mask), torch.tensor([2, 0])
    pooled = model.classifier(model.pooler(model.linformer(ids, attention_mask=mask).last_hidden_state, mask))
    assert_close(found.lexical_logits, model.lexical(ids, mask))
    assert_close(found.logits, pooled + found.lexical_logits)
    with_labels = model(ids, attention_mask=mask, labels=labels, return_dict=False)
    assert_close(with_labels[0], F.cross_entropy(found.logits.float(), labels))
    assert_close(with_labels[1], found.logits)
    assert found.keys() == {"logits", "lexical_logits"}


def test_an_encoder_whose_states_count_for_nothing_is_run_only_where_they_are_asked_for(model, token_ids):
    ids = token_ids(2, 9) % VOCABULARY
    with torch.no_grad():
        model.classifier.weight.zero_()
        expected = model(ids, output_hidden_states=True)
    runs = []
    model.linformer.register_forward_hook(lambda *_: runs.append(1))
    with torch.no_grad():
        assert_close(model(ids, labels=torch.tensor([2, 0])).logits, expected.logits)
        assert not runs and len(expected.hidden_states) == len(model(ids, output_hidden_states=True).hidden_states)
        model.classifier.weight[0, 0] = 1.0
        assert not torch.equal(model(ids).logits, expected.logits)
        model.classifier.weight.zero_()
    model(ids).logits.sum().backward()
    assert len(runs) == 3 and model.classifier.weight.grad.any()


@torch.no_grad()
def test_it_reads_the_whole_document_where_the_row_is_a_part(model, token_ids):
    ids, whole = token_ids(2, 9), torch.cat([token_ids(2, 60) % VOCABULARY, torch.zeros(2, 3, dtype=torch.long)], dim=1)
    found = model(ids, whole_ids=whole)
    assert_close(found.lexical_logits, model.lexical(whole[:, :60]))
    assert_close(found.logits - found.lexical_logits, model(ids).logits - model.lexical(ids))
    whole[:, 60:] = -1  # padding too, where no token is for it
    assert_close(model(ids, whole_ids=whole).lexical_logits, found.lexical_logits)


def test_what_it_cannot_read_is_refused(model, build, token_ids):
    with pytest.raises(ValueError, match=r"inputs_embeds have no words: give whole_ids beside them, or load the model"):
        model(inputs_embeds=torch.zeros(1, 4, 15, dtype=torch.float64))
    assert (
        model(inputs_embeds=torch.zeros(1, 4, 15, dtype=torch.float64), whole_ids=token_ids(1, 4))
        .logits.isfinite()
        .all()
    )
    with pytest.raises(ValueError, match=r"whole_ids are read by a lexical head, and this model has none"):
        build(LinformerForSequenceClassification)(token_ids(1, 4), whole_ids=token_ids(1, 4))
    with pytest.raises(ValueError, match="lexical_features must be at least 1, got 0"):
        build(LinformerForSequenceClassification, lexical_features=0)
    with pytest.raises(ValueError, match="lexical_letters must be at least 0, got -1"):
        build(LinformerForSequenceClassification, lexical_features=4, lexical_letters=-1)


@torch.no_grad()
def test_saved_and_loaded(model, token_ids, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = LinformerForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64)
    ids = token_ids(2, 9) % VOCABULARY
    assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-13, atol=0)
    without = LinformerForSequenceClassification.from_pretrained(tmp_path, lexical_features=None, dtype=torch.float64)
    assert_close(without(ids).logits, model(ids).logits - model.lexical(ids))


@torch.no_grad()
def test_weights_that_a_file_lacks_say_nothing(build, token_ids, tmp_path):
    build(LinformerForSequenceClassification, num_labels=LABELS).save_pretrained(tmp_path)
    model = LinformerForSequenceClassification.from_pretrained(tmp_path, lexical_features=7, lexical_letters=2)
    assert torch.equal(model.lexical(token_ids(2, 9)), torch.zeros(2, LABELS))


@pytest.mark.parametrize("size", [45, 31])
@torch.no_grad()
def test_another_vocabulary(model, size):
    ids = torch.tensor([[4, 6, 5, 8, 7]])
    before = model.lexical(ids)
    model.resize_token_embeddings(size)
    assert_close(model.lexical(ids), before)
    assert_close(model.lexical(torch.cat([ids, torch.tensor([[size - 1]])], dim=1)), before)
    model(ids, labels=torch.tensor([0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@torch.no_grad()
def test_low_precision(model, token_ids, dtype):
    ids = token_ids(2, 9) % VOCABULARY
    expected, low = model.lexical(ids), model.lexical.to(dtype)
    assert_close(low(ids).double(), expected, rtol=0.02, atol=0.05)

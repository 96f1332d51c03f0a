"""The lexical head: its logits by hand, padding on any side, whole documents, other vocabularies, saving."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.models.lexical_parts import NOTHING, LexicalHead

VOCABULARY, BUCKETS, LABELS = 37, 64, 3
PAIRS = [(5, 6), (6, 5), (9, 9), (6, 11), (30, 7)]


def fill(head):
    """Tokens 0 to 3 count for nothing, 20 as 5; five pairs have buckets, the third of them the second of its two."""
    torch.manual_seed(0)
    with torch.no_grad():
        for tensor in (head.weight, head.bias):
            tensor.normal_()
        head.idf.uniform_(0.5, 2.0)
        head.counts_as.copy_(torch.arange(len(head.counts_as)))
        head.counts_as[:4], head.counts_as[20] = NOTHING, 5
        for number, (one, other) in enumerate(PAIRS if head.num_buckets else ()):
            pair = head.codes(torch.tensor(one), torch.tensor(other))
            head.pairs[head.buckets(pair)[number == 2]] = pair
    return head


@pytest.fixture
def head():
    return fill(LexicalHead(VOCABULARY, BUCKETS, LABELS).double())


@pytest.fixture
def model(build):
    built = build(LinformerForSequenceClassification, num_labels=LABELS, lexical_buckets=BUCKETS)
    fill(built.lexical)
    return built


def by_hand(head, ids):
    """Counts of tokens and of the pairs that have a bucket, one row."""
    tokens = [int(head.counts_as[token]) for token in ids if head.counts_as[token] != NOTHING]
    counts = Counter(tokens)
    table = {
        int(code): VOCABULARY + bucket
        for bucket, code in enumerate(head.pairs if head.num_buckets else ())
        if code != NOTHING
    }
    counts.update(table[code] for one, other in pairwise(tokens) if (code := one * 2**32 + other) in table)
    x = torch.zeros(len(head.idf), dtype=torch.float64)
    for feature, count in counts.items():
        x[feature] = (1 + math.log(count)) * head.idf[feature]
    return (x / max(x.norm(), 1e-12)) @ head.weight + head.bias


ROWS = [
    [1, 5, 6, 5, 6, 11, 9, 9, 9, 2],  # repeated tokens and pairs
    [4, 20, 6, 6, 20],  # a token that counts as another, in a pair too
    [5, 0, 3, 6, 8],  # neighbors of what counts for nothing are a pair
    [0, 1, 2, 3],  # nothing counts
    [30],
    [7, 30, 7, 5],
]


@pytest.mark.parametrize("row", ROWS)
@torch.no_grad()
def test_logits_are_those_of_the_definition(head, row):
    assert_close(head(torch.tensor([row])), by_hand(head, row)[None])


def test_every_pair_of_the_table_is_found(head):
    found = set()
    for one, other in PAIRS:
        columns, counted = head.features(torch.tensor([[one, other]]), torch.tensor([[True, True]]))
        assert counted.tolist() == [[True, True, True, False]], "the last token has no next one"
        found.add(int(columns[0, 2]))
    assert len(found) == len(PAIRS) and min(found) >= VOCABULARY
    assert not head.features(torch.tensor([[6, 9]]), torch.tensor([[True, True]]))[1][0, 2]


@pytest.mark.parametrize(
    "places", [(0, 1, 2, 3, 4), (3, 4, 5, 6, 7), (0, 2, 3, 6, 7)], ids=["right", "left", "between"]
)
def test_padding_counts_for_nothing(head, places):
    row, ids, mask = torch.tensor([5, 6, 5, 9, 9]), torch.full((2, 8), 6), torch.zeros(2, 8, dtype=torch.long)
    ids[0, list(places)], mask[0, list(places)] = row, 1
    assert_close(head(ids, mask)[0], head(row[None])[0])
    assert_close(head(ids, mask)[1], head.bias.detach())  # a row of padding


def test_gradients_are_finite_and_only_of_what_a_row_has(head):
    head(torch.tensor([[5, 6, 5], [0, 0, 0]])).sum().backward()
    columns = head.weight.grad[:, 0].nonzero().flatten().tolist()
    assert [column for column in columns if column < VOCABULARY] == [5, 6] and len(columns) == 4  # and two pairs
    assert head.weight.grad.isfinite().all() and torch.equal(head.bias.grad, torch.full((LABELS,), 2.0).double())


def test_without_buckets_only_tokens_count():
    head = fill(LexicalHead(VOCABULARY, 0, LABELS).double())
    rows = torch.tensor([[5, 6, 9], [9, 6, 5]])
    assert_close(head(rows)[0], head(rows)[1])
    assert_close(head(rows[:1])[0], by_hand(head, [5, 6, 9]))


@torch.no_grad()
def test_a_new_head_says_nothing():
    assert torch.equal(LexicalHead(VOCABULARY, BUCKETS, LABELS)(torch.tensor([[5, 6, 36]])), torch.zeros(1, LABELS))


@torch.no_grad()
def test_its_logits_are_added_to_those_of_the_pooled_states(model, token_ids):
    ids, mask = token_ids(2, 9), torch.tensor([[1] * 9, [0, 0, *[1] * 5, 0, 0]])
    found, labels = model(ids, attention_mask=mask), torch.tensor([2, 0])
    pooled = model.classifier(model.pooler(model.linformer(ids, attention_mask=mask).last_hidden_state, mask))
    assert_close(found.lexical_logits, model.lexical(ids, mask))
    assert_close(found.logits, pooled + found.lexical_logits)
    with_labels = model(ids, attention_mask=mask, labels=labels, return_dict=False)
    assert_close(with_labels[0], F.cross_entropy(found.logits.float(), labels))
    assert_close(with_labels[1], found.logits)
    assert found.keys() == {"logits", "lexical_logits"}


@torch.no_grad()
def test_it_reads_the_whole_document_where_the_row_is_a_part(model, token_ids):
    ids, whole = token_ids(2, 9), torch.cat([token_ids(2, 60), torch.zeros(2, 3, dtype=torch.long)], dim=1)
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
    with pytest.raises(ValueError, match="lexical_buckets must not be negative, got -1"):
        build(LinformerForSequenceClassification, lexical_buckets=-1)


@torch.no_grad()
def test_saved_and_loaded(model, token_ids, tmp_path):
    model.save_pretrained(tmp_path)
    loaded = LinformerForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64)
    ids = token_ids(2, 9)
    assert_close(loaded(ids).logits, model(ids).logits, rtol=1e-13, atol=0)
    without = LinformerForSequenceClassification.from_pretrained(tmp_path, lexical_buckets=None, dtype=torch.float64)
    assert_close(without(ids).logits, model(ids).logits - model.lexical(ids))


@torch.no_grad()
def test_weights_that_a_file_lacks_say_nothing(build, token_ids, tmp_path):
    build(LinformerForSequenceClassification, num_labels=LABELS).save_pretrained(tmp_path)
    model = LinformerForSequenceClassification.from_pretrained(tmp_path, lexical_buckets=BUCKETS)
    assert torch.equal(model.lexical(token_ids(2, 9)), torch.zeros(2, LABELS))


@pytest.mark.parametrize("size", [None, 37])
def test_a_vocabulary_of_the_same_size_leaves_every_parameter(model, size):
    before = dict(model.named_parameters())
    assert model.resize_token_embeddings(size) is model.get_input_embeddings()
    for name, parameter in model.named_parameters():
        assert parameter is before[name], name


@pytest.mark.parametrize("size", [45, 31])
@torch.no_grad()
def test_another_vocabulary(model, size):
    ids = torch.tensor([[5, 6, 9, 9, 30, 7]])
    before = model.lexical(ids)
    model.resize_token_embeddings(size)
    assert_close(model.lexical(ids), before)
    assert model.lexical.weight.shape == (size + BUCKETS, LABELS)
    if size > VOCABULARY:
        assert_close(model.lexical(torch.cat([ids, torch.tensor([[44]])], dim=1)), before)
    model(ids, labels=torch.tensor([0]))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@torch.no_grad()
def test_low_precision(model, token_ids, dtype):
    ids = token_ids(2, 9)
    expected, low = model.lexical(ids), model.lexical.to(dtype)
    assert_close(low(ids).double(), expected, rtol=0.02, atol=0.05)

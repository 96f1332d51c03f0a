import numpy as np
import pytest
from datasets import Dataset
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from torch_linformer.data.packing import PackedText
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError

PAD, CLS, SEP, MASK = range(4)


def rows_of(texts, length=16, packing=True, seed=0, **options):
    """Every character is one token: what a row holds can be read."""
    tokenizer = build_tokenizer("bytes", [], max_length=length)
    documents = Dataset.from_dict({"text": texts})
    rows = PackedText(documents, DocumentEncoder(tokenizer, length), packing=packing, seed=seed, **options)
    return rows, [[tokenizer.decode(part) for part in split(rows[i]["input_ids"])] for i in range(len(rows))]


def split(ids):
    """The texts of a row, between the special tokens."""
    assert ids[0] == CLS and ids[-1] == SEP
    parts = [[]]
    for token in ids[1:-1]:
        if token == SEP:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


TEXTS = st.lists(st.text("abc ", min_size=1, max_size=70), min_size=1, max_size=9)


@given(texts=TEXTS, seed=st.integers(0, 9))
@settings(max_examples=100, deadline=None)
def test_packed_rows_hold_all_text_in_the_drawn_order(texts, seed):
    rows, held = rows_of(texts, length=64, seed=seed)
    expected = "".join(texts[i] for i in np.random.default_rng(seed).permutation(len(texts)))
    # 0.95 of the room is text: what divides documents may cost a row the last of it.
    cut = sum(max(0, len(parts) - 1 + rows.row_characters - 62) for parts in held)
    joined = "".join("".join(parts) for parts in held)
    assert len(joined) >= len(expected) - cut
    if not cut:
        assert joined == expected
    assert len(rows) == -(-len(expected) // rows.row_characters)


@given(texts=TEXTS)
@settings(max_examples=60, deadline=None)
def test_without_packing_a_row_holds_one_document_and_every_document_is_whole(texts):
    rows, held = rows_of(texts, packing=False)
    assert all(len(parts) == 1 for parts in held)
    joined = iter("".join(parts) for parts in held)
    for number in rows.order:
        text = texts[number]
        pieces = [next(joined) for _ in range(-(-len(text) // rows.row_characters))]
        assert "".join(pieces) == text
    assert next(joined, None) is None


def test_short_documents_share_a_row_and_long_ones_fill_several():
    rows, held = rows_of(["aaaa", "bbbb", "cccc"])
    assert len(rows) == 1 and sorted(held[0]) == ["aaaa", "bbbb", "cccc"]
    rows, held = rows_of(["a" * 30])
    assert [parts[0] for parts in held] == ["a" * 13, "a" * 13, "a" * 4] and rows.row_characters == 13
    assert len(rows_of(["a" * 30], most_rows=2)[0]) == 2


def test_a_row_is_the_same_whenever_it_is_read():
    rows, _ = rows_of(["abc" * 9, "cab", "bca" * 4] * 7)
    again, _ = rows_of(["abc" * 9, "cab", "bca" * 4] * 7)
    assert [rows[i] for i in range(len(rows))] == [again[i] for i in reversed(range(len(again)))][::-1]
    assert [rows[i]["document"] for i in range(len(rows))] == list(range(len(rows)))
    assert rows["length"] == [16] * len(rows)
    other, _ = rows_of(["abc" * 9, "cab", "bca" * 4] * 7, seed=1)
    assert [rows[i]["input_ids"] for i in range(len(rows))] != [other[i]["input_ids"] for i in range(len(other))]


def test_no_row_is_longer_than_the_model_reads():
    """Characters of four bytes: the sample says how many tokens they are."""
    rows, _ = rows_of(["😀" * 50, "é" * 40], length=24)
    assert max(len(rows[i]["input_ids"]) for i in range(len(rows))) <= 24
    assert rows.num_tokens.sum() == pytest.approx(280, abs=2)


def test_nothing_is_read_before_a_row_is_asked_for(monkeypatch):
    texts = [f"{number} " * 20 for number in range(500)]
    rows, _ = rows_of(["a"])
    encoded = []
    monkeypatch.setattr(DocumentEncoder, "join", lambda self, texts, words: encoded.append(texts) or {"input_ids": [1]})
    monkeypatch.setattr("torch_linformer.data.packing._SAMPLED_DOCUMENTS", 2)
    tokenizer = build_tokenizer("bytes", [], max_length=32)
    rows = PackedText(Dataset.from_dict({"text": texts}), DocumentEncoder(tokenizer, 32), packing=True, seed=0)
    assert not encoded
    rows[3], rows[9]
    assert len(encoded) == 2 and all(len("".join(each)) == rows.row_characters for each in encoded)


def test_a_loader_takes_them():
    rows, _ = rows_of(["abc" * 30] * 9)
    batches = list(DataLoader(rows, batch_size=4, collate_fn=lambda batch: [row["document"] for row in batch]))
    assert [row for batch in batches for row in batch] == list(range(len(rows)))


def test_whole_words_need_words():
    with pytest.raises(InputError, match=r"^--whole-words needs a tokenizer that divides text into words; this one"):
        rows_of(["some words of a text " * 3], whole_words=True)
    tokenizer = build_tokenizer("bpe:300", ["some words"], max_length=16)
    documents = Dataset.from_dict({"text": ["some words of a text " * 3]})
    rows = PackedText(documents, DocumentEncoder(tokenizer, 16), packing=True, whole_words=True, seed=0)
    assert len(rows[0]["words"]) == len(rows[0]["input_ids"])


def test_a_row_says_whether_its_last_text_ends_with_it():
    rows, _ = rows_of(["a" * 100], length=64)
    assert [rows[i]["ends"] for i in range(len(rows))] == [False, True] and len(rows[0]["input_ids"]) < 64

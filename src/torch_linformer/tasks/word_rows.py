"""Rows of a search as sparse counts of their words, by the lexical part of vectors, exactly and as its sketch."""

import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import sparse
from sklearn.preprocessing import normalize
from transformers import PreTrainedTokenizerFast

from torch_linformer.models.lexical_vector import LexicalVector


def know_words(lexical: LexicalVector, tokenizer: PreTrainedTokenizerFast) -> None:
    """Tell a lexical part what the tokens of a tokenizer count as, and which of them begin a word.

    Tokens of the same letters count as one, whatever their case and the space before them; special tokens and
    punctuation count for nothing.
    """
    lexical.reset_parameters()
    special, same, size = set(tokenizer.all_special_ids), dict[str, int](), min(len(lexical.counts_as), len(tokenizer))
    decoder, tokens = tokenizer.backend_tokenizer.decoder, tokenizer.convert_ids_to_tokens(list(range(size)))
    texts = tokens if decoder is None else [decoder.decode([token]) for token in tokens]
    plain = next((token for token, text in zip(tokens, texts, strict=True) if text.strip().isalnum()), "")
    for number, (token, text) in enumerate(zip(tokens, texts, strict=True)):
        letters = text.strip().lower()
        if number in special or all(unicodedata.category(letter)[0] in "PZC" for letter in letters):
            continue
        # What is no text of its own, a part of a character, is told apart by the token.
        lexical.counts_as[number] = same.setdefault(token if "\ufffd" in letters else letters, number)
        if decoder is not None:
            lexical.begins[number] = decoder.decode([plain, token])[len(decoder.decode([plain])) :][:1].isspace()


def counts_of(lexical: LexicalVector, rows: Iterable[Sequence[int]]) -> Any:
    """1 + ln of how often each row of token ids has each feature, sparse, ``(rows, features)``."""
    columns = []
    for ids in rows:
        features, real = lexical.features(torch.tensor([list(ids)], dtype=torch.long))
        columns.append(features[real].numpy())
    ends = np.cumsum([0, *map(len, columns)])
    flat = np.concatenate([np.empty(0, dtype=np.int64), *columns])
    counts = sparse.csr_matrix((np.ones(len(flat)), flat, ends), shape=(len(columns), len(lexical.weights)))
    counts.sum_duplicates()
    counts.data = 1 + np.log(counts.data)
    return counts


def word_rows(lexical: LexicalVector, counts: Any) -> Any:
    """x of length 1 of rows with these counts, sparse, ``(rows, features)``: what a sketch is of, with pairs."""
    return normalize(counts.multiply(lexical.weights.double().numpy()).tocsr())


def sketches_of(lexical: LexicalVector, counts: Any) -> Any:
    """What :meth:`LexicalVector.sketch` gives of rows with these counts, sparse, ``(rows, width)``."""
    size, columns = len(lexical.columns), lexical.columns.numpy()
    signed = (lexical.signs * lexical.weights[:size]).double().numpy()
    to_columns = sparse.csr_matrix((signed, (np.arange(size), columns)), shape=(size, lexical.width))
    return normalize(counts.tocsc()[:, :size].tocsr() @ to_columns)

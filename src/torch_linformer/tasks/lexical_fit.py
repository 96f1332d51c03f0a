"""Token ids of documents as what they count as, and how often each document has each of that."""

import unicodedata
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_matrix
from transformers import PreTrainedTokenizerFast

from torch_linformer.models.lexical_parts import NOTHING, LexicalFeatures


def counted(
    lexical: LexicalFeatures, tokenizer: PreTrainedTokenizerFast, documents: Sequence[Sequence[int]]
) -> tuple[np.ndarray, list[np.ndarray]]:
    """What each token id counts as, which ``lexical`` gets to know, and what the documents have of that."""
    counts_as = _counts_as(tokenizer, len(lexical.counts_as))
    lexical.counts_as.copy_(torch.from_numpy(counts_as))
    rows = (counts_as[np.asarray(document, dtype=np.int64)] for document in documents)
    return counts_as, [tokens[tokens != NOTHING] for tokens in rows]


def _counts_as(tokenizer: PreTrainedTokenizerFast, size: int) -> np.ndarray:
    """The first token of the same letters for every token id; −1 for special tokens and punctuation."""
    decoder, first, special = tokenizer.backend_tokenizer.decoder, dict[str, int](), set(tokenizer.all_special_ids)
    counts_as = np.full(size, NOTHING, dtype=np.int64)
    for number, token in enumerate(tokenizer.convert_ids_to_tokens(list(range(min(size, len(tokenizer)))))):
        letters = (token if decoder is None else decoder.decode([token])).strip().lower()
        if number not in special and any(unicodedata.category(letter)[0] not in "PZC" for letter in letters):
            # What is no text of its own, a part of a character, is told apart by the token.
            counts_as[number] = first.setdefault(token if "\ufffd" in letters else letters, number)
    return counts_as


def counts_of(lexical: LexicalFeatures, documents: Sequence[np.ndarray]) -> Any:
    """How often each document has each feature, ``(documents, features)``."""
    columns = []
    for tokens in documents:
        ids = torch.from_numpy(tokens)[None]
        features, known = lexical.features(ids, torch.ones_like(ids, dtype=torch.bool))
        columns.append(features[known].numpy())
    ends = np.cumsum([0, *map(len, columns)])
    flat = np.concatenate(columns)
    counts = csr_matrix((np.ones(len(flat)), flat, ends), shape=(len(columns), len(lexical.idf)))
    counts.sum_duplicates()
    return counts

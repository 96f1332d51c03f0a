"""The words of documents as a lexical head counts them: the spelling of tokens, the features, and their TF-IDF."""

import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import TfidfTransformer
from sklearn.preprocessing import normalize
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.words import has_no_spaces
from torch_linformer.models.lexical_head import (
    CHARACTERS,
    KINDS,
    NOTHING,
    PAIR,
    PRIME,
    WORD,
    LexicalHead,
)
from torch_linformer.tasks.linear_classifiers import MANY_DOCUMENTS, MAX_COEFFICIENTS

MOST_FEATURES = 200_000
SHORT = 1_000  # characters on average, up to which n-grams are tried: those of longer texts take long to count
PART = "\ufffd"  # what a token that is only a part of a character is decoded as
TOGETHER = 65_536  # tokens whose words are counted at once, padding included
WORDS, PAIRS, GRAMS = "words", "words and pairs of words", "words, pairs and n-grams of characters"
KINDS_OF = {WORDS: (WORD,), PAIRS: (WORD, PAIR), GRAMS: (WORD, PAIR, CHARACTERS)}


class WordFeatures(NamedTuple):
    """What a head counts: codes ``(F,)``, rising, their idf ``(F,)``, and x of each document, ``(documents, F)``."""

    codes: np.ndarray
    idf: np.ndarray
    x: Any


class WordCounts:
    """How often documents have each word, pair of words and n-gram of characters.

    Args:
        tokenizer: of the documents.
        vocab_size: token ids of the model.
        documents: token ids of whole documents.
        known: how many of the documents, the first ones, say which features there are.
        characters: whether n-grams are counted.

    Attributes:
        spelled: a head without features, to whose tokens the tokenizer's letters are given.
        codes: of what enough of the known documents have, rising.
        counts: ``(documents, codes)``.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        vocab_size: int,
        documents: Sequence[Sequence[int]],
        known: int,
        *,
        characters: bool,
    ) -> None:
        self.spelled, self.known = _spelled(tokenizer, vocab_size, characters), known
        codes: list[Any] = [None] * len(documents)
        order = sorted(range(len(documents)), key=lambda number: len(documents[number]))
        while order:
            rows = max(1, TOGETHER // max(1, len(documents[order[-1]])))
            batch, order = order[-rows:], order[:-rows]
            ids = [torch.tensor(documents[number], dtype=torch.long) for number in batch]
            words = self.spelled.words(pad_sequence(ids, batch_first=True, padding_value=NOTHING))
            for number, row, real in zip(batch, words.codes, words.real, strict=True):
                codes[number] = np.unique(row[real].numpy(), return_counts=True)
        kept, having = np.unique(np.concatenate([of for of, _ in codes[:known]]), return_counts=True)
        self.codes = kept[having >= (2 if known >= MANY_DOCUMENTS else 1)]
        if not len(self.codes):  # only how frequent the labels are can be learned
            self.codes = np.array([NOTHING])
        lengths = np.cumsum([0, *(len(of) for of, _ in codes)])
        every, numbers = (np.concatenate(column) for column in zip(*codes, strict=True))
        places = np.searchsorted(self.codes, every).clip(max=len(self.codes) - 1)
        found = self.codes[places] == every
        ends = np.concatenate([[0], np.cumsum(found)])[lengths]
        shape = (len(documents), len(self.codes))
        self.counts = csr_matrix((numbers[found].astype(np.float64), places[found], ends), shape=shape)

    def features(self, kind: str, labels: int) -> WordFeatures:
        """Those of a kind of :data:`KINDS_OF`, no more than a head for so many labels has room for: the most usual."""
        is_of_kind = np.isin(self.codes % KINDS, KINDS_OF[kind])
        order = np.argsort(-self.counts[: self.known].getnnz(axis=0) * is_of_kind, kind="stable")
        most = min(np.count_nonzero(is_of_kind), MOST_FEATURES, MAX_COEFFICIENTS // labels)
        chosen = np.sort(order[: max(1, most)])
        counts, codes = self.counts[:, chosen], self.codes[chosen]
        weighting = TfidfTransformer(norm=None, sublinear_tf=True).fit(counts[: self.known])
        x = weighting.transform(counts)
        blocks = [x.multiply(of_kind).tocsr() for of_kind in (codes % KINDS != CHARACTERS, codes % KINDS == CHARACTERS)]
        return WordFeatures(codes, weighting.idf_, sum(map(normalize, blocks)).tocsr())

    @torch.no_grad()
    def head(self, features: WordFeatures, weight: np.ndarray, bias: np.ndarray) -> LexicalHead:
        """The head that gives documents ``x @ weight.T + bias``."""
        spelled = self.spelled
        has_grams = bool((features.codes % KINDS == CHARACTERS).any()) and spelled.letters is not None
        letters = spelled.letters.shape[1] if has_grams else 0
        head = LexicalHead(len(spelled.spelling), len(features.codes), len(bias), letters)
        for name in ("spelling", "sizes", "joins", *["letters"] * has_grams):
            getattr(head, name).copy_(getattr(spelled, name))
        fitted = {"codes": features.codes, "idf": features.idf, "weight": weight.T, "bias": bias}
        for name, values in fitted.items():
            getattr(head, name).copy_(torch.from_numpy(np.ascontiguousarray(values)))
        return head


@torch.no_grad()
def _spelled(tokenizer: PreTrainedTokenizerFast, vocab_size: int, characters: bool) -> LexicalHead:
    """A head without features that knows the letters of each token, and which tokens are joined to a word.

    A token is joined to the one before it where the tokenizer writes no space between them. Characters of scripts
    without spaces are words of their own, and so are tokens that are only a part of a character.
    """
    tokens = tokenizer.convert_ids_to_tokens(list(range(min(vocab_size, len(tokenizer)))))
    special, backend = set(tokenizer.all_special_ids), tokenizer.backend_tokenizer
    decoder, prefix = backend.decoder, getattr(backend.model, "continuing_subword_prefix", None) or ""

    def write(*parts: str) -> str:
        return " ".join(parts) if decoder is None else str(decoder.decode(list(parts)))

    texts = [write(token) for token in tokens]
    letters = [
        "" if number in special else "".join(filter(_is_counted, text.lower())) for number, text in enumerate(texts)
    ]
    lettered = [number for number in range(len(tokens)) if letters[number]]

    def is_joined(token: str, other: str) -> bool:
        first, second = write(token).strip(), write(other).strip().removeprefix(prefix)
        return write(token, other).strip().endswith(first + second)

    # Of two tokens that are joined the first lets itself be gone on with, and the second goes on.
    before, after = tokens[lettered[0]] if lettered else "", tokens[lettered[-1]] if lettered else ""
    after = next((tokens[number] for number in lettered if is_joined(before, tokens[number])), after)
    before = next((tokens[number] for number in lettered if is_joined(tokens[number], after)), before)
    longest = max(map(len, letters), default=0) if characters else 0
    head = LexicalHead(vocab_size, 1, 1, longest)
    spelling, sizes, joins = head.spelling.numpy(), head.sizes.numpy(), head.joins.numpy()
    powers = head.powers.tolist()
    for number in lettered:
        token, text = tokens[number], letters[number]
        if PART in texts[number]:
            text = token
        elif not has_no_spaces(text):
            written = texts[number].strip().removeprefix(prefix)
            joins[0, number] = _is_counted(written[0]) and is_joined(before, token)
            joins[1, number] = _is_counted(written[-1]) and is_joined(token, after)
        spelling[number] = sum(ord(letter) * power for letter, power in zip(text, powers, strict=False)) % PRIME
        sizes[number] = len(text)
        if longest:
            head.letters[number, : len(letters[number])] = torch.tensor([ord(letter) for letter in letters[number]])
    return head


def _is_counted(character: str) -> bool:
    """Whether a character is a letter, a digit, or a mark on one."""
    return unicodedata.category(character)[0] in "LNM"

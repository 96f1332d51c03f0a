"""Text for pretraining as rows of one length, and documents cut to one length."""

from collections.abc import Iterator
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
import torch
from datasets import Dataset
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError

_SAMPLED_DOCUMENTS, _SAMPLED_CHARACTERS = 256, 20_000  # to estimate how many characters a token stands for
_FILLED = 0.95  # mean share of a row that its text fills: tokens beyond a full row are cut off
_LONGEST_MEAN_WORD = 20  # tokens; a tokenizer that does not find words takes a whole text for one


class PackedText(torch.utils.data.Dataset[dict[str, Any]]):
    """All the text of some documents, as rows of about ``max_length`` tokens.

    The documents are concatenated in an order drawn by the seed, with the special tokens that separate two texts
    between them, and cut into rows of equally many characters. So short documents share a row, in which they see each
    other (the slots of a row mix them), and long ones fill several. Without ``packing`` every row holds text of only
    one document. In memory there is only one number for each document.

    Args:
        documents: memory-mapped, with a column "text".
        encoder: makes the rows of token ids.
        packing: let documents share rows.
        whole_words: also give the word that each token belongs to.
        seed: of the order.
        most_rows: rows at most; the others are left out.
    """

    def __init__(
        self,
        documents: Dataset,
        encoder: DocumentEncoder,
        *,
        packing: bool,
        whole_words: bool = False,
        seed: int,
        most_rows: int | None = None,
    ) -> None:
        self.documents, self.encoder, self.whole_words = documents, encoder, whole_words
        self.order = np.random.default_rng(seed).permutation(len(documents))
        self.characters = _characters(documents)
        tokens, words, characters = self._sample()
        if whole_words and tokens > _LONGEST_MEAN_WORD * words:
            raise InputError("--whole-words needs a tokenizer that divides text into words; this one does not")
        self.characters_per_token = characters / max(1, tokens)
        self.row_characters = max(1, int(_FILLED * encoder.room * self.characters_per_token))
        self.ends = self.characters[self.order].cumsum()
        if not packing:  # the rest of a document's last row stays empty
            self.ends = (-(-self.characters[self.order] // self.row_characters) * self.row_characters).cumsum()
        rows = max(1, -(-int(self.ends[-1]) // self.row_characters))
        self.rows = rows if most_rows is None else min(rows, most_rows)

    @property
    def num_tokens(self) -> npt.NDArray[np.int64]:
        """Tokens of each document, estimated from its characters."""
        return np.ceil(self.characters / self.characters_per_token).astype(np.int64)

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, row: int | str) -> Any:
        """A row; or, as of a ``Dataset``, the column "length", which is about the same in all rows.

        "ends" is true where the last document ends in the row; a completely full row may have been cut.
        """
        if isinstance(row, str):
            return [self.encoder.max_length] * self.rows
        spans = list(self._spans(int(row)))
        texts = [cast(str, self.documents[int(self.order[place])]["text"])[start:end] for place, start, end in spans]
        joined = self.encoder.join(texts, self.whole_words)
        last, _, end = spans[-1]
        whole = end >= self.characters[self.order[last]] and len(joined["input_ids"]) < self.encoder.max_length
        return {**joined, "document": int(row), "ends": bool(whole)}

    def _spans(self, row: int) -> Iterator[tuple[int, int, int]]:
        """(place in the order, first character, the row's end in characters of that document) of a row's documents."""
        begin, end = row * self.row_characters, (row + 1) * self.row_characters
        place = int(np.searchsorted(self.ends, begin, side="right"))
        while place < len(self.ends) and begin < end:
            first = int(self.ends[place - 1]) if place else 0
            yield place, begin - first, end - first
            begin = int(self.ends[place])
            place += 1

    def _sample(self) -> tuple[int, int, int]:
        """Tokens, words and characters of some documents' beginnings."""
        sample = self.documents.select(np.sort(self.order[:_SAMPLED_DOCUMENTS]))
        texts = [text[:_SAMPLED_CHARACTERS] for text in sample["text"]]
        counts = [self.encoder.count(text) for text in texts]
        return sum(tokens for tokens, _ in counts), sum(words for _, words in counts), sum(map(len, texts))


def _characters(documents: Dataset) -> npt.NDArray[np.int64]:
    """Characters of each document, counted batch by batch."""
    batches = documents.select_columns("text").with_format("arrow").iter(batch_size=1000)
    return np.concatenate([pc.utf8_length(batch["text"]).to_numpy() for batch in batches]).astype(np.int64)


class Beginnings(NamedTuple):
    """Documents cut to exactly ``length`` tokens, special tokens included.

    ``documents`` are ``(length,)`` token ids each; ``shorter`` counts those passed over for having fewer tokens.
    """

    length: int
    documents: list[Tensor]
    shorter: int

    def describe(self, documents: int) -> str:
        """Their numbers in a sentence."""
        number = f"{len(self.documents):,} document{'' if len(self.documents) == 1 else 's'}"
        few = "" if len(self.documents) == documents else f" of the {documents:,} asked for"
        return f"{number}{few} of {self.length:,} tokens; {self.shorter:,} shorter ones passed over"


def beginnings(
    tokenizer: PreTrainedTokenizerBase, dataset: Dataset, length: int, number: int, seed: int = 0
) -> Beginnings:
    """The beginnings of ``number`` documents of at least ``length`` tokens, in a random order that the seed decides."""
    documents: list[Tensor] = []
    shorter = 0
    for index in np.random.default_rng(seed).permutation(len(dataset)):
        ids = tokenizer(dataset[int(index)]["text"], truncation=True, max_length=length)["input_ids"]
        if len(ids) < length:
            shorter += 1
            continue
        documents.append(torch.tensor(ids))
        if len(documents) == number:
            break
    if not documents:
        raise InputError(
            f"--length {length}: none of the {len(dataset):,} documents has that many tokens; take a shorter length"
        )
    return Beginnings(length, documents, shorter)

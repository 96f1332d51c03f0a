"""Documents as windows of token ids: the beginning of each that a model reads at once, or all of it in pieces."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.data_options import OVERFLOW
from torch_linformer.data.reading.documents import quiet
from torch_linformer.data.reading.rows import is_seen
from torch_linformer.errors import InputError

_TOGETHER = 64  # documents looked at; each may be a book
_BATCH_BYTES = 4_000_000  # text per batch; an encoding takes about a hundred bytes of memory a token
_GLANCE = 64  # characters
MANY_TEXTS = 100_000  # of which
NEARLY_ALL = 0.95  # may have
FEW_TOKENS = 30  # each, as lines of longer texts have
_BEYOND = 32  # tokens before a cut that may not be those of the whole text


class DocumentEncoder:
    """Turns texts into windows of at most `max_length` token ids, with the special tokens kept at both ends.

    Args:
        tokenizer: is not changed; the encoder works on a copy.
        max_length: tokens of a window at most, special tokens included.
        overflow: "cut" makes one window of a text and leaves out what does not fit; "windows" makes as many as the
            text needs.
        stride: tokens that neighboring windows share; a quarter of `max_length` if None.
        offsets: also give the characters of the text that each token stands for.
        whole: also give all ids of a text that is cut.
        prompt: stands before each text, and its tokens before each window; not with questions.

    Attributes:
        marks: ids of the special tokens before and after a text.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        max_length: int,
        *,
        overflow: str = "cut",
        stride: int | None = None,
        offsets: bool = False,
        whole: bool = False,
        prompt: str = "",
    ) -> None:
        if overflow not in OVERFLOW:
            raise InputError(f"--overflow must be one of {', '.join(OVERFLOW)}, got {overflow!r}")
        self.max_length, self.overflow, self.offsets, self.prompt = max_length, overflow, offsets, prompt
        self.whole = whole and overflow == "cut"
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True  # which means: split them like any other text
        self.marks = _special_ids(self._backend, 1)
        self._around_two = _special_ids(self._backend, 2)
        # Its last space becomes a part of the text's first token.
        self.prompt_tokens = len(self.ids([prompt.rstrip()])[0])
        self.room = max_length - sum(map(len, self.marks)) - self.prompt_tokens
        if self.room < 1:
            beside = f"the special tokens and the prompt {prompt!r}" if prompt else "the special tokens"
            raise InputError(f"{max_length} tokens leave no room for text beside {beside}; allow more")
        if stride is not None and overflow != "windows":
            raise InputError(f"--stride {stride} goes with --overflow windows: leave it out, or give that too")
        self.stride = self.room // 4 if stride is None else stride
        if overflow == "windows" and not 0 <= self.stride < self.room:
            raise InputError(f"--stride {self.stride} leaves no new tokens to a window of {self.room}; take fewer")

    def __call__(
        self, texts: Sequence[str], questions: Sequence[str] | None = None, first: int = 0
    ) -> dict[str, list[Any]]:
        """The windows of the texts as columns, in the order of the texts, which are numbered from `first`.

        A question before each text, if there are any, is cut to half of `max_length`.

        Returns:
            `document` (its number), `input_ids`, `length` (how many), `num_tokens` of the whole document (special
            tokens included), `text_from` (how many ids stand before the text), with `offsets` the lists `starts`
            and `ends`, in characters, of the window's tokens of text, and with `whole` the list `whole_ids` of a
            document that is cut, empty for others.
        """
        rows: list[dict[str, Any]] = []
        encodings = self._encode([self.prompt + text for text in texts], fast=not self.offsets)
        asked: list[Any] = [None] * len(texts) if questions is None else self._encode(questions, fast=True)
        for number, (encoding, question) in enumerate(zip(encodings, asked, strict=True), start=first):
            before, after = self.marks if question is None else self._around(question.ids)
            before, of_text = before + encoding.ids[: self.prompt_tokens], encoding.ids[self.prompt_tokens :]
            around = len(before) + len(after)
            for begin, end in self._spans(len(of_text), self.max_length - around):
                ids = before + of_text[begin:end] + after
                row = {"document": number, "input_ids": ids, "length": len(ids), "text_from": len(before)}
                row["num_tokens"] = len(of_text) + around
                if self.whole:
                    row["whole_ids"] = before + of_text + after if end < len(of_text) else []
                if self.offsets:
                    places = encoding.offsets[self.prompt_tokens + begin : self.prompt_tokens + end]
                    row["starts"], row["ends"] = (
                        [max(0, place[side] - len(self.prompt)) for place in places] for side in (0, 1)
                    )
                rows.append(row)
        return {name: [row[name] for row in rows] for name in self.features}

    def join(self, texts: Sequence[str], whole_words: bool = False) -> dict[str, list[int]]:
        """Several texts as one row, separated as a question and its text are: `input_ids`.

        With `whole_words` also `words`, the number of the word that each id belongs to, −1 for none. What is beyond
        `max_length` is cut off.
        """
        before, between, after = self._around_two
        ids, words = list(before), [-1] * len(before)
        for number, encoding in enumerate(self._encode(texts, fast=not whole_words)):
            if number:
                ids += between
                words += [-1] * len(between)
            ids += encoding.ids
            if whole_words:
                base = max(words, default=-1) + 1
                words += [-1 if word is None else base + word for word in encoding.word_ids]
        kept = self.max_length - len(after)
        row = {"input_ids": ids[:kept] + after}
        return {**row, "words": words[:kept] + [-1] * len(after)} if whole_words else row

    def begin(self, text: str) -> list[int]:
        """The ids of a text to be continued: all of it, after the special tokens that begin a text."""
        return [*self.marks[0], *self.ids([text])[0]]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """All ids of each text, without special tokens."""
        return [encoding.ids for encoding in self._encode(texts, fast=True)]

    def reads(self, texts: Sequence[str]) -> list[bool]:
        """Whether each text has something to read: a character that is seen, and a token that is not special."""
        begun = self.ids([text[:_GLANCE] for text in texts])  # which is enough for nearly all
        return [is_seen(text) and bool(ids or self.ids([text])[0]) for text, ids in zip(texts, begun, strict=True)]

    def beginning(self, text: str, tokens: int, characters: int) -> str | None:
        """The beginning of a text, of so many characters at most, whose first `tokens` ids are those of the whole text.

        It ends between words: pieces of a word may depend on all of it. None where these characters have too few tokens
        before their last word. The time does not depend on the length of the text.
        """
        if len(text) <= characters:
            return text
        (encoding,) = self._encode([text[:characters]], fast=False)
        words = encoding.word_ids
        last = words.index(words[-1]) if words else 0  # this word may go on, and then have other tokens
        return text[: encoding.offsets[last][0]] if last >= tokens + _BEYOND else None

    def count(self, text: str) -> tuple[int, int]:
        """Tokens and words of a text."""
        (encoding,) = self._encode([text], fast=False)
        return len(encoding.ids), len(set(encoding.word_ids))

    @cached_property
    def features(self) -> Features:
        """The columns of the windows and their types."""
        ints = {"document": "int64", "length": "int32", "num_tokens": "int64", "text_from": "int32"}
        lists = {"input_ids": "int32", **({"whole_ids": "int32"} if self.whole else {})}
        lists |= {"starts": "int64", "ends": "int64"} if self.offsets else {}
        return Features(
            {name: Value(kind) for name, kind in ints.items()}
            | {name: ListOf(Value(kind)) for name, kind in lists.items()}
        )

    @property
    def fingerprint(self) -> str:
        """Differs whenever the windows might: with another version of this file or of the tokenizers, too."""
        code = [Path(__file__).read_text(encoding="utf-8"), tokenizers.__version__]
        parts = [*code, self._backend.to_str(), self.max_length, self.overflow, self.stride, self.offsets, self.whole]
        return str(Hasher.hash([*parts, self.prompt]))

    def _encode(self, texts: Sequence[str], fast: bool) -> list[Any]:
        """Encodings; fast ones know neither places nor words."""
        encode = self._backend.encode_batch_fast if fast else self._backend.encode_batch
        return encode(list(texts), add_special_tokens=False)

    def _around(self, question: list[int]) -> tuple[list[int], list[int]]:
        """The ids before and after a text with a question."""
        start, between, after = self._around_two
        room = self.max_length - len(start) - len(between) - len(after)
        return start + question[: room // 2] + between, after

    def _spans(self, length: int, room: int) -> Iterator[tuple[int, int]]:
        """Begin and end, in the tokens of a text of `length`, of each window of `room`."""
        if self.overflow == "cut" or length <= room:
            yield 0, min(length, room)
            return
        stride = min(self.stride, room - 1)
        for begin in range(0, length - stride, room - stride):
            yield begin, min(length, begin + room)


def document_means(values: Any, windows: Mapping[str, Any]) -> np.ndarray:
    """The mean of the values of each document's windows, each weighted by its tokens: a row for each document."""
    numbers, tokens = np.asarray(windows["document"][:]), np.asarray(windows["length"][:], dtype=np.float64)
    share = tokens / np.bincount(numbers, tokens)[numbers]
    array = np.asarray(values, dtype=np.float64)
    means = np.zeros((numbers.max() + 1, *array.shape[1:]))
    np.add.at(means, numbers, array * share.reshape(-1, *[1] * (array.ndim - 1)))
    return means


def tokenize_documents(documents: Dataset, encoder: DocumentEncoder) -> Dataset:
    """The windows of some documents (see `DocumentEncoder`), memory-mapped.

    They are found in the cache when the same documents come with the same tokenizer.
    """
    bytes_per_row = documents.data.nbytes // max(1, documents.data.num_rows) + 1
    inputs = [name for name in ("text", "question") if name in documents.column_names]

    def encode(texts: list[str], *rest: Any) -> dict[str, list[Any]]:
        return encoder(texts, rest[0] if "question" in inputs else None, first=rest[-1][0])

    with quiet():
        return documents.map(
            encode,
            input_columns=inputs,
            with_indices=True,
            remove_columns=documents.column_names,
            features=encoder.features,
            batched=True,
            batch_size=min(1000, _BATCH_BYTES // bytes_per_row + 1),
            # Hashed here, because the default hashes the encoder by pickling it, which is not stable.
            new_fingerprint=Hasher.hash([documents._fingerprint, encoder.fingerprint]),
        )


def with_text(documents: Dataset, encoder: DocumentEncoder, say: Callable[[str], object]) -> Dataset:
    """The documents that `DocumentEncoder.reads`; ``say`` is told how many have no text to it."""
    batches = documents.select_columns("text").iter(_TOGETHER)
    read = np.flatnonzero([kept for batch in batches for kept in encoder.reads(batch["text"])])
    if len(read) == len(documents):
        return documents
    if not len(read):
        raise InputError(f"no document has any text: to this tokenizer all {len(documents):,} are empty")
    missing = len(documents) - len(read)
    say(f"skipped {missing:,} document{'s' * (missing > 1)} without text: the tokenizer has no token for it")
    return documents.select(read)


def ask_of_lines(texts: int, num_tokens: Any, *, first: bool = False) -> list[str]:
    """A question where nearly all of very many texts are short, as lines are; posts are, too.

    ``num_tokens`` are those of all of them, or of many; ``first`` if there may be more texts than these.
    """
    tokens = np.asarray(num_tokens)
    if texts < MANY_TEXTS or (tokens < FEW_TOKENS).mean() < NEARLY_ALL:
        return []
    count = f"{'the first ' if first else ''}{texts:,} texts, median {np.median(tokens):,.0f} tokens"
    remedy = "if not, --delimiter and --quoting name how a table of longer documents is divided"
    return [f"{count}: is each line a document? {remedy}"]


def _special_ids(tokenizer: Tokenizer, texts: int) -> tuple[list[int], ...]:
    """The special tokens that the post-processor puts before, between and after one or two texts of one token."""
    probe = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    if tokenizer.post_processor is not None:
        probe.post_processor = tokenizer.post_processor
    encoding = probe.encode("x", "x" if texts == 2 else None)
    parts: list[list[int]] = [[]]
    for token, special in zip(encoding.ids, encoding.special_tokens_mask, strict=True):
        if special:
            parts[-1].append(token)
        else:
            parts.append([])
    return tuple(parts)

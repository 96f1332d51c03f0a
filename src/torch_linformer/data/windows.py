"""Documents as windows of token ids: as much of each as a model reads at once, or all of it, piece after piece."""

from collections.abc import Iterator, Sequence
from typing import Any

from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.overflow import OVERFLOW
from torch_linformer.data.reading.documents import quiet
from torch_linformer.errors import InputError

_BATCH_BYTES = 4_000_000  # text per batch; an encoding takes about a hundred bytes of memory a token


class DocumentEncoder:
    """Turns texts into windows of at most `max_length` token ids, with the special tokens kept at both ends.

    Args:
        tokenizer: left as it is; the encoder works on a copy.
        max_length: the tokens a window may have, special tokens included.
        overflow: "cut" makes one window of a text and leaves out what does not fit; "windows" makes as many as the
            text needs.
        stride: tokens that neighbouring windows share; a quarter of `max_length` if None.
        offsets: also say which characters of the text each token stands for.

    Attributes:
        marks: ids of the special tokens before a text, and behind it.

    Raises:
        InputError: `max_length` leaves no room beside the special tokens, or `stride` none for new tokens.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerFast,
        max_length: int,
        *,
        overflow: str = "cut",
        stride: int | None = None,
        offsets: bool = False,
    ) -> None:
        if overflow not in OVERFLOW:
            raise InputError(f"--overflow must be one of {', '.join(OVERFLOW)}, got {overflow!r}")
        self.max_length, self.overflow, self.offsets = max_length, overflow, offsets
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True  # which means: split them like any other text
        self.marks = _special_ids(self._backend, 1)
        self._after_question = _special_ids(self._backend, 2)
        self.room = max_length - sum(map(len, self.marks))
        if self.room < 1:
            raise InputError(f"{max_length} tokens leave no room for text beside the special tokens; allow more")
        self.stride = self.room // 4 if stride is None else stride
        if overflow == "windows" and not 0 <= self.stride < self.room:
            raise InputError(f"--stride {self.stride} leaves no new tokens to a window of {self.room}; take fewer")

    def __call__(self, texts: Sequence[str], questions: Sequence[str] | None = None, first: int = 0) -> dict[str, list]:
        """Return the windows of the texts as columns, in the order of the texts.

        Args:
            texts: the documents.
            questions: one before each text, if there are any, cut to half of `max_length`.
            first: number of the first text.

        Returns:
            `document` (its number), `input_ids`, `length` (how many), `num_tokens` of the whole document (special
            tokens included), `text_from` (how many ids stand before the text), and with `offsets` the lists `starts`
            and `ends`, in characters, of the window's tokens of text.
        """
        columns: dict[str, list] = {name: [] for name in self.features}
        encodings = self._encode(texts, fast=not self.offsets)
        prefixes: list[Any] = [None] * len(texts) if questions is None else self._encode(questions, fast=True)
        for number, (encoding, prefix) in enumerate(zip(encodings, prefixes, strict=True), start=first):
            if prefix is None:
                before, after = self.marks
            else:
                start, between, after = self._after_question
                room = self.max_length - len(start) - len(between) - len(after)
                before = start + prefix.ids[: room // 2] + between
            room = self.max_length - len(before) - len(after)
            for begin, end in self._spans(len(encoding.ids), room):
                ids = before + encoding.ids[begin:end] + after
                columns["document"].append(number)
                columns["input_ids"].append(ids)
                columns["length"].append(len(ids))
                columns["num_tokens"].append(len(encoding.ids) + len(before) + len(after))
                columns["text_from"].append(len(before))
                if self.offsets:
                    columns["starts"].append([place[0] for place in encoding.offsets[begin:end]])
                    columns["ends"].append([place[1] for place in encoding.offsets[begin:end]])
        return columns

    def join(self, texts: Sequence[str], whole_words: bool = False) -> dict[str, list[int]]:
        """Several texts as one row, divided as a question and its text are: `input_ids`.

        With `whole_words` also `words`, the number of the word that each stands for, −1 for none. What is beyond
        `max_length` is cut off.
        """
        before, between, after = self._after_question
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
        """The ids of a text that goes on: all of it, behind what stands before a text."""
        (encoding,) = self._encode([text], fast=True)
        return [*self.marks[0], *encoding.ids]

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of texts, all of each, with no special tokens around them."""
        return [encoding.ids for encoding in self._encode(texts, fast=True)]

    def count(self, text: str) -> tuple[int, int]:
        """Tokens and words of a text."""
        (encoding,) = self._encode([text], fast=False)
        return len(encoding.ids), len(set(encoding.word_ids))

    @property
    def features(self) -> Features:
        """The columns of the windows and their types."""
        ints = {"document": "int64", "length": "int32", "num_tokens": "int64", "text_from": "int32"}
        columns: dict[str, Any] = {name: Value(kind) for name, kind in ints.items()}
        columns["input_ids"] = ListOf(Value("int32"))
        if self.offsets:
            columns |= {"starts": ListOf(Value("int64")), "ends": ListOf(Value("int64"))}
        return Features(columns)

    @property
    def fingerprint(self) -> str:
        """Differs whenever the windows might."""
        return Hasher.hash([self._backend.to_str(), self.max_length, self.overflow, self.stride, self.offsets])

    def _encode(self, texts: Sequence[str], fast: bool) -> list[Any]:
        """Encodings; fast ones know neither places nor words."""
        encode = self._backend.encode_batch_fast if fast else self._backend.encode_batch
        return encode(list(texts), add_special_tokens=False)

    def _spans(self, length: int, room: int) -> Iterator[tuple[int, int]]:
        """Which tokens of a text of `length` stand in each window of `room`."""
        if self.overflow == "cut" or length <= room:
            yield 0, min(length, room)
            return
        stride = min(self.stride, room - 1)
        for begin in range(0, length - stride, room - stride):
            yield begin, min(length, begin + room)


def tokenize_documents(documents: Dataset, encoder: DocumentEncoder) -> Dataset:
    """The windows of some documents (see `DocumentEncoder`), memory-mapped.

    They are found in the cache when the same documents come with the same tokenizer.
    """
    bytes_per_row = documents.data.nbytes // max(1, documents.data.num_rows) + 1
    asked = "question" in documents.column_names

    def encode(texts: list[str], *rest: list) -> dict[str, list]:
        questions, numbers = (rest[0] if asked else None), rest[-1]
        return encoder(texts, questions, first=numbers[0])

    with quiet():
        return documents.map(
            encode,
            input_columns=["text", "question"] if asked else ["text"],
            with_indices=True,
            remove_columns=documents.column_names,
            features=encoder.features,
            batched=True,
            batch_size=min(1000, _BATCH_BYTES // bytes_per_row + 1),
            # Hashed here, because the default hashes the encoder by pickling it, which is not stable.
            new_fingerprint=Hasher.hash([documents._fingerprint, encoder.fingerprint]),
        )


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

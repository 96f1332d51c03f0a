"""What requests wait in: threads that make windows of their texts, in turns, and one that computes these in batches.

No more of a text is tokenized than is read, and batches hold windows of similar lengths of all requests.
"""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple, TypeVar

from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.inference.document_model import BATCHES_AHEAD, DocumentModel, Windows

TURN = 16_384  # characters that are tokenized for a request before others have their turn: some 30 ms
CHARS_PER_TOKEN = 8  # first guess, doubled
MAX_CHARS_PER_TOKEN = 64  # then: too long
ALIKE = 1.25  # how many times as long as another a window of the same batch may be (docs/log.md)

T = TypeVar("T")
Prepare = Callable[[Sequence[Document]], Windows]
Check = Callable[[Windows], object]


class Tokenizing:
    """Two threads that tokenize: one for turns of few characters, the other for what cannot be divided into them.

    What a request costs depends on the tokens that it may have, never on the length of its texts.
    """

    def __init__(self) -> None:
        self._short, self._long = ThreadPoolExecutor(1, "tokenizer"), ThreadPoolExecutor(1, "tokenizer-long")

    async def windows(
        self, encode: DocumentEncoder, prepare: Prepare, documents: Sequence[Document], max_tokens: int, check: Check
    ) -> tuple[list[Document], Windows]:
        """The documents without what is not read of them, and their windows.

        The documents are of one request, with the same question if any, which may have ``max_tokens`` where all of a
        text is read; ``check`` is given the windows of each turn, and raises where they are too many. A document of
        which `MAX_CHARS_PER_TOKEN` a token are not enough counts as one of a token more than it may have.
        """
        cuts = encode.overflow == "cut" and not encode.whole
        tokens = encode.max_length if cuts else max_tokens
        question = documents[0].question
        if question is not None:
            question, _ = await self._beginning(encode, question, encode.max_length)
        read, turn, unread, parts = list[Document](), list[Document](), set[int](), list[Windows]()
        characters = 0
        for number, document in enumerate(documents):
            text, decided = await self._beginning(encode, document.text, tokens)
            turn.append(document._replace(text=text, question=question))
            unread |= set() if decided else {number}
            characters += len(text) + len(question or "")
            if characters < TURN and number + 1 < len(documents):
                continue
            part = await self._run(characters, prepare, turn)
            part["document"] = [len(read) + place for place in part["document"]]
            part["num_tokens"] = [
                max(count, tokens + 1) if place in unread else count
                for place, count in zip(part["document"], part["num_tokens"], strict=True)
            ]
            check(part)
            parts.append(part)
            read += turn
            turn, characters = [], 0
        return read, join_windows(parts)

    async def _beginning(self, encode: DocumentEncoder, text: str, tokens: int) -> tuple[str, bool]:
        """As much of a text as decides its first tokens; or what is read of it, and that it does not decide them."""
        characters = CHARS_PER_TOKEN * tokens
        while len(text) > characters:
            beginning = await self._run(characters, encode.beginning, text, tokens, characters)
            if beginning is not None:
                return beginning, True
            if characters >= MAX_CHARS_PER_TOKEN * tokens:
                return text[:characters], False
            characters *= 2
        return text, True

    async def _run(self, characters: int, function: Callable[..., T], *args: Any) -> T:
        thread = self._short if characters <= 2 * TURN else self._long
        return await asyncio.get_running_loop().run_in_executor(thread, function, *args)


class BatchError(Exception):
    """The model failed at a batch; the cause says how."""


class _Waiting(NamedTuple):
    """A window in the queue, ordered by the first two, and the place for what is read of it."""

    due: int
    number: int
    length: int
    reader: DocumentModel
    window: Windows
    value: asyncio.Future[Any]


class Batcher:
    """One queue and one thread that computes: a batch is what waits when the model is free, never held back for more.

    Every request has an equal share of the model. A window is due when the model has read as many tokens as there were
    in the queue at its arrival, had every open request the same share: a request of few tokens soon, one of many a part
    at a time. The window that is due first goes next, and with it others for the same reader that are due soon and
    nearly as long, because a batch is padded to its longest window.

    A batch has ``batch_size`` windows and ``batch_tokens`` tokens at most, unless one window has more; ``on_batch`` is
    called with how many of both before it is computed, ``on_failure`` with its error where it fails: all of its windows
    get a `BatchError` then.
    """

    def __init__(
        self,
        batch_size: int,
        batch_tokens: float = float("inf"),
        *,
        on_batch: Callable[[int, int], object] = lambda windows, tokens: None,
        on_failure: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        self.batch_size, self.batch_tokens = batch_size, batch_tokens
        self.on_batch, self.on_failure = on_batch, on_failure
        self.waiting = 0  # windows
        self._requests = 0  # with windows in the queue or in work
        self._tokens = 0  # that the model has read
        self._queue: list[_Waiting] = []  # a heap
        self._numbers = itertools.count()
        self._filled = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")

    async def values(self, reader: DocumentModel, windows: Windows) -> list[Any]:
        """What is read of each window of a request; cancelled, those that still wait are not computed."""
        self._requests += 1
        due, loop, asked = self._tokens, asyncio.get_running_loop(), []
        for at, length in enumerate(windows["length"]):
            window = {name: [column[at]] for name, column in windows.items()}
            due += self._requests * length
            asked.append(_Waiting(due, next(self._numbers), length, reader, window, loop.create_future()))
            heapq.heappush(self._queue, asked[-1])
        self.waiting += len(asked)
        self._filled.set()
        try:
            return await asyncio.gather(*(row.value for row in asked))
        finally:
            self._requests -= 1
            for row in asked:
                row.value.cancel()

    async def run(self) -> None:
        """Compute batch after batch until cancelled."""
        try:
            while True:
                await self._filled.wait()
                self._filled.clear()
                while batch := self._next():
                    await self._compute(batch)
        finally:
            self._thread.shutdown(cancel_futures=True)

    async def _compute(self, batch: list[_Waiting]) -> None:
        windows = join_windows([row.window for row in batch])
        tokens = sum(windows["length"])
        self._tokens += tokens
        self.on_batch(len(batch), tokens)
        try:
            values = await asyncio.get_running_loop().run_in_executor(self._thread, batch[0].reader.read, windows)
        except Exception as error:  # whatever a model can raise ends its batch, never the server
            for row in batch:
                if not row.value.done():
                    row.value.set_exception(BatchError(str(error)))
            self.on_failure(error)
            return
        for row, value in zip(batch, values, strict=True):
            if not row.value.done():  # its client may be gone
                row.value.set_result(value)

    def _next(self) -> list[_Waiting]:
        """The windows of the next batch, taken out of the queue; none if none waits."""
        batch: list[_Waiting] = []
        others: list[_Waiting] = []
        longest = 0
        while self._queue and len(batch) < self.batch_size and len(others) < self.batch_size * BATCHES_AHEAD:
            row = heapq.heappop(self._queue)
            if row.value.done():
                self.waiting -= 1
                continue
            first = batch[0] if batch else row
            shorter, longer = sorted((first.length, row.length))
            alike = row.reader is first.reader and longer <= ALIKE * shorter
            padded = max(longest, row.length) * (len(batch) + 1)
            if alike and (not batch or padded <= self.batch_tokens):
                batch.append(row)
                longest = max(longest, row.length)
            else:
                others.append(row)
        for row in others:
            heapq.heappush(self._queue, row)
        self.waiting -= len(batch)
        return batch


def join_windows(parts: Sequence[Windows]) -> Windows:
    """The windows of all parts, one part after the other."""
    return {name: [row for part in parts for row in part[name]] for name in parts[0]}

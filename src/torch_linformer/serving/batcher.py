"""Windows of all requests in one queue, computed in batches of similar lengths."""

import asyncio
import heapq
import itertools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch_linformer.inference.window_reader import BATCHES_AHEAD, Windows, join_windows, split_windows

ALIKE = 1.25  # how many times as long as another a window of the same batch may be (docs/log.md)


class BatchError(Exception):
    """The model failed at a batch; the cause says how."""


class Reader(Protocol):
    """What a model makes of windows: a `WindowReader`."""

    def read(self, windows: Windows) -> Sequence[Any]:
        """What is kept of each window."""


@dataclass(order=True)
class _Waiting:
    """A window in the queue, and the place for what is read of it."""

    due: int
    number: int
    reader: Reader = field(compare=False)
    window: Windows = field(compare=False)
    value: asyncio.Future[Any] = field(compare=False)

    @property
    def length(self) -> int:
        return int(self.window["length"][0])


class Batcher:
    """One queue and one thread that computes: a batch is what waits when the model is free, never held back for more.

    Every request has an equal share of the model. A window is due when the model has read as many tokens as there were
    in the queue at its arrival, had every open request the same share: a request of few tokens soon, one of many a part
    at a time. The window that is due first goes next, and with it others for the same reader that are due soon and
    nearly as long, because a batch is padded to its longest window.

    Args:
        batch_size: windows of a batch at most.
        batch_tokens: tokens of a batch at most, unless one window has more: what a short request may have to wait for.
        on_batch: called with the windows and the real tokens of each batch before it is computed.
        on_failure: called with the error of a batch that failed; all of its windows get a `BatchError`.
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

    async def values(self, reader: Reader, windows: Windows) -> list[Any]:
        """What is read of each window of a request; cancelled, those that still wait are not computed."""
        self._requests += 1
        due, loop, asked = self._tokens, asyncio.get_running_loop(), []
        for window in split_windows(windows):
            due += self._requests * window["length"][0]
            asked.append(_Waiting(due, next(self._numbers), reader, window, loop.create_future()))
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

"""Documents of all requests in one queue, computed in batches of similar lengths."""

import asyncio
import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from torch_linformer.data.reading.streamed import Document
from torch_linformer.inference.window_reader import Windows, join_windows, split_windows

ALIKE = 1.25  # how many times as long as another a document of the same batch may be (docs/log.md)


class BatchError(Exception):
    """The model failed at a batch; the cause says how."""


class Ability(Protocol):
    """What a model does with documents: an `Embedder` or a `TaskPredictor`."""

    def prepare(self, documents: Sequence[Document]) -> Windows:
        """The windows of some documents."""

    def answer(self, documents: Sequence[Document], windows: Windows) -> Iterable[Any]:
        """An answer for each document, from its windows."""


@dataclass(eq=False)
class _Waiting:
    """A document in the queue, and the place for its answer."""

    ability: Ability
    document: Document
    windows: Windows
    answer: asyncio.Future[Any] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @cached_property
    def longest(self) -> int:
        return int(max(self.windows["length"]))

    @property
    def rows(self) -> int:
        return len(self.windows["length"])


class Batcher:
    """One queue and one thread that computes: a batch is what waits when the model is free, never held back for more.

    The document that has waited longest goes next, and with it others for the same ability that have waited longest and
    are nearly as long, because a batch is padded to its longest document.

    Args:
        batch_size: windows of a batch at most, unless one document has more.
        on_batch: called with the documents and the real tokens of each batch before it is computed.
        on_failure: called with the error of a batch that failed; all of its documents get a `BatchError`.
    """

    def __init__(
        self,
        batch_size: int,
        *,
        on_batch: Callable[[int, int], object] = lambda documents, tokens: None,
        on_failure: Callable[[BaseException], object] = lambda error: None,
    ) -> None:
        self.batch_size, self.on_batch, self.on_failure = batch_size, on_batch, on_failure
        self.waiting: dict[int, _Waiting] = {}  # in the order in which they came
        self._numbers = itertools.count()
        self._there = asyncio.Event()
        self._thread = ThreadPoolExecutor(1, "model")

    async def answers(self, ability: Ability, documents: Sequence[Document], windows: Windows) -> list[Any]:
        """The answers to some documents with their windows; cancelled, those that still wait are not computed."""
        asked = [
            _Waiting(ability, document, part)
            for document, part in zip(documents, split_windows(windows, len(documents)), strict=True)
        ]
        for each in asked:
            self.waiting[next(self._numbers)] = each
        self._there.set()
        try:
            return await asyncio.gather(*(each.answer for each in asked))
        finally:
            for each in asked:
                each.answer.cancel()

    async def run(self) -> None:
        """Compute batch after batch until cancelled."""
        try:
            while True:
                await self._there.wait()
                self._there.clear()
                while batch := self._next():
                    await self._compute(batch)
        finally:
            self._thread.shutdown(cancel_futures=True)

    async def _compute(self, batch: list[_Waiting]) -> None:
        ability, documents = batch[0].ability, [each.document for each in batch]
        windows = join_windows([each.windows for each in batch])
        self.on_batch(len(batch), sum(windows["length"]))
        try:
            loop = asyncio.get_running_loop()
            found = await loop.run_in_executor(self._thread, lambda: list(ability.answer(documents, windows)))
        except Exception as error:  # whatever a model can raise ends its batch, never the server
            for each in batch:
                if not each.answer.done():
                    each.answer.set_exception(BatchError(str(error)))
            self.on_failure(error)
            return
        for each, answer in zip(batch, found, strict=True):
            if not each.answer.done():  # its client may be gone
                each.answer.set_result(answer)

    def _next(self) -> list[_Waiting]:
        """The documents of the next batch, taken out of the queue; none if none waits."""
        for number in [number for number, each in self.waiting.items() if each.answer.done()]:
            del self.waiting[number]
        first = next(iter(self.waiting.values()), None)
        if first is None:
            return []
        batch: list[_Waiting] = []
        rows = 0
        for number, each in list(self.waiting.items()):
            shorter, longer = sorted((first.longest, each.longest))
            alike = each.ability is first.ability and longer <= ALIKE * shorter
            if alike and (not batch or rows + each.rows <= self.batch_size):
                batch.append(self.waiting.pop(number))
                rows += each.rows
            if rows >= self.batch_size:
                break
        return batch

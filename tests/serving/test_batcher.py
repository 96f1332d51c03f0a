import asyncio

import pytest

from torch_linformer.data.reading.streamed import Document
from torch_linformer.serving.batcher import Batcher, BatchError


class Lengths:
    """Answers a text with its length, which is its number of tokens, in windows of ten; "bad" fails."""

    def __init__(self):
        self.batches = []

    def prepare(self, documents):
        spans = [
            (number, min(10, len(document.text) - begin))
            for number, document in enumerate(documents)
            for begin in range(0, len(document.text), 10)
        ]
        return {"document": [number for number, _ in spans], "length": [length for _, length in spans]}

    def answer(self, documents, windows):
        self.batches.append([len(document.text) for document in documents])
        if any(document.text == "bad" for document in documents):
            raise RuntimeError("cannot read bad texts")
        lengths = [0] * len(documents)
        for number, length in zip(windows["document"], windows["length"], strict=True):
            lengths[number] += length
        return lengths


async def ask(batcher, ability, *lengths):
    documents = [Document("", "x" * length if isinstance(length, int) else length) for length in lengths]
    return await batcher.answers(ability, documents, ability.prepare(documents))


def served(batch_size, requests, **options):
    """What becomes of requests that are all there before the first batch; and the batches."""

    async def run():
        batcher, ability = Batcher(batch_size, **options), Lengths()
        asked = [asyncio.ensure_future(ask(batcher, ability, *lengths)) for lengths in requests]
        await asyncio.sleep(0)
        computing = asyncio.ensure_future(batcher.run())
        found = await asyncio.gather(*asked, return_exceptions=True)
        while batcher.waiting:
            await asyncio.sleep(0.01)
        computing.cancel()
        return found, ability.batches

    return asyncio.run(run())


def test_batches_hold_documents_of_similar_lengths_and_the_oldest_goes_first():
    requests = [(4,), (1, 8, 9), (2, 4, 3), (5,)]
    found, batches = served(4, requests)
    assert found == [list(lengths) for lengths in requests]
    assert batches == [[4, 4, 5], [1], [8, 9], [2], [3]]


def test_a_document_of_many_windows_is_a_batch_of_its_own():
    found, batches = served(3, [(45,), (10,), (10, 10)])
    assert found == [[45], [10], [10, 10]]
    assert batches == [[45], [10, 10, 10]]


def test_a_batch_that_fails_takes_no_other_with_it():
    failures = []
    found, batches = served(2, [(3,), ("bad",), (30,)], on_failure=failures.append)
    assert batches == [[3, 3], [30]]
    assert [type(each) for each in found[:2]] == [BatchError] * 2 and found[2] == [30]
    assert [str(error) for error in failures] == ["cannot read bad texts"]


def test_the_rest_of_a_request_that_failed_is_not_computed():
    found, batches = served(3, [("bad", *[30] * 20)])
    assert type(found[0]) is BatchError and len(batches) <= 3  # one may have begun before the request is told


def test_documents_whose_client_is_gone_are_not_computed():
    async def run():
        batcher, ability = Batcher(8), Lengths()
        gone, stays = (asyncio.ensure_future(ask(batcher, ability, *lengths)) for lengths in ((5, 6), (7,)))
        await asyncio.sleep(0)
        gone.cancel()
        computing = asyncio.ensure_future(batcher.run())
        assert await stays == [7]
        with pytest.raises(asyncio.CancelledError):
            await gone
        computing.cancel()
        return ability.batches

    assert asyncio.run(run()) == [[7]]


def test_what_comes_while_a_batch_is_computed_makes_the_next():
    sizes = []
    found, _ = served(16, [(1,)] * 40, on_batch=lambda documents, tokens: sizes.append((documents, tokens)))
    assert found == [[1]] * 40 and sizes == [(16, 16), (16, 16), (8, 8)]

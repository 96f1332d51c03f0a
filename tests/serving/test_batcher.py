import asyncio

import pytest

from torch_linformer.serving.queues import Batcher, BatchError


class Lengths:
    """Reads of a window its length; 13 fails."""

    def __init__(self):
        self.batches = []

    def read(self, windows):
        self.batches.append(windows["length"])
        if 13 in windows["length"]:
            raise RuntimeError("cannot read bad texts")
        return windows["length"]


async def ask(batcher, reader, *lengths):
    return await batcher.values(reader, {"length": list(lengths)})


def served(batch_size, requests, *limits, **options):
    """What becomes of requests that are all there before the first batch; and the batches."""

    async def run():
        batcher, reader = Batcher(batch_size, *limits, **options), Lengths()
        asked = [asyncio.ensure_future(ask(batcher, reader, *lengths)) for lengths in requests]
        await asyncio.sleep(0)
        computing = asyncio.ensure_future(batcher.run())
        answers = await asyncio.gather(*asked, return_exceptions=True)
        while batcher.waiting:
            await asyncio.sleep(0.01)
        computing.cancel()
        return answers, reader.batches

    return asyncio.run(run())


def test_batches_hold_windows_of_similar_lengths():
    requests = [(4,), (1, 8, 9), (2, 4, 3), (5,)]
    answers, batches = served(4, requests)
    assert answers == [list(lengths) for lengths in requests]
    assert sorted(map(sorted, batches)) == [[1], [2], [3], [4, 4, 5], [8, 9]]


def test_requests_of_the_same_length_are_answered_as_they_came():
    class Numbers(Lengths):
        def read(self, windows):
            self.batches.append(windows["number"])
            return windows["number"]

    async def run():
        batcher, reader = Batcher(2), Numbers()
        asked = [batcher.values(reader, {"length": [7], "number": [number]}) for number in range(6)]
        computing = asyncio.ensure_future(batcher.run())
        await asyncio.gather(*asked)
        computing.cancel()
        return reader.batches

    assert asyncio.run(run()) == [[0, 1], [2, 3], [4, 5]]


def test_a_short_request_is_not_behind_a_long_one():
    """Of 20 requests of 100 windows, which have come before, one batch at most is computed first."""
    _, batches = served(16, [*[(256,) * 100] * 20, (5,)])
    assert [5] in batches[:2] and sum(map(len, batches)) == 2001


def test_a_long_request_is_not_behind_many_short_ones():
    """While eight clients ask without end, one after the other, it gets its share."""

    async def run():
        batcher, reader = Batcher(4), Lengths()
        computing = asyncio.ensure_future(batcher.run())

        async def client():
            while not long.done():
                await ask(batcher, reader, 10)

        long = asyncio.ensure_future(ask(batcher, reader, *[100] * 20))
        await asyncio.gather(*(client() for _ in range(8)))
        computing.cancel()
        return reader.batches

    batches = asyncio.run(run())
    tokens = {length: sum(batch.count(length) for batch in batches) * length for length in (10, 100)}
    assert tokens[100] == 2000 and tokens[10] < 3 * 8 * 2000


def test_a_batch_has_no_more_tokens_than_it_may():
    """Padded ones; a window that has more by itself is computed all the same."""
    _, batches = served(16, [(10,)] * 7 + [(45,), (11,)], 40)
    assert [45] in batches
    assert all(max(batch) * len(batch) <= 40 for batch in batches if batch != [45])
    assert max(map(len, batches)) == 4


def test_a_batch_that_fails_takes_no_other_with_it():
    failures = []
    answers, batches = served(2, [(3,), (13,), (30,)], on_failure=failures.append)
    assert sorted(batches) == [[3], [13], [30]]
    assert answers[0] == [3] and type(answers[1]) is BatchError and answers[2] == [30]
    assert [str(error) for error in failures] == ["cannot read bad texts"]


def test_the_rest_of_a_request_that_failed_is_not_computed():
    answers, batches = served(3, [(13, *[30] * 20)])
    assert type(answers[0]) is BatchError and len(batches) <= 3  # one may have begun before the request is told


def test_windows_whose_client_is_gone_are_not_computed():
    async def run():
        batcher, reader = Batcher(8), Lengths()
        gone, stays = (asyncio.ensure_future(ask(batcher, reader, *lengths)) for lengths in ((5, 6), (7,)))
        await asyncio.sleep(0)
        gone.cancel()
        computing = asyncio.ensure_future(batcher.run())
        assert await stays == [7]
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert batcher.waiting == 0
        computing.cancel()
        return reader.batches

    assert asyncio.run(run()) == [[7]]


def test_what_comes_while_a_batch_is_computed_makes_the_next():
    sizes = []
    answers, _ = served(16, [(1,)] * 40, on_batch=lambda windows, tokens: sizes.append((windows, tokens)))
    assert answers == [[1]] * 40 and sizes == [(16, 16), (16, 16), (8, 8)]

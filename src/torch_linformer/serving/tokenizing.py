"""The texts of requests as windows of token ids: each request's in turns, and no more of a text than is read."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.inference.window_reader import Windows, join_windows

TURN = 16_384  # characters that are tokenized for a request before others have their turn: some 30 ms
CHARACTERS = 8  # of a token, at first; where a text has longer ones, twice as many until they suffice

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
        self, encode: DocumentEncoder, prepare: Prepare, documents: Sequence[Document], most: int, check: Check
    ) -> tuple[list[Document], Windows]:
        """The documents without what is not read of them, and their windows.

        Args:
            encode: reads the texts, for
            prepare: makes windows of some documents.
            documents: of one request, with the same question if any.
            most: tokens that a request may have, where all of a text is read.
            check: is given the windows of each turn, and raises where they are too many.
        """
        cuts = encode.overflow == "cut" and not encode.whole
        tokens = encode.max_length if cuts else most
        question = documents[0].question
        if question is not None:
            question = await self._beginning(encode, question, encode.max_length)
        read: list[Document] = []
        turn: list[Document] = []
        parts: list[Windows] = []
        characters = 0
        for number, document in enumerate(documents, start=1):
            text = await self._beginning(encode, document.text, tokens)
            turn.append(document._replace(text=text, question=question))
            characters += len(text) + len(question or "")
            if characters < TURN and number < len(documents):
                continue
            part = await self._run(characters, prepare, turn)
            part["document"] = [len(read) + each for each in part["document"]]
            check(part)
            parts.append(part)
            read += turn
            turn, characters = [], 0
        return read, join_windows(parts)

    async def _beginning(self, encode: DocumentEncoder, text: str, tokens: int) -> str:
        """As much of a text as decides its first tokens."""
        characters = CHARACTERS * tokens
        while len(text) > characters:
            beginning = await self._run(characters, encode.beginning, text, tokens, characters)
            if beginning is not None:
                return beginning
            characters *= 2
        return text

    async def _run(self, characters: int, function: Callable[..., T], *args: Any) -> T:
        thread = self._short if characters <= 2 * TURN else self._long
        return await asyncio.get_running_loop().run_in_executor(thread, function, *args)

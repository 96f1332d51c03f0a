"""From the texts of a request to the JSON of its answer."""

import asyncio
import base64
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from torch_linformer.data.reading.streamed import Document
from torch_linformer.inference.embedder import Embedded
from torch_linformer.inference.window_reader import Windows
from torch_linformer.serving.batcher import Ability, Batcher
from torch_linformer.serving.limits import Limits
from torch_linformer.serving.refusals import Refusal
from torch_linformer.serving.request_forms import EMBEDDINGS, Asked, quoted
from torch_linformer.serving.served_model import ServedModel


class Answerer:
    """Tokenizes the texts of a request, has them computed, and puts the answer together.

    Args:
        model: what answers.
        batcher: computes for it.
        limits: of each request.
    """

    def __init__(self, model: ServedModel, batcher: Batcher, limits: Limits) -> None:
        self.model, self.batcher, self.limits = model, batcher, limits
        self._thread = ThreadPoolExecutor(1, "tokenizer")

    async def answer(self, asked: Asked, path: str) -> dict[str, Any]:
        """The answer to a request for ``path``, one of the model's; a `Refusal` where it asks for what there is not."""
        ability: Ability = self.model.embedder
        prepare: Callable[[Sequence[Document]], Windows] = partial(
            self.model.embedder.prepare, prompt_name=asked.prompt_name
        )
        if path == EMBEDDINGS:
            self._check_dimensions(asked)
            self._check_prompt(asked)
        else:
            assert self.model.predictor is not None
            ability, prepare = self.model.predictor, self.model.predictor.prepare
            self._check_question(asked)
        documents = [Document("", text, asked.question) for text in asked.texts]
        loop = asyncio.get_running_loop()
        windows = await loop.run_in_executor(self._thread, prepare, documents)
        self._check_tokens(windows, asked)
        found = await self.batcher.answers(ability, documents, windows)
        tokens = sum(windows["length"])
        data = _embeddings(found, asked.as_base64) if path == EMBEDDINGS else _predictions(found)
        if asked.ids is not None:
            data = [
                {"index": answer["index"], "id": name, **answer} for name, answer in zip(asked.ids, data, strict=True)
            ]
        return {
            "object": "list",
            "data": data,
            "model": self.model.name,
            "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
        }

    def _check_dimensions(self, asked: Asked) -> None:
        width = self.model.embedder.width
        if asked.dimensions not in (None, width):
            message = f"vectors of this model have {width} dimensions, not {asked.dimensions}; leave dimensions out"
            raise Refusal(422, message, code="invalid_value", param="dimensions")

    def _check_prompt(self, asked: Asked) -> None:
        prompts = self.model.embedder.settings.prompts
        if asked.prompt_name is not None and asked.prompt_name not in prompts:
            known = ", ".join(map(repr, prompts)) or "none"
            message = f"no prompt {quoted(asked.prompt_name)}; this model has {known}"
            raise Refusal(422, message, code="invalid_value", param="prompt_name")

    def _check_question(self, asked: Asked) -> None:
        if self.model.asks and asked.question is None:
            message = "question is missing: this model answers one about each text"
            raise Refusal(422, message, code="invalid_value", param="question")
        if asked.question is not None and not self.model.asks:
            message = "questions are for models trained with --task qa; this one answers without"
            raise Refusal(422, message, code="invalid_value", param="question")

    def _check_tokens(self, windows: Windows, asked: Asked) -> None:
        cuts, longest = self.model.embedder.encode.overflow == "cut", self.model.longest
        if asked.truncate and not cuts:
            message = "this server reads long texts as windows and cuts nothing; leave truncate out"
            raise Refusal(422, message, code="invalid_value", param="truncate")
        truncate = self.limits.truncate if asked.truncate is None else asked.truncate
        for number, tokens in zip(windows["document"], windows["num_tokens"], strict=True):
            if cuts and not truncate and tokens > longest:
                message = (
                    f"input[{number}] has {tokens:,} tokens and the model reads {longest:,}; send less of it, or "
                    '"truncate": true'
                )
                raise Refusal(413, message, code="context_length_exceeded", param="input")
        total, most = sum(windows["length"]), self.limits.max_tokens
        if total > most:
            message = f"the texts have {total:,} tokens and a request may have {most:,}; send fewer at once"
            raise Refusal(413, message, code="too_many_tokens", param="input")


def _embeddings(found: Sequence[Embedded], as_base64: bool) -> list[dict[str, Any]]:
    """The vectors in OpenAI's form."""
    return [
        {"object": "embedding", "index": number, "embedding": _vector(each.embedding, as_base64)}
        for number, each in enumerate(found)
    ]


def _vector(vector: np.ndarray, as_base64: bool) -> list[float] | str:
    if not np.isfinite(vector).all():
        raise ValueError("the model made a vector that is not finite")
    if as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers


def _predictions(found: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The records of ``linformer predict`` with the number of their text instead of its place in a file."""
    records = ({name: value for name, value in record.items() if name != "document"} for record in found)
    return [{"index": number, **record} for number, record in enumerate(records)]

"""From the texts of a request to the JSON of its answer."""

import asyncio
import base64
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import numpy as np

from torch_linformer.data.reading.streamed import Document
from torch_linformer.inference.embedder import Embedded
from torch_linformer.inference.window_reader import Windows
from torch_linformer.serving.batcher import Batcher
from torch_linformer.serving.json_answers import json_line
from torch_linformer.serving.limits import Limits
from torch_linformer.serving.refusals import Refusal, quoted, wrong_value
from torch_linformer.serving.request_forms import EMBED, EMBEDDINGS, Asked
from torch_linformer.serving.served_model import Ability, ServedModel
from torch_linformer.serving.tokenizing import Prepare, Tokenizing


class Answerer:
    """Tokenizes the texts of a request, has them computed, and puts the answer together.

    Args:
        model: what answers.
        batcher: computes for it.
        limits: of each request.
    """

    def __init__(self, model: ServedModel, batcher: Batcher, limits: Limits) -> None:
        self.model, self.batcher, self.limits = model, batcher, limits
        self.tokenizing = Tokenizing()

    async def answer(self, asked: Asked, path: str) -> bytes:
        """The answer to a request for ``path``, one of the model's; a `Refusal` where it asks for what there is not."""
        ability, prepare = self._ability(asked, path)
        texts = asked.texts or await self._decoded(asked.token_ids)
        asked_documents = [Document("", text, asked.question) for text in texts]
        total = 0

        def check(windows: Windows) -> None:
            nonlocal total
            self._check_lengths(windows, asked, ability)
            total += sum(windows["num_tokens" if ability.encode.whole else "length"])
            self._check_total(total)

        documents, windows = await self.tokenizing.windows(
            ability.encode, prepare, asked_documents, self.limits.max_tokens, check
        )
        values = await self.batcher.values(ability.windows, windows)
        answers = ability.answer(documents, windows, values)
        return await asyncio.to_thread(self._line, asked, path, answers, windows)

    def _ability(self, asked: Asked, path: str) -> tuple[Ability, Prepare]:
        """What answers at a path, and what makes its windows."""
        if path in (EMBEDDINGS, EMBED):
            self._check_dimensions(asked)
            self._check_prompt(asked)
            return self.model.embedder, partial(self.model.embedder.prepare, prompt_name=asked.prompt_name)
        assert self.model.predictor is not None
        self._check_question(asked)
        return self.model.predictor, self.model.predictor.prepare

    async def _decoded(self, token_ids: Sequence[list[int]]) -> list[str]:
        """The texts that the model's tokenizer makes of token ids."""
        tokenizer, largest = self.model.tokenizer, max(map(max, token_ids))
        self._check_total(sum(map(len, token_ids)))
        if largest >= len(tokenizer):
            message = f"token {largest} is none of this model's tokenizer, which has {len(tokenizer):,}; send its ids"
            raise wrong_value("input", f"{message}, or texts")
        return await asyncio.to_thread(tokenizer.batch_decode, list(token_ids), skip_special_tokens=True)

    def _line(self, asked: Asked, path: str, answers: Iterable[Any], windows: Windows) -> bytes:
        """The JSON of an answer."""
        data: list[Any]
        if path == EMBED:
            return json_line([_vector(embedded, asked) for embedded in answers])
        if path == EMBEDDINGS:
            data = [{"object": "embedding", "embedding": _vector(embedded, asked)} for embedded in answers]
        else:
            data = [{name: value for name, value in record.items() if name != "document"} for record in answers]
            for record, read in zip(data, windows["length"], strict=False):  # a text that is cut has one window
                record["tokens"] = read if record["cut"] else record["tokens"]  # the rest is not counted
        ids = [{}] * len(data) if asked.ids is None else [{"id": name} for name in asked.ids]
        data = [
            {"index": number, **name, **answer} for number, (name, answer) in enumerate(zip(ids, data, strict=True))
        ]
        tokens = sum(windows["length"])
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return json_line({"object": "list", "data": data, "model": self.model.name, "usage": usage})

    def _check_dimensions(self, asked: Asked) -> None:
        if asked.dimensions is not None and not self.model.has_dimensions(asked.dimensions):
            width = self.model.embedder.width
            message = f"vectors of this model have {width} dimensions, not {asked.dimensions}; leave dimensions out"
            raise wrong_value("dimensions", message)

    def _check_prompt(self, asked: Asked) -> None:
        prompts = self.model.embedder.settings.prompts
        if asked.prompt_name is not None and asked.prompt_name not in prompts:
            known = ", ".join(map(repr, prompts)) or "none"
            raise wrong_value("prompt_name", f"no prompt {quoted(asked.prompt_name)}; this model has {known}")

    def _check_question(self, asked: Asked) -> None:
        if self.model.asks and asked.question is None:
            raise wrong_value("question", "question is missing: this model answers one about each text")
        if asked.question is not None and not self.model.asks:
            message = "questions are for models trained with --task qa; this one answers without"
            raise wrong_value("question", message)

    def _check_lengths(self, windows: Windows, asked: Asked, ability: Ability) -> None:
        cuts, longest = ability.encode.overflow == "cut", ability.encode.max_length
        if asked.truncate and not cuts:
            message = "this server reads long texts as windows and cuts nothing; leave truncate out"
            raise wrong_value("truncate", message)
        truncate = self.limits.truncate if asked.truncate is None else asked.truncate
        for number, tokens in zip(windows["document"], windows["num_tokens"], strict=True):
            if cuts and not truncate and tokens > longest:
                message = (
                    f"input[{number}] has more tokens than the {longest:,} that the model reads; send less of it, or "
                    '"truncate": true'
                )
                raise Refusal(413, message, code="context_length_exceeded", param="input")

    def _check_total(self, tokens: int) -> None:
        if tokens > self.limits.max_tokens:
            message = f"the texts have more tokens than the {self.limits.max_tokens:,} of a request; send fewer at once"
            raise Refusal(413, message, code="too_many_tokens", param="input")


def _vector(embedded: Embedded, asked: Asked) -> list[float] | str:
    vector = embedded.embedding[: asked.dimensions]
    if not np.isfinite(vector).all():
        raise ValueError("the model made a vector that is not finite")
    if len(vector) < len(embedded.embedding):
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    if asked.as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers

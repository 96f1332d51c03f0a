"""One trained model and what it answers over HTTP, by what ``linformer embed`` and ``linformer predict`` use."""

import asyncio
import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import (
    Answer,
    DocumentEmbedder,
    DocumentModel,
    TaskPredictor,
    Windows,
)
from torch_linformer.opening.load import load_reader, load_tokenizer
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.serving.limits import Limits
from torch_linformer.serving.protocol import (
    CLASSIFY,
    EMBED,
    EMBEDDINGS,
    PREDICT,
    Asked,
    Refusal,
    json_line,
    quoted,
    wrong_value,
)
from torch_linformer.serving.queues import MAX_CHARS_PER_TOKEN, Batcher, Prepare, Tokenizing


@dataclass(frozen=True)
class ServedModel:
    """A model that is loaded once for all that it does."""

    name: str  # what clients call it
    tokenizer: PreTrainedTokenizerFast
    embedder: DocumentEmbedder  # makes vectors, with any model
    predictor: TaskPredictor | None  # None without a prediction task
    no_prediction: str  # why not
    paths: list[str]  # where it can be asked

    @property
    def asks(self) -> bool:
        """Whether it answers questions about documents."""
        return self.predictor is not None and bool(self.predictor.record.usual.question)

    @property
    def longest(self) -> int:
        """Tokens of a text that are read at once."""
        return self.embedder.encode.max_length

    def has_dimensions(self, number: int) -> bool:
        """Whether vectors may have so many: all, or fewer where the configuration says that the first ones suffice.

        It says so as vLLM reads it: ``matryoshka_dimensions`` lists them, or ``is_matryoshka`` allows any number.
        """
        config, width = self.embedder.encoder.config, self.embedder.width
        may_be_cut = hasattr(config, "matryoshka_dimensions") or getattr(config, "is_matryoshka", False)
        fewer = getattr(config, "matryoshka_dimensions", None) or range(1, width)
        # Words stand at the end of a vector.
        return number == width or (bool(may_be_cut) and not self.embedder.reads_words and number in fewer)


def load_served(folder: str, *, name: str | None = None, **options: Any) -> ServedModel:
    """Load any encoder for serving; clients call it by ``name``, which is that of its folder if None.

    ``options`` are ``overflow``, ``stride``, ``device``, ``precision`` and ``batch_size``, as of `Predictor`.
    """
    source = encoder_folder(folder)
    model, tokenizer = load_reader(source), load_tokenizer(source)
    embedder = DocumentEmbedder(source, model, tokenizer, **options)
    if embedder.several:
        raise InputError(
            f"{folder}: makes {embedder.vectors.most} vectors of a text, and an answer of this server has one: "
            "linformer embed writes them"
        )
    predictor, no_prediction, paths = None, "it does not tell labels of documents", [EMBEDDINGS, EMBED]
    try:
        predictor = TaskPredictor(model, tokenizer, **options)
        whole_documents = predictor.task.names and not predictor.task.offsets
        paths += [CLASSIFY, PREDICT] if whole_documents else [PREDICT]
    except InputError as error:
        no_prediction = str(error)
    name = name or Path(folder).resolve().name
    return ServedModel(name, tokenizer, embedder, predictor, no_prediction, paths)


class Answerer:
    """Tokenizes the texts of a request, has them computed, and puts the answer together."""

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
            longest = 0 if ability.encode.overflow == "cut" else max(windows["num_tokens"])
            self._check_total(max(total, longest))

        documents, windows = await self.tokenizing.windows(
            ability.encode, prepare, asked_documents, self.limits.max_tokens, check
        )
        values = await self.batcher.values(ability, windows)
        answers = ability.answer(documents, windows, values)
        return await asyncio.to_thread(self._line, asked, path, answers, windows)

    def _ability(self, asked: Asked, path: str) -> tuple[DocumentModel, Prepare]:
        """What answers at a path, and what makes its windows."""
        embedder, predictor = self.model.embedder, self.model.predictor
        if path in (EMBEDDINGS, EMBED):
            if asked.dimensions is not None and not self.model.has_dimensions(asked.dimensions):
                message = f"vectors of this model have {embedder.width} dimensions, not {asked.dimensions}"
                raise wrong_value("dimensions", f"{message}; leave dimensions out")
            if asked.prompt_name is not None and asked.prompt_name not in embedder.settings.prompts:
                known = ", ".join(map(repr, embedder.settings.prompts)) or "none"
                raise wrong_value("prompt_name", f"no prompt {quoted(asked.prompt_name)}; this model has {known}")
            return embedder, partial(embedder.prepare, prompt_name=asked.prompt_name)
        assert predictor is not None
        if self.model.asks and asked.question is None:
            raise wrong_value("question", "question is missing: this model answers one about each text")
        if asked.question is not None and not self.model.asks:
            message = "questions are for models trained with --task qa; this one answers without"
            raise wrong_value("question", message)
        return predictor, predictor.prepare

    async def _decoded(self, token_ids: Sequence[list[int]]) -> list[str]:
        """The texts that the model's tokenizer makes of token ids."""
        tokenizer, largest = self.model.tokenizer, max(map(max, token_ids))
        self._check_total(sum(map(len, token_ids)))
        if largest >= len(tokenizer):
            message = f"token {largest} is none of this model's tokenizer, which has {len(tokenizer):,}; send its ids"
            raise wrong_value("input", f"{message}, or texts")
        return await asyncio.to_thread(tokenizer.batch_decode, list(token_ids), skip_special_tokens=True)

    def _line(self, asked: Asked, path: str, answers: Iterable[Answer], windows: Windows) -> bytes:
        """The JSON of an answer."""
        data: list[Any]
        if path == EMBED:
            return json_line([_vector(answer, asked) for answer in answers])
        if path == EMBEDDINGS:
            data = [{"object": "embedding", "embedding": _vector(answer, asked)} for answer in answers]
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

    def _check_lengths(self, windows: Windows, asked: Asked, ability: DocumentModel) -> None:
        cuts, longest = ability.encode.overflow == "cut", ability.encode.max_length
        if asked.truncate and not cuts:
            message = "this server reads long texts as windows and cuts nothing; leave truncate out"
            raise wrong_value("truncate", message)
        truncate = self.limits.truncate if asked.truncate is None else asked.truncate
        rows = zip(*(windows[name] for name in ("document", "num_tokens", "length", "text_from")), strict=True)
        for number, tokens, read, before in rows:
            if read == before + len(ability.encode.marks[1]):
                raise wrong_value("input", f"input[{number}] has no text: the model's tokenizer has no token for it")
            if cuts and not truncate and tokens > longest:
                size = f"tokens than the {longest:,} that the model reads"
                if read < longest:  # all of its beginning: see Tokenizing
                    size = (
                        f"characters than {MAX_CHARS_PER_TOKEN} for each of the {longest:,} tokens that the model reads"
                    )
                message = f'input[{number}] has more {size}; send less of it, or "truncate": true'
                raise Refusal(413, message, code="context_length_exceeded", param="input")

    def _check_total(self, tokens: int) -> None:
        if tokens > self.limits.max_tokens:
            message = f"the texts have more tokens than the {self.limits.max_tokens:,} of a request; send fewer at once"
            raise Refusal(413, message, code="too_many_tokens", param="input")


def _vector(answer: Answer, asked: Asked) -> list[float] | str:
    whole = answer["embedding"]
    vector = whole[: asked.dimensions]
    if not np.isfinite(vector).all():
        raise ValueError("the model made a vector that is not finite")
    if len(vector) < len(whole):
        vector = vector / max(float(np.linalg.norm(vector)), 1e-12)
    if asked.as_base64:
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    numbers: list[float] = vector.tolist()
    return numbers

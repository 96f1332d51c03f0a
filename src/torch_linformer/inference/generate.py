"""Text continued by a causal model, shown while it is generated."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, set_seed
from transformers.generation.streamers import BaseStreamer

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForCausalLM
from torch_linformer.opening.load import load_model

COOLEST = 0.001  # above 0: scores divided by less would leave the range of float32
_INCOMPLETE = "\N{REPLACEMENT CHARACTER}"  # decoding gives it for an incomplete character
_REMEMBERED = 16  # tokens: enough context to spell the next one correctly


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the next token is chosen.

    Attributes:
        max_new_tokens: tokens at most, if the end token does not come first.
        temperature: divides the scores that tokens are drawn by, 1 by default; 0 takes the likeliest.
        top_k: draw only from this number of likeliest tokens.
        top_p: draw only from the likeliest tokens that together have this share of the probability.
        num_beams: above 1, search for the likeliest text with this number of beams, and draw nothing.
        seed: of the draws; None for different draws each time.
    """

    max_new_tokens: int = 200
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    num_beams: int = 1
    seed: int | None = None

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "top_k", "num_beams"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"--{name.replace('_', '-')} must be at least 1, got {value}")
        if self.temperature and not COOLEST <= self.temperature < math.inf:
            raise InputError(f"--temperature must be 0, or a number from {COOLEST} on, got {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"--top-p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise InputError(f"--seed must be at least 0 and below 2^32, got {self.seed}")
        reason = "--temperature 0 takes the likeliest token" if self.num_beams == 1 else "--num-beams searches"
        for name in () if self.draws else ("temperature", "top_k", "top_p", "seed"):
            if getattr(self, name) not in (None, 0):
                raise InputError(f"--{name.replace('_', '-')} is for drawing tokens, but {reason}")

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn."""
        return self.num_beams == 1 and self.temperature != 0

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of transformers' ``generate``."""
        chosen = {"max_new_tokens": self.max_new_tokens, "num_beams": self.num_beams, "do_sample": self.draws}
        drawn = {"temperature": self.temperature or 1.0, "top_k": self.top_k or 0, "top_p": self.top_p or 1.0}
        return chosen | (drawn if self.draws else {})


class TextStream(BaseStreamer):
    """Writes the text of tokens, without special tokens, as soon as no later token can change it.

    A token may be a part of a character, which is written when its other tokens have come. The first ``skip`` tokens,
    those of the prompt, are not written.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, write: Callable[[str], object], skip: int = 0) -> None:
        self.tokenizer, self.write, self.skip = tokenizer, write, skip
        self.ids: list[int] = []
        self.written = 0  # characters of the text of these ids

    def put(self, value: Tensor) -> None:
        ids = value.flatten().tolist()
        self.ids += ids[self.skip :]
        self.skip = max(0, self.skip - len(ids))
        text = self._text()
        # At most one character is incomplete; what stands before it cannot change any more.
        self._write(text.removesuffix(_INCOMPLETE))
        if len(self.ids) > 2 * _REMEMBERED and not text.endswith(_INCOMPLETE):
            self.ids = self.ids[-_REMEMBERED:]
            self.written = len(self._text())

    def end(self) -> None:
        """Write what is left, complete or not."""
        self._write(self._text())

    def _write(self, text: str) -> None:
        if len(text) > self.written:
            self.write(text[self.written :])
            self.written = len(text)

    def _text(self) -> str:
        return str(self.tokenizer.decode(self.ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


def load_causal_model(path: str, device: str) -> LinformerForCausalLM:
    """The causal language model of a folder, on a device; an ``InputError`` where it holds another model."""
    model = load_model(path)
    if not isinstance(model, LinformerForCausalLM):
        raise InputError(f"{path}: a {type(model).__name__} does not continue a text; train a model with --task clm")
    cast(nn.Module, model).to(device)
    return model


def generate(
    model: LinformerForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompt: str,
    choice: Choice,
    write: Callable[[str], object],
) -> None:
    """Continue a text until the end token comes, or there are enough tokens; an empty prompt begins a text.

    ``write`` takes the new text piece by piece, or all at once from a search with beams.
    """
    ids = DocumentEncoder(tokenizer, model.config.max_position_embeddings).begin(prompt)
    if not ids:
        raise InputError("an empty prompt needs a start token, which this tokenizer lacks; give a --prompt")
    longest = model.config.longest_input
    if longest is not None and len(ids) + choice.max_new_tokens > longest:
        raise InputError(
            f"the prompt's {len(ids):,} tokens and --max-new-tokens {choice.max_new_tokens:,} are more than the "
            f"{longest:,} that the model reads; take fewer"
        )
    if choice.seed is not None:
        set_seed(choice.seed)
    end = model.generation_config.eos_token_id
    ends = end if isinstance(end, list) else [end]
    stream = TextStream(tokenizer, write, skip=len(ids))
    inputs = torch.tensor([ids], device=model.device)
    ready: Any = cast(nn.Module, model).eval()
    output = ready.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        # Special tokens, which have no text.
        suppress_tokens=[token for token in tokenizer.all_special_ids if token not in ends],
        streamer=stream if choice.num_beams == 1 else None,
        **choice.arguments,
    )
    if choice.num_beams > 1:
        stream.put(output[0])
        stream.end()

"""Text continued by a causal model, shown while it is generated."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from tokenizers.decoders import DecodeStream
from torch import Tensor, nn
from transformers import PreTrainedTokenizerFast, set_seed
from transformers.generation.streamers import BaseStreamer

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError, flag
from torch_linformer.models import LinformerForCausalLM
from torch_linformer.opening.load import load_model

COOLEST = 0.001  # above 0: scores divided by less would leave the range of float32


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the next token is chosen."""

    max_new_tokens: int = 200  # at most, if the end token does not come first
    temperature: float | None = None  # divides the scores of tokens that are drawn; None is 1, 0 takes the likeliest
    top_k: int | None = None  # draw only from this number of likeliest tokens
    top_p: float | None = None  # draw only from the likeliest tokens that together have this share of the probability
    num_beams: int = 1  # above 1, search for the likeliest text with this number of beams, and draw nothing
    seed: int | None = None  # of the draws; None for different draws each time

    def __post_init__(self) -> None:
        for name in ("max_new_tokens", "top_k", "num_beams"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"{flag(name)} must be at least 1, got {value}")
        if self.temperature and not COOLEST <= self.temperature < math.inf:
            raise InputError(f"--temperature must be 0, or a number from {COOLEST} on, got {self.temperature}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise InputError(f"--top-p must be above 0 and at most 1, got {self.top_p}")
        if self.seed is not None and not 0 <= self.seed < 2**32:
            raise InputError(f"--seed must be at least 0 and below 2^32, got {self.seed}")
        reason = "--temperature 0 takes the likeliest token" if self.num_beams == 1 else "--num-beams searches"
        for name in () if self.draws else ("temperature", "top_k", "top_p", "seed"):
            if getattr(self, name) not in (None, 0):
                raise InputError(f"{flag(name)} is for drawing tokens, but {reason}")

    @property
    def draws(self) -> bool:
        """Whether tokens are drawn."""
        return self.num_beams == 1 and self.temperature != 0


class TextStream(BaseStreamer):
    """Writes the text of tokens, without special tokens, as soon as no later token can change it.

    The first ``skip`` tokens, those of the prompt, are not written.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, write: Callable[[str], object], skip: int = 0) -> None:
        self.tokenizer, self.write, self.skip = tokenizer, write, skip
        self.stream = DecodeStream(skip_special_tokens=True)
        self.incomplete: list[int] = []  # tokens of a character whose others are still to come

    def put(self, value: Tensor) -> None:
        ids = value.flatten().tolist()
        for token in ids[self.skip :]:
            self.incomplete.append(token)
            text = self.stream.step(self.tokenizer.backend_tokenizer, token)
            if text:
                self.write(text)
                self.incomplete = []
        self.skip = max(0, self.skip - len(ids))

    def end(self) -> None:
        """Write what is left, complete or not."""
        if text := _text(self.tokenizer, self.incomplete):
            self.write(text)


def _text(tokenizer: PreTrainedTokenizerFast, ids: Tensor | list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))


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
    inputs = torch.tensor([ids], device=model.device)
    drawn = {"temperature": choice.temperature or 1.0, "top_k": choice.top_k or 0, "top_p": choice.top_p or 1.0}
    ready: Any = cast(nn.Module, model).eval()
    output = ready.generate(
        inputs,
        attention_mask=torch.ones_like(inputs),
        # Special tokens, which have no text.
        suppress_tokens=[token for token in tokenizer.all_special_ids if token not in ends],
        streamer=TextStream(tokenizer, write, skip=len(ids)) if choice.num_beams == 1 else None,
        max_new_tokens=choice.max_new_tokens,
        num_beams=choice.num_beams,
        do_sample=choice.draws,
        **(drawn if choice.draws else {}),
    )
    if choice.num_beams > 1:
        write(_text(tokenizer, output[0, len(ids) :]))

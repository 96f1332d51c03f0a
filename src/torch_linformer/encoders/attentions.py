"""The attentions of an encoder: found by running it once with one that takes notes."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from torch_linformer.encoders.families import own_attention
from torch_linformer.nn.attention.context import HeadSizes

RECORDER = "linformer_recorder"  # the attention that takes notes
TOKENS = 8  # of the text that a model is run on
SAMPLES = 3200  # of the sound; convolutions make a few positions of them


class FoundAttention(NamedTuple):
    """One self-attention of a model, that may be run several times (ALBERT).

    Attributes:
        num_heads: of queries, H;
        num_kv_heads: of keys and values;
        head_dim: width of a head.
        sliding_window: a query sees the positions fewer than this away; None for all positions.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    sliding_window: int | None = None

    @property
    def sizes(self) -> HeadSizes:
        return HeadSizes.of_heads(self.num_heads, self.head_dim, self.num_kv_heads)


def find_attentions(model: PreTrainedModel) -> dict[str, FoundAttention]:
    """The self-attentions of a model that go through transformers' attention interface, by the names of their modules.

    Or those of a family that has an attention of its own which can be replaced.

    Raises:
        ValueError: there are none, or some are causal, or attend to another sequence.
    """
    own = own_attention(model.config.model_type)
    if own is not None:
        return cast(dict[str, FoundAttention], own.find(model))
    names = {module: name for name, module in model.named_modules()}
    attentions: dict[str, FoundAttention] = {}

    def note(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, *args: Any, **kwargs: Any) -> Any:
        kind = type(module).__name__
        if kwargs.get("is_causal", getattr(module, "is_causal", False)):
            raise ValueError(
                f"{kind} is causal: its tokens see only what comes before them, and a slot mixes all positions"
            )
        if query.shape[2] != key.shape[2]:
            raise ValueError(f"{kind} attends to another sequence: linearize the encoder alone (model.get_encoder())")
        window = kwargs.get("sliding_window")
        attentions[names[module]] = FoundAttention(query.shape[1], key.shape[1], query.shape[3], window)
        repeats = query.shape[1] // key.shape[1]
        keys, values = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
        return F.scaled_dot_product_attention(query, keys, values).transpose(1, 2), None

    with _registered(note), _attending_by(model, RECORDER), torch.no_grad():
        model(**small_inputs(model))
    if not attentions:
        raise ValueError(
            f"the attention of {type(model).__name__} does not go through transformers' attention interface, so it "
            "cannot be replaced"
        )
    return attentions


def small_inputs(model: PreTrainedModel) -> dict[str, Tensor]:
    """The smallest input that a model takes: a text, an image, or sound."""
    config: Any = model.config
    name, factory = model.main_input_name, cast(Any, {"device": model.device})
    match name:
        case "input_ids":
            return {"input_ids": torch.full((1, TOKENS), config.vocab_size - 1, **factory)}
        case "pixel_values":
            size = config.image_size
            height, width = (size, size) if isinstance(size, int) else size
            return {name: torch.zeros(1, config.num_channels, height, width, dtype=model.dtype, **factory)}
        case "input_features":
            frames = 2 * config.max_source_positions
            return {name: torch.zeros(1, config.num_mel_bins, frames, dtype=model.dtype, **factory)}
        case "input_values":
            return {name: torch.zeros(1, SAMPLES, dtype=model.dtype, **factory)}
    raise ValueError(f"{type(model).__name__} reads {name}: linear are encoders of text, images and sound")


@contextmanager
def _registered(function: Any) -> Iterator[None]:
    interfaces: tuple[Any, ...] = (AttentionInterface, AttentionMaskInterface)
    AttentionInterface.register(RECORDER, function)
    AttentionMaskInterface.register(RECORDER, lambda *args, **kwargs: None)
    try:
        yield
    finally:
        for interface in interfaces:
            del interface._global_mapping[RECORDER]


@contextmanager
def _attending_by(model: PreTrainedModel, name: str) -> Iterator[None]:
    """A model in evaluation mode with another attention, for a while."""
    modules = [module for module in model.modules() if hasattr(module, "config")]
    configs = {id(module.config): cast(Any, module.config) for module in modules}.values()
    before, training = [config._attn_implementation for config in configs], model.training
    cast(nn.Module, model).eval()
    for config in configs:
        config._attn_implementation = name
    try:
        yield
    finally:
        for config, implementation in zip(configs, before, strict=True):
            config._attn_implementation = implementation
        cast(nn.Module, model).train(training)

"""A linear encoder of one that is loaded: the same class with another attention, the same weights under their names."""

import copy
import logging
import math
from dataclasses import asdict, replace
from typing import Any, TypeVar, cast

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from torch_linformer.encoders.attentions import base_of, find_attentions, one_at_a_time
from torch_linformer.encoders.classes import (
    LinearEncoder,
    body_of,
    linear_class,
    linear_config,
    replace_attentions,
)
from torch_linformer.encoders.families import check_kind
from torch_linformer.encoders.interface import ATTENTION
from torch_linformer.encoders.options import LinearOptions, Projection, default_exact_below
from torch_linformer.encoders.positions import FIELD, Positions, set_length
from torch_linformer.encoders.proof import prove
from torch_linformer.errors import first_line

Model = TypeVar("Model", bound=PreTrainedModel)
logger = logging.getLogger(__name__)
DEFAULT_WINDOW, WIDEST = 128, 512  # tokens: where the original reads all that it can, and at most where it reads less
FIRST_WEIGHT = 16.0  # tokens that all slots weigh at first; 256 of 8,192 made a copy worse than none (docs/log.md)
ALL_EXACT = (
    "rows of at most exact_below = %s tokens get full attention, and this encoder reads %s: slots and window are never "
    "used; take a smaller k, a larger max_length, or exact_below=0"
)


def linearize(
    model: Model,
    k: int | None = None,
    window: int | None = None,
    *,
    max_length: int | None = None,
    usual_length: int | None = None,
    exact_first: int | None = None,
    exact_last: int | None = None,
    exact_below: int | None = None,
    projection: Projection = "dynamic",
) -> Model:
    r"""A copy of an encoder of transformers whose attention takes time and memory linear in the length.

    In every layer that attended to all positions a token attends, in one softmax, to K slots that the input chooses, to
    the tokens near it, and to the first and last tokens of the text. A slot weighs as many tokens as it stands for
    (``slot_mass``). Layers that were local keep their window. All other weights stay, under their names; those of
    slots, ``….linformer.*``, begin as means of segments and are to be trained (``torch_linformer.distill``). Where
    ``max_length`` is more than ``usual_length`` all slots of a full row weigh as much as 16 tokens at first, so that
    the copy begins as a reader of windows.

    The copy is a deep one, of a subclass of the original's class, ``LinearBertModel``; the Auto classes open its folder
    once ``torch_linformer`` is imported. Before it is returned, both read a small made-up batch with full attention,
    and must compute the same up to rounding; the copy also embeds one row of ``max_length`` tokens.

    Args:
        model: with or without a head; its self-attention is bidirectional and goes through the attention interface of
            transformers, or is MPNet's. It is not changed.
        k: slots K, min(256, max_length / 4) by default; 0 for none.
        window: tokens near each that it attends to, half of them on either side; ``usual_length``, or 128 without
            one, by default; 0 for none.
        max_length: tokens read at once, by default as many as the original reads. Learned positions beyond those
            repeat the original's, as in windows of ``usual_length`` tokens that are read one after the other; rotary
            ones go on, beyond what they were trained for.
        usual_length: tokens that the original reads at once as it is used, special tokens included, if they are fewer
            than it has learned positions (sentence-transformers' ``max_seq_length``): later ones were hardly trained.
        exact_first: number of first tokens, to which every token attends; by default ``[CLS]``, or the class token and
            registers of an image.
        exact_last: number of last tokens likewise; by default ``[SEP]``.
        exact_below: rows of at most this many tokens attend to all of them, as in the original; by default
            2 K + window + 640, about where slots and window begin to be faster, at most ``usual_length``; 0 for none.
        projection: ``dynamic``, or ``mean`` for slots that are means of equal segments, with nothing to learn.

    Raises:
        TypeError: for anything but a model of transformers.
        ValueError: for a model whose attention cannot be replaced or whose copy differs, with the layer where it does
            first, or a number out of range.

    Example:
        >>> import torch_linformer
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(num_hidden_layers=2, max_position_embeddings=64))
        >>> linear = torch_linformer.linearize(model, k=64, max_length=4096)
        >>> type(linear).__name__, linear.config.max_position_embeddings
        ('LinearBertModel', 4096)
    """
    name = type(model).__name__
    if isinstance(model, nn.Module) and any(type(x).__module__.startswith("peft.") for x in model.modules()):
        raise ValueError(f"{name} has adapters of PEFT: merge the adapters first, model.merge_and_unload()")
    if not isinstance(model, PreTrainedModel):
        raise TypeError(f"linearize takes a model of transformers, got {name}: load it by AutoModel first")
    check_kind(name, model.config, type(model))
    if model.device.type == "meta":
        raise ValueError(
            f"{name} is on the meta device, or offloaded, and cannot be compared with its copy: load its weights first"
        )
    try:
        # Weights that can be trained, and made-up inputs on the device where their random numbers are drawn.
        with one_at_a_time, torch.inference_mode(False), torch.device("cpu"):
            try:
                linear: Any = copy.deepcopy(model)
            except Exception as error:
                raise ValueError(
                    f"it cannot be copied ({type(error).__name__}: {first_line(error)}): take away what it holds "
                    "beside its weights, such as hooks that keep outputs"
                ) from error
            base = base_of(linear)  # the original may be at work in another thread
            attentions, positions = find_attentions(base), Positions.of(base)
            first, last = special_tokens(base)
            options = LinearOptions(
                k=cast(int, k),
                window=(DEFAULT_WINDOW if window is None else window) or None,
                exact_first=first if exact_first is None else exact_first,
                exact_last=last if exact_last is None else exact_last,
                exact_below=exact_below,
                projection=projection,
                max_length=positions.longest if max_length is None else max_length,
            )
            usual = positions.longest if usual_length is None else usual_length
            if not first + last < usual <= positions.longest:
                raise ValueError(
                    f"usual_length must lie between {first + last + 1} and the {positions.longest:,} tokens that it "
                    f"can read, got {usual_length}"
                )
            if usual < min(positions.longest, options.max_length):
                if window is None:
                    options = replace(options, window=min(usual, WIDEST))
                if exact_below is None:
                    longest_exact = min(default_exact_below(options.k, options.window), usual)
                    options = replace(options, exact_below=longest_exact)
            config = linear.config
            config.__class__ = linear_config(body_of(type(model)))
            config.linformer = {
                "attentions": {key: list(x) for key, x in attentions.items()},
                "options": asdict(options),
            }
            if positions.tables:  # later ones are as if they were not there
                setattr(config, FIELD, getattr(config, FIELD) - positions.longest + usual)
            positions = replace(positions, longest=usual, usual=usual)
            config.positions, config.pooling = {**asdict(positions), "tables": list(positions.tables)}, "mean"
            linear.__class__ = linear_class(type(model))
            _set_options(linear, options)
            if options.max_length > usual:
                for key, parameter in linear.named_parameters():
                    if key.endswith("slot_terms.mass"):
                        nn.init.constant_(parameter, math.log(FIRST_WEIGHT / options.max_length))
            prove(model, linear)
    except ValueError as error:
        raise ValueError(f"{name} ({model.config.model_type}): {first_line(error)}") from error
    if not options.uses_slots:
        logger.warning(ALL_EXACT, options.longest_exact, options.max_length)
    return cast(Model, linear)


def with_options(model: LinearEncoder, options: LinearOptions) -> Any:
    """A copy of a linear model with other options; slots that do not fit the old ones are new."""
    linear = copy.deepcopy(model)
    _set_options(linear, options)
    return linear


def _set_options(linear: Any, options: LinearOptions) -> None:
    base, positions = base_of(linear), Positions.of(base_of(linear))
    config = linear.config.with_options(options)
    set_length(base, positions, options.max_length, special_tokens(base), lambda: type(base)(copy.deepcopy(config)))
    for name in ("linformer", "positions", *([FIELD] if positions.tables else [])):
        setattr(linear.config, name, getattr(config, name))
    for name in linear.config.attentions:  # some have a configuration of their own
        config_of_layer = getattr(base.get_submodule(name), "config", None)
        if isinstance(config_of_layer, PreTrainedConfig):
            config_of_layer._attn_implementation = ATTENTION
    linear.config._attn_implementation = ATTENTION
    replace_attentions(linear)
    linear.zero_grad(set_to_none=True)


def special_tokens(base: PreTrainedModel) -> tuple[int, int]:
    """How many tokens at the beginning and the end of an input belong to the model and not to what it reads."""
    if base.main_input_name == "input_ids":
        return 1, 1
    has_class_token = any(name.endswith("cls_token") for name, _ in base.named_parameters())
    return int(has_class_token) + (getattr(base.config, "num_register_tokens", None) or 0), 0

"""A linear encoder of one that is loaded: the same class with another attention, the same weights under their names."""

import logging
from typing import Any, TypeVar, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from torch_linformer.encoders.attentions import find_attentions
from torch_linformer.encoders.classes import LinearEncoder, linear_class
from torch_linformer.encoders.families import Positions, check_kind
from torch_linformer.encoders.interface import ATTENTION
from torch_linformer.encoders.options import LinearOptions, Projection

Model = TypeVar("Model", bound=PreTrainedModel)
logger = logging.getLogger(__name__)
ALL_EXACT = (
    "rows of at most exact_below = %s tokens are read exactly, and this encoder reads %s: slots and window are never "
    "used; take a smaller k, a larger max_length, or exact_below=0"
)


def linearize(
    model: Model,
    k: int | None = None,
    window: int | None = 128,
    *,
    max_length: int | None = None,
    exact_first: int | None = None,
    exact_last: int | None = None,
    exact_below: int | None = None,
    projection: Projection = "dynamic",
) -> Model:
    r"""A copy of an encoder of transformers whose attention takes time and memory linear in the length.

    In every layer that attended to all positions a token attends, in one softmax, to K slots that the input chooses,
    with their mass, to the tokens near it, and to the first and last tokens of the text. Layers that were local keep
    their window. All other weights stay, under their names; what is new, ``….linformer.*``, is a little
    more than K × the width of the keys numbers a layer, which begin as means of segments and are to be trained: see
    ``torch_linformer.distill``.

    The copy is of a class of its own, a subclass of the original's: ``LinearBertModel``. ``save_pretrained`` writes a
    folder that the Auto classes open once ``torch_linformer`` is imported.

    Args:
        model: with or without a head; its self-attention is bidirectional and goes through the attention interface of
            transformers, or is MPNet's. It is not changed.
        k: slots K, min(256, max_length / 4) by default; 0 for none.
        window: tokens near each that it sees themselves, half of them on either side; None for none.
        max_length: tokens read at once, by default as many as the original reads. Learned positions beyond those
            repeat the original's; rotary ones go on, beyond what they were trained for.
        exact_first: the first tokens, which all others see themselves; by default ``[CLS]``, or the class token and
            registers of an image.
        exact_last: the last ones; by default ``[SEP]``.
        exact_below: rows of at most this many tokens attend to all of them, as in the original; 2 K + window by
            default, where slots and window cost as many products; 0 for none.
        projection: ``dynamic``, or ``mean`` for slots that are means of equal segments, with nothing to learn.

    Raises:
        TypeError: for anything but a model of transformers.
        ValueError: for a model whose attention cannot be replaced, or a number out of range.

    Example:
        >>> import torch_linformer
        >>> from transformers import BertConfig, BertModel
        >>> model = BertModel(BertConfig(num_hidden_layers=2, max_position_embeddings=64))
        >>> linear = torch_linformer.linearize(model, k=64, max_length=4096)
        >>> type(linear).__name__, linear.config.max_position_embeddings
        ('LinearBertModel', 4096)
    """
    if not isinstance(model, PreTrainedModel):
        raise TypeError(
            f"linearize takes a model of transformers, got {type(model).__name__}: load it by AutoModel first"
        )
    check_kind(type(model).__name__, model.config, type(model))
    base = cast(PreTrainedModel, model.base_model)
    positions = Positions.of(base)
    length = positions.longest if max_length is None else max_length
    first, last = special_tokens(base)
    options = LinearOptions(
        k=cast(int, k),
        window=window,
        exact_first=first if exact_first is None else exact_first,
        exact_last=last if exact_last is None else exact_last,
        exact_below=exact_below,
        projection=projection,
        max_length=length,
    )
    if not options.uses_slots:
        logger.warning(ALL_EXACT, options.longest_exact, options.max_length)
    return cast(Model, with_options(model, options, positions))


def with_options(model: Any, options: LinearOptions, positions: Positions | None = None) -> Any:
    """The linear model of a model, linear or not, with these options; slots that do not fit the old ones are new."""
    base = cast(PreTrainedModel, model.base_model)
    positions = positions or Positions.of(base)
    linear_type: Any = type(model) if isinstance(model, LinearEncoder) else linear_class(type(model))
    config = linear_type.config_class.from_dict(model.config.to_dict())
    if not isinstance(model, LinearEncoder):
        config.linformer = {"attentions": {name: list(sizes) for name, sizes in find_attentions(base).items()}}
    linear: Any = linear_type(config.with_options(options, positions))
    for name, _ in list(cast(nn.Module, linear).named_children()):
        if getattr(model, name, linear) is None:  # below a head some encoders have no pooler
            setattr(linear, name, None)
    linear.to(device=model.device, dtype=model.dtype)
    weights = model.state_dict()
    with torch.no_grad():
        for name, tensor in linear.state_dict().items():
            _fill(name, tensor, weights, positions)
    frozen = {name for name, parameter in model.named_parameters() if not parameter.requires_grad}
    for name, parameter in cast(nn.Module, linear).named_parameters():
        parameter.requires_grad_(name not in frozen)
    cast(nn.Module, linear).train(model.training)
    linear.name_or_path = model.name_or_path
    return linear


def _fill(name: str, tensor: Tensor, weights: dict[str, Tensor], positions: Positions) -> None:
    is_slots = f".{ATTENTION}." in f".{name}"
    if name in weights and weights[name].shape == tensor.shape:
        tensor.copy_(weights[name])
    elif name in weights and positions.is_table(name):
        tensor.copy_(positions.extended(weights[name], len(tensor)))
    elif not is_slots:
        raise ValueError(f"{name} has no counterpart in the original")


def special_tokens(base: PreTrainedModel) -> tuple[int, int]:
    """How many tokens at the beginning and the end of an input belong to the model and not to what it reads."""
    if base.main_input_name == "input_ids":
        return 1, 1
    has_class_token = any(name.endswith("cls_token") for name, _ in base.named_parameters())
    return int(has_class_token) + (getattr(base.config, "num_register_tokens", None) or 0), 0

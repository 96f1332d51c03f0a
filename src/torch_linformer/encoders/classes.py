"""The classes of linear encoders: each is the class of transformers whose attention it replaces, made when needed.

A saved folder has one ``model_type``, ``linear_encoder``, whichever encoder it is; ``encoder_class`` in its
``config.json`` says of which class of transformers. So one registration opens all of them by the Auto classes.

Replacing the attentions of a copy of the original's own class would do for a model in memory. Its folder would be one
of that class: an Auto class builds it with its ordinary attention, and leaves the weights of slots out with a warning.
"""

import functools
import importlib
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Any, ClassVar, Self, TypeVar, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.conversion_mapping import get_checkpoint_conversion_mapping, register_checkpoint_conversion_mapping
from transformers.models.auto import modeling_auto
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from torch_linformer.encoders.attentions import FoundAttention, base_of
from torch_linformer.encoders.encoder_context import EncoderContext, check_length
from torch_linformer.encoders.families import own_attention
from torch_linformer.encoders.interface import ATTENTION
from torch_linformer.encoders.options import LinearOptions
from torch_linformer.encoders.positions import FIELD, Positions
from torch_linformer.nn.attention.slot_context import SlotTerms
from torch_linformer.nn.dynamic_projection import STD, DynamicProjection

Made = TypeVar("Made")


def cached(function: Made) -> Made:
    """:func:`functools.cache`, which takes classes of models for unhashable where types are checked."""
    return cast(Made, functools.cache(cast(Any, function)))


MODEL_TYPE = "linear_encoder"
PREFIX = "Linear"  # of the names of classes
AUTOS: list[Any] = [
    auto
    for auto in vars(modeling_auto).values()
    if isinstance(auto, type) and getattr(auto, "_model_mapping", None) is not None
]


class LinearConfig(PreTrainedConfig):
    """The configuration of a linear encoder: that of the original, and what its attentions are.

    ``linformer`` holds the fields of :class:`~torch_linformer.encoders.options.LinearOptions` as ``options``, and as
    ``attentions`` the heads of each attention and how far it sees, by the name of its module in the base model.
    ``positions`` holds how many tokens the encoder reads, and the names of its tables of positions.
    ``pooling`` is what makes embeddings of last hidden states.
    """

    model_type: ClassVar[str] = MODEL_TYPE
    encoder_class: ClassVar[type[PreTrainedModel]]
    linformer: dict[str, Any] | None = None
    positions: dict[str, Any] | None = None
    pooling: str = "mean"

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """The configuration of the encoder that ``config_dict`` names, whose class this makes and registers."""
        if cls is LinearConfig:
            return linear_config(_named_class(config_dict.get("encoder_class"))).from_dict(config_dict, **kwargs)
        known = {name: value for name, value in config_dict.items() if name not in ("encoder_class", "model_type")}
        return super().from_dict(known, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        written: dict[str, Any] = super().to_dict()
        return {**written, "model_type": MODEL_TYPE, "encoder_class": _full_name(self.encoder_class)}

    def __reduce__(self) -> tuple[Any, ...]:
        """Copied and pickled by the original's class, as this one is made when needed and no module holds it."""
        return _new_config, (self.encoder_class,), self.__getstate__()

    @property
    def longest_input(self) -> int:
        """Tokens read at once."""
        return self.linear_options.max_length

    @property
    def label_names(self) -> list[str]:
        """Names of the labels, in the order of the logits."""
        names: Any = self.id2label
        return [names[number] for number in sorted(names)]

    @property
    def _linear(self) -> dict[str, Any]:
        if self.linformer is None:
            raise ValueError("config.json says nothing of linformer: make such a model by torch_linformer.linearize")
        return self.linformer

    @property
    def linear_options(self) -> LinearOptions:
        options: dict[str, Any] = self._linear["options"]
        unknown = sorted(options.keys() - LinearOptions.__dataclass_fields__.keys())
        if unknown:
            raise ValueError(f"config.json: {unknown[0]} is no option of a linear encoder here: update torch-linformer")
        return LinearOptions(**options)

    def with_options(self, options: LinearOptions) -> Self:
        """A copy with other options, and with as many positions as these need."""
        changed = self.to_dict()
        if self.positions is not None:
            if self.positions["tables"]:
                changed[FIELD] += options.max_length - self.positions["longest"]
            changed["positions"] = {**self.positions, "longest": options.max_length}
        changed["linformer"] = {**self._linear, "options": asdict(options)}
        return cast(Self, type(self).from_dict(changed))

    @property
    def attentions(self) -> dict[str, FoundAttention]:
        return {name: FoundAttention(*sizes) for name, sizes in self._linear["attentions"].items()}


class LinearEncoder(PreTrainedModel):
    """An encoder of transformers whose attentions own what they attend to; a base beside the original's class."""

    original: ClassVar[type[PreTrainedModel]]
    config: LinearConfig

    def __init__(self, config: Any, *args: Any, **kwargs: Any) -> None:
        if config._attn_implementation not in (None, ATTENTION):
            raise ValueError(
                f"attn_implementation={config._attn_implementation!r} is not for a linear encoder, whose attention is "
                f"{ATTENTION!r}: leave it out"
            )
        config._attn_implementation = ATTENTION
        super().__init__(config, *args, **kwargs)
        replace_attentions(self)

    def set_attn_implementation(self, attn_implementation: Any, *args: Any, **kwargs: Any) -> None:
        """Only ``linformer``."""
        if attn_implementation != ATTENTION:
            raise ValueError(f"the attention of a linear encoder is {ATTENTION!r}, not {attn_implementation!r}")

    def __reduce__(self) -> tuple[Any, ...]:
        """As in :class:`LinearConfig`."""
        return _new_model, (self.original,), self.__getstate__()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        init_slots(module)


def replace_attentions(model: LinearEncoder) -> None:
    """Let the attentions of a model own what they attend to; what they own already and still fits keeps its values."""
    config, base = model.config, base_of(model)
    own = own_attention(cast(Any, config.encoder_class).config_class.model_type)
    if own is not None:
        own.replace(model)
    for name, found in config.attentions.items():
        try:
            module = base.get_submodule(name)
        except AttributeError:
            raise ValueError(f"config.json: attentions has {name}, and {type(model).__name__} has none") from None
        number = next((x for x in module.parameters() if x.is_floating_point()), None)
        like = {} if number is None else {"device": number.device, "dtype": number.dtype}
        context = EncoderContext(found.sizes, config.linear_options, found.reach, **like).train(module.training)
        if hasattr(module, ATTENTION):
            state, before = context.state_dict(), getattr(module, ATTENTION).state_dict()
            fits = {key: x for key, x in before.items() if key in state and state[key].shape == x.shape}
            context.load_state_dict({**state, **fits})
        setattr(module, ATTENTION, context)
    for name in Positions.said_by(config).tables:
        try:
            base.get_parameter_or_buffer(name)
        except AttributeError:
            raise ValueError(f"config.json: positions has {name}, and {type(model).__name__} has none") from None
        reader: Any = base.get_submodule(name.partition(".")[0])
        if not hasattr(reader, "longest_input"):
            reader.register_forward_pre_hook(_check_input, with_kwargs=True)
        reader.longest_input = config.longest_input


def _check_input(reader: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before a table of positions, and what is added to it, is too short."""
    for read in (*args, kwargs.get("input_ids"), kwargs.get("inputs_embeds")):
        shape = read.shape if isinstance(read, Tensor) else read
        if isinstance(shape, torch.Size) and len(shape) > 1:
            check_length(shape[1], cast(int, reader.longest_input))


def init_slots(module: nn.Module) -> None:
    """Give the parameters of slots their first values, but not those that a checkpoint has given values."""
    if isinstance(module, DynamicProjection):
        init.normal_(module.weight, mean=0.0, std=STD)
        init.zeros_(module.shift)
        init.zeros_(module.log_steepness)
    if isinstance(module, SlotTerms):
        for parameter in module.parameters():
            init.zeros_(parameter)


def linear_class(original: type[PreTrainedModel]) -> type[LinearEncoder]:
    """The linear class of a class of transformers."""
    return _linear(original, linear_config(body_of(original)))


@cached
def _linear(original: Any, config: Any) -> type[LinearEncoder]:
    body = {"config_class": config, "original": original, "__module__": __name__}
    linear = cast(type[LinearEncoder], type(PREFIX + original.__name__, (LinearEncoder, original), body))
    # As a model's constructor does, which a copy that becomes linear, or one that is unpickled, does not run.
    dict.__setitem__(_CAN_RECORD_REGISTRY, str(linear), linear._can_record_outputs)
    # Folders of some encoders (ViT) keep older names of weights, which transformers looks up by the name of the class.
    renaming = get_checkpoint_conversion_mapping(original.__name__)
    if renaming is not None:
        register_checkpoint_conversion_mapping(linear.__name__, renaming, overwrite=True)
    return linear


@cached
def linear_config(body: Any) -> type[LinearConfig]:
    """The configuration class of the linear models with a body; the Auto classes that open the original's know it."""
    original = body.config_class
    kind: Any = type(
        PREFIX + original.__name__, (LinearConfig, original), {"encoder_class": body, "__module__": __name__}
    )
    for auto in AUTOS:
        opened = opened_by(auto, original)
        if opened is not None and body_of(opened) is body:
            auto.register(kind, _linear(opened, kind))
        elif auto is transformers.AutoModel:
            auto.register(kind, _linear(body, kind))
    return cast(type[LinearConfig], kind)


def body_of(model_class: type[PreTrainedModel]) -> type[PreTrainedModel]:
    """The class below the head of a model class; an encoder that no Auto class opens, such as Whisper's, is its own."""
    original = cast(type[PreTrainedConfig], model_class.config_class)
    opened = opened_by(transformers.AutoModel, original)
    known = any(opened_by(auto, original) is model_class for auto in AUTOS)
    return opened if known and opened is not None else model_class


def linear_or_original(fields: dict[str, Any]) -> PreTrainedModel:
    """The body that a :class:`LinearConfig` with these fields describes, with random weights: the original's, with its
    own attention, where ``linformer`` is None.
    """
    body = _named_class(fields["encoder_class"])
    if fields["linformer"] is not None:
        kind: Any = linear_class(body)
        return cast(PreTrainedModel, kind(kind.config_class.from_dict(fields)))
    ours = ("encoder_class", "linformer", "model_type", "positions")
    own = {name: value for name, value in fields.items() if name not in ours}
    return body(cast(Any, body).config_class.from_dict(own))


def windowed_config(encoder: PreTrainedModel, positions: Positions) -> LinearConfig:
    """The configuration of an encoder with its ordinary attention, below a head that reads rows in windows."""
    config: Any = encoder.config
    said = {"encoder_class": _full_name(type(encoder)), "linformer": None, "positions": asdict(positions)}
    return cast(LinearConfig, LinearConfig.from_dict({**config.to_dict(), **said}))


def opened_by(auto: Any, config: type[PreTrainedConfig]) -> type[PreTrainedModel] | None:
    """The class that an Auto class opens for a configuration of transformers."""
    if config not in auto._model_mapping:
        return None
    opened: Any = auto._model_mapping[config]
    return cast(type[PreTrainedModel], opened[0] if isinstance(opened, (tuple, list)) else opened)


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def class_named(config: LinearConfig, name: str) -> type[LinearEncoder] | None:
    """The class of that name, ``LinearBertModel``, among those that the Auto classes open; None where there is none."""
    opened: list[Any] = [linear_class(config.encoder_class), *(opened_by(auto, type(config)) for auto in AUTOS)]
    return next((kind for kind in opened if kind is not None and kind.__name__ == name), None)


def _named_class(name: object) -> type[PreTrainedModel]:
    """The class that a ``config.json`` names, whoever wrote it: of transformers, or one that is loaded already."""
    module, _, kind = str(name).rpartition(".")
    if module.startswith("transformers.models."):
        with suppress(ImportError):
            importlib.import_module(module)
    named = getattr(sys.modules.get(module), kind, None)
    if not (isinstance(named, type) and issubclass(named, PreTrainedModel)):
        raise ValueError(
            f"config.json: encoder_class {name!r} is no model of transformers {transformers.__version__}; update "
            "transformers, import the module that defines it, or copy the folder again"
        )
    return named


def _new_config(body: type[PreTrainedModel]) -> LinearConfig:
    config = linear_config(body)
    return config.__new__(config)


def _new_model(original: type[PreTrainedModel]) -> LinearEncoder:
    linear = linear_class(original)
    return linear.__new__(linear)


AutoConfig.register(MODEL_TYPE, LinearConfig, exist_ok=True)

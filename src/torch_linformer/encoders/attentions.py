"""The attentions of an encoder, and which positions they see: found by running it once with one that takes notes."""

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedConfig, PreTrainedModel

from torch_linformer.encoders.families import own_attention
from torch_linformer.errors import first_line
from torch_linformer.nn.attention.context import HeadSizes
from torch_linformer.nn.padding import LOWEST

RECORDER = "linformer_recorder"  # the attention that takes notes
one_at_a_time = threading.RLock()  # transformers has one register of attentions for all threads
TOKENS = 8  # of the text that a model is run on
SAMPLES = 3200  # of the sound; convolutions make a few positions of them
FRAMES = 64  # of a spectrogram of any length
CAUSAL = "is causal: its tokens see only what comes before them, and a slot mixes all positions"
PAIRS = (
    "masks pairs of positions, and slots have none: only padding, and windows of as many tokens on either side, can be "
    "masked"
)


class FoundAttention(NamedTuple):
    """One self-attention, that may be run several times (ALBERT); a query sees positions at most ``reach`` away, None
    for all.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    reach: int | None = None

    @property
    def sizes(self) -> HeadSizes:
        return HeadSizes.of_heads(self.num_heads, self.head_dim, self.num_kv_heads)


class Reached(Exception):
    """A model that is run for what comes before its first attention has come to it."""


def stop(*args: Any, **kwargs: Any) -> Any:
    """An attention, or a hook of one, that lets nothing behind it run."""
    raise Reached


def base_of(model: PreTrainedModel) -> PreTrainedModel:
    """What is below the head of a model; the model itself where that does not read its inputs (DINOv3)."""
    base: Any = model.base_model
    reads = inspect.signature(base.forward).parameters if isinstance(base, PreTrainedModel) else ()
    return cast(PreTrainedModel, base) if str(model.main_input_name) in reads else model


def find_attentions(base: PreTrainedModel) -> dict[str, FoundAttention]:
    """The self-attentions of a model that go through transformers' attention interface, by the names of their modules.

    Or those of a family that has an attention of its own which can be replaced.

    Raises:
        ValueError: there are none, or some are causal, or attend to another sequence.
    """
    own = own_attention(base.config.model_type)
    if own is not None:
        return cast(dict[str, FoundAttention], own.find(base))
    names = {module: name for name, module in base.named_modules()}
    attentions: dict[str, FoundAttention] = {}

    def note(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **kwargs: Any) -> Any:
        kind = type(module).__name__
        if query.shape[2] != key.shape[2]:
            raise ValueError(f"{kind} attends to another sequence: linearize the encoder alone (model.get_encoder())")
        window = kwargs.get("sliding_window")
        if kwargs.get("is_causal") or (mask is None and getattr(module, "is_causal", False)):
            raise ValueError(f"{kind} {CAUSAL}")
        if callable(mask):
            reach = reach_of_function(kind, mask, window or getattr(base.config, "sliding_window", None) or 0)
        elif mask is None:
            reach = None if window is None else window - 1  # as transformers' flash attention counts
        else:
            reach = reach_of_mask(kind, mask)
        attentions[names[module]] = FoundAttention(query.shape[1], key.shape[1], query.shape[3], reach)
        repeats = query.shape[1] // key.shape[1]
        keys, values = (x.repeat_interleave(repeats, dim=1) for x in (key, value))
        return F.scaled_dot_product_attention(query, keys, values).transpose(1, 2), None

    if type(base)._can_set_attn_implementation():
        with recorded_by(note, base, lambda *args, mask_function, **kwargs: mask_function):
            inputs = example_inputs(base, TOKENS)
            if "input_ids" in inputs:  # some are causal only where they are given a mask (AIMv2)
                inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
            run(base, inputs)
    if not attentions:
        raise ValueError(
            f"the attention of {type(base).__name__} does not go through transformers' attention interface, so it "
            "cannot be replaced"
        )
    looks_up = {kind: _looks_up_attention(kind) for kind in set(map(type, names))}
    left = [name for module, name in names.items() if name not in attentions and looks_up[type(module)]]
    if left:
        raise ValueError(f"{left[0]} attends to something else than this input: linearize the encoder alone")
    return attentions


def _looks_up_attention(module: type[nn.Module]) -> bool:
    """Whether a kind of module goes through the attention interface, which nothing but its source says."""
    try:
        return ".get_interface(" in inspect.getsource(module.forward)
    except (OSError, TypeError):
        return False


def run(model: PreTrainedModel, inputs: dict[str, Tensor], what: str = "a small made-up input") -> Any:
    """The outputs of a model, compiled or not; whatever it raises is a ``ValueError``."""
    try:
        with torch.compiler.set_stance("force_eager"):  # an attention that takes notes is none to compile
            return model(**inputs)
    except (Reached, ValueError):
        raise
    except Exception as error:
        raise ValueError(f"{what} cannot be read: {type(error).__name__}: {first_line(error)}") from error


def example_inputs(model: PreTrainedModel, length: int, rows: int = 1) -> dict[str, Tensor]:
    """A small input of a model: texts of ``length`` tokens, images, films, or sounds.

    Raises:
        ValueError: it reads something else, or its configuration does not say of which size.
    """
    config: Any = model.config
    name = str(model.main_input_name)
    extra: dict[str, Tensor] = {}
    try:
        match name:
            case "input_ids":
                ids = torch.arange(rows * length).view(rows, length)
                first = min(max(5, (getattr(config, "pad_token_id", None) or 0) + 1), config.vocab_size - 1)
                return {name: (first + ids * 7 % (config.vocab_size - first)).to(model.device)}
            case "pixel_values" if "spatial_shapes" in inspect.signature(model.forward).parameters:  # patches in a row
                side, channels = 4, getattr(config, "num_channels", 3)
                shape: tuple[int, ...] = (side * side, channels * config.patch_size**2)
                extra["spatial_shapes"] = torch.full((rows, 2), side, device=model.device)
                extra["pixel_attention_mask"] = torch.ones(rows, side * side, dtype=torch.long, device=model.device)
            case "pixel_values":
                size = config.image_size
                frames = getattr(config, "num_frames", None)
                height, width = (size, size) if isinstance(size, int) else size
                shape = (*([frames] if frames else []), getattr(config, "num_channels", 3), height, width)
            case "input_features" if hasattr(config, "max_source_positions"):
                shape = (config.num_mel_bins, 2 * config.max_source_positions)
            case "input_features":
                shape = (FRAMES, config.num_mel_bins)
            case "input_values" if hasattr(config, "num_mel_bins"):  # a spectrogram
                shape = (config.max_length, config.num_mel_bins)
            case "input_values":
                shape = (SAMPLES,)
            case _:
                raise ValueError(f"{type(model).__name__} reads {name}: linear are encoders of text, images and sound")
    except AttributeError as error:
        raise ValueError(
            f"it is no encoder of one text, image or sound, or its configuration does not say so ({first_line(error)}):"
            " linearize the part of it that is one"
        ) from error
    draw = torch.Generator().manual_seed(0)
    return {name: torch.randn(rows, *shape, generator=draw).to(model.device, model.dtype), **extra}


@contextmanager
def recorded_by(
    function: Callable[..., Any], model: PreTrainedModel, mask: Callable[..., Any] = lambda *args, **kwargs: None
) -> Iterator[None]:
    """Meanwhile a model in evaluation mode, and the models in it, attend by ``function``; ``mask`` makes the masks."""
    interfaces: tuple[Any, ...] = (AttentionInterface, AttentionMaskInterface)
    with one_at_a_time:
        AttentionInterface.register(RECORDER, function)
        AttentionMaskInterface.register(RECORDER, mask)
        owned = (getattr(module, "config", None) for module in model.modules())
        configs = {id(config): cast(Any, config) for config in owned if isinstance(config, PreTrainedConfig)}.values()
        before = [config._attn_implementation for config in configs]
        try:
            for config in configs:
                config._attn_implementation = RECORDER
            with evaluating(model), torch.no_grad():
                yield
        finally:
            for config, implementation in zip(configs, before, strict=True):
                config._attn_implementation = implementation
            for interface in interfaces:
                del interface._global_mapping[RECORDER]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Meanwhile a model is in evaluation mode, whichever of its modules were before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


def reach_of_function(kind: str, visible: Callable[..., Any], window: int) -> int | None:
    """How far a query of the attention ``kind`` sees on either side, as a mask function says; None for everything.

    No window is larger than twice ``window``, or than a few tokens. Causal masks and those of other pairs are refused.
    """
    length = 4 * window + 9
    query, key = torch.arange(length)[:, None], torch.arange(length)
    first = torch.zeros((), dtype=torch.long)
    try:
        rows = [(visible(first, first, query[i], key) & (key >= 0)).tolist() for i in (0, length // 2, length - 1)]
    except (IndexError, RuntimeError):  # a function of this batch
        raise ValueError(f"{kind} {PAIRS}") from None
    return _reach(kind, rows)


def reach_of_mask(kind: str, mask: Tensor) -> int | None:
    """The same of a mask ``(B, 1 or H, 1 or N, N)`` of rows without padding: bool, or what is added to scores."""
    pairs = mask if mask.dtype == torch.bool else mask > LOWEST
    first = pairs.flatten(0, -3)[0].expand(pairs.shape[-1], -1)
    return _reach(kind, [first[i].tolist() for i in (0, len(first) // 2, len(first) - 1)])


def _reach(kind: str, rows: list[list[bool]]) -> int | None:
    """That of three rows of a mask: of the first query, of one in the middle, and of the last."""
    if all(map(all, rows)):
        return None
    length = len(rows[0])
    middle = length // 2
    before, after = rows[1][:middle], rows[1][middle + 1 :]
    reach = sum(after)
    if not reach and sum(before) and not any(rows[0][1:]):
        raise ValueError(f"{kind} {CAUSAL}")
    window = [[abs(key - query) <= reach for key in range(length)] for query in (0, middle, length - 1)]
    if rows != window:
        raise ValueError(f"{kind} {PAIRS}")
    return reach

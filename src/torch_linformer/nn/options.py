"""What attentions, layers and stacks take beside the arguments of ``torch.nn``: declared, with defaults and checks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from numbers import Integral
from typing import Any, Self, TypedDict, get_args

from torch_linformer.choices import ActivationMemory, Projection, Sharing, SlotMass
from torch_linformer.functional.causal import check_window

DENSE = ("linear", "random")
PARAMETERLESS = ("mean", "max")
COUNTED = ("mean", "max", "conv", "dynamic")  # whose slots stand for a number of tokens
PER_HEAD = ("none", "kv_per_head")  # sharing in which every key/value head has its own map
ONE_MAP = ("kv_per_head", "kv", "layerwise")  # sharing in which keys and values have one
DEFAULT_K = 256


@dataclass(frozen=True, kw_only=True)
class AttentionConfig:
    """The options of an attention, in any module that has one.

    Attributes:
        num_kv_heads: heads of keys and values (1: multi-query attention), H by default; divides H.
        head_dim: width D of one head, C / H by default.
        projection: ``linear``, ``random``, ``conv``, ``mean`` or ``max`` (see
            :class:`~torch_linformer.nn.SequenceProjection`), ``dynamic`` (chosen by the input: see
            :class:`~torch_linformer.nn.DynamicProjection`); None for an attention that owns no map and is given
            ``shared_projection`` at each call.
        sharing: ``none`` (E and F for every key/value head), ``kv_per_head`` (one E = F for every key/value head,
            ``proj_v`` is None), ``headwise`` (one E, one F a layer), ``kv`` (one E = F a layer, ``proj_v`` is None) or,
            in an encoder or decoder, ``layerwise`` (one E = F for the whole stack).
        length_scaling: False leaves the length factor s out (``linear`` and ``random``).
        causal: position t attends to running means of what came before it, itself included, instead of E and F over
            all positions: see :class:`~torch_linformer.nn.dynamic_projection.CausalProjection`. There is no longest
            sequence: ``max_len`` is the longest time scale that slots begin with.
        window: a local window in the same softmax: with ``causal`` the last w tokens, the query's own among them, and
            otherwise those at most w // 2 positions away. With it ``k`` may be 0: no slots, only the window.
        rotary_dim: channels of each head in which queries and keys of causal attention are turned by their position,
            even; see ``torch_linformer.functional.softmax.rotate``.
        slot_bias: parameters ``bias_k`` and ``bias_v`` ``(num_kv_heads, K, D)``, 0 at first, are added to
            :math:`\\bar K` and :math:`\\bar V`. The paper has none; some models trained elsewhere do.
        slot_mass: a slot that stands for m tokens has log m added to its scores: ``none``, ``fixed``, or ``learned``,
            plus a parameter ``mass`` ``(num_kv_heads, K)``, 0 at first. For slots of windows and ``dynamic`` ones.
        exact_first: the first tokens, which every query also attends to themselves, in the same softmax (``[CLS]``);
            with ``causal`` those up to the query's own (attention sinks). In a window none counts twice.
        exact_last: the last tokens likewise (``[SEP]``); not in causal attention.
    """

    num_kv_heads: int | None = None
    head_dim: int | None = None
    projection: Projection | None = "linear"
    sharing: Sharing = "headwise"
    length_scaling: bool = True
    causal: bool = False
    window: int | None = None
    rotary_dim: int = 0
    slot_bias: bool = False
    slot_mass: SlotMass = "none"
    exact_first: int = 0
    exact_last: int = 0

    @classmethod
    def of(cls, owner: object, options: Mapping[str, Any]) -> Self:
        """``options`` with the defaults of those left out; ``TypeError``, as Python's, for one that ``owner`` lacks."""
        unknown = sorted(options.keys() - {field.name for field in fields(cls)})
        if unknown:
            raise TypeError(f"{type(owner).__name__} got an unexpected keyword argument {unknown[0]!r}")
        return cls(**options)

    def check(self) -> None:
        """Raise ``ValueError`` for a value outside its choices or its range, whatever else is chosen."""
        if self.projection is not None:
            check_choice("projection", self.projection, Projection)
        check_choice("sharing", self.sharing, Sharing)
        check_choice("slot_mass", self.slot_mass, SlotMass)
        check_window(self.window)
        for name in ("exact_first", "exact_last"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 tokens, got {getattr(self, name)}")

    @property
    def attention(self) -> dict[str, Any]:
        """The options of the attention among these."""
        return {field.name: getattr(self, field.name) for field in fields(AttentionConfig)}


@dataclass(frozen=True, kw_only=True)
class LayerConfig(AttentionConfig):
    """The options of a layer.

    Attributes:
        attention_dropout: on the attention weights; the layer's ``dropout`` by default.
        gated: feed-forward ``W₂ (φ(W₁ x) ⊙ W_g x)``; False by default.
        chunk_size: positions worked on at once; None, the default, for the whole sequence. Without gradients one pass
            over the sequence makes the slots and a second one runs the layer, so only the hidden states grow with N.
            With gradients only the feed-forward runs in chunks, and again in the backward pass.
    """

    attention_dropout: float | None = None
    gated: bool = False
    chunk_size: int | None = None

    def dropout_of_weights(self, dropout: float) -> float:
        return dropout if self.attention_dropout is None else self.attention_dropout


@dataclass(frozen=True, kw_only=True)
class StackConfig(LayerConfig):
    """The options of a stack of layers.

    Attributes:
        final_norm: False leaves out the final norm that a stack with ``norm_first`` has.
        activation_memory: what training keeps of each layer for the backward pass. ``none``, the default: all that
            autograd saves. ``checkpoint``: the layer's input; the layer is computed again, which changes no number.
            ``reversible`` (encoders with ``norm_first``): nothing, and the model is another one: see
            ``torch_linformer.nn.reversible``.
    """

    final_norm: bool = True
    activation_memory: ActivationMemory = "none"


class AttentionOptions(TypedDict, total=False):
    """The fields of :class:`AttentionConfig`, as keywords that type checkers and editors know."""

    num_kv_heads: int | None
    head_dim: int | None
    projection: Projection | None
    sharing: Sharing
    length_scaling: bool
    causal: bool
    window: int | None
    rotary_dim: int
    slot_bias: bool
    slot_mass: SlotMass
    exact_first: int
    exact_last: int


class LayerOptions(AttentionOptions, total=False):
    """Those of :class:`LayerConfig`."""

    attention_dropout: float | None
    gated: bool
    chunk_size: int | None


class StackOptions(LayerOptions, total=False):
    """Those of :class:`StackConfig`."""

    final_norm: bool
    activation_memory: ActivationMemory


def check_choice(name: str, value: object, choices: Any) -> None:
    """Raise ``ValueError`` for a ``value`` that the type ``choices`` (a ``Literal``) does not list."""
    if value not in get_args(choices):
        raise ValueError(f"{name} must be one of {', '.join(get_args(choices))}, got {value!r}")


def default_k(length: int) -> int:
    """K for sequences of ``length`` tokens where nobody chose it: a quarter of them, :data:`DEFAULT_K` at most."""
    return max(1, min(DEFAULT_K, length // 4))


def check_k(
    k: int,
    longest: int,
    *,
    causal: bool = False,
    window: int | None = None,
    name: str = "k",
    limit: str = "max_len",
) -> None:
    """Raise ``ValueError`` for a number of slots that cannot be made, or that leaves nothing to attend to.

    It lies between 1 and ``longest``, which the user knows as ``limit``; slots that are running means (``causal``) may
    be more, and beside a ``window`` there may be none.
    """
    if causal and (k < 0 or longest < 1):
        raise ValueError(f"{name} must be at least 0 and {limit} at least 1, got {k} and {longest}")
    if causal and k == 0 and window is None:
        raise ValueError(f"{name}=0 leaves nothing to attend to: give window, or {name} of at least 1")
    if longest < 1:
        raise ValueError(f"{limit} must be at least 1, got {longest}")
    if not causal and not 1 <= k <= longest and not (k == 0 and window is not None):
        raise ValueError(f"{name} must lie between 1 and {limit} = {longest}, got {k}")


def check_new_length(max_len: int, mode: str, k: int | list[int], name: str = "k") -> None:
    """Raise ``ValueError`` for an unknown mode, or a length that is no number or below ``k``, the field ``name``."""
    if mode not in ("interpolate", "keep"):
        raise ValueError(f"mode must be 'interpolate' or 'keep', got {mode!r}")
    least = max(1, k if isinstance(k, int) else max(k))
    if not isinstance(max_len, Integral):
        raise ValueError(f"max_len must be a whole number, got {max_len!r}")
    if max_len < least:
        raise ValueError(f"max_len must be at least {name} = {least}, got {max_len}")


def check_activation_memory(activation_memory: str, norm_first: bool, decoder: bool = False) -> None:
    """Raise ``ValueError`` for an unknown way to keep activations, or one that the layers do not allow."""
    check_choice("activation_memory", activation_memory, ActivationMemory)
    if activation_memory != "reversible":
        return
    if decoder:
        raise ValueError("activation_memory='reversible' belongs to encoders: take 'checkpoint' for a decoder")
    if not norm_first:
        raise ValueError(
            "activation_memory='reversible' needs norm_first=True, got norm_first=False: a norm after the residual "
            "connection cannot be computed back; take activation_memory='checkpoint' for such layers"
        )

"""Configuration of the Linformer models."""

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Self

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig
from transformers.activations import ACT2FN

from torch_linformer.choices import AttentionKind, Pooling, PositionEmbedding
from torch_linformer.functional.softmax import check_exact_tokens
from torch_linformer.lengths import longest_input
from torch_linformer.models.arguments import CACHE_NAMES
from torch_linformer.models.backbone_fields import fill_from_backbone
from torch_linformer.models.base_configuration import BaseConfig
from torch_linformer.nn.attention import CONTEXTS
from torch_linformer.nn.chunks import check_chunk_size
from torch_linformer.nn.options import (
    AttentionConfig,
    check_activation_memory,
    check_choice,
    check_k,
    default_k,
)

CHOICES: dict[str, Any] = {
    "attention": AttentionKind,
    "position_embedding": PositionEmbedding,
    "pooling": Pooling,
}

FIELDS = (
    "projection",
    "sharing",
    "length_scaling",
    "causal",
    "window",
    "slot_bias",
    "slot_mass",
    "exact_first",
    "exact_last",
)
"""The options of attention that a configuration has under the same name."""


@strict
class LinformerConfig(BaseConfig):
    """What a Linformer model is built from. Defaults have the dimensions of RoBERTa-base at 4,096 tokens.

    It has the usual fields of transformers, and these.

    Args:
        max_position_embeddings: longest input in tokens, ``max_len`` of the projections. A causal model has no longest
            input unless its positions are ``learned``; its slots begin with time scales up to this one.
        num_key_value_heads: heads of keys and values, ``num_attention_heads`` by default.
        head_dim: width of one head, ``hidden_size / num_attention_heads`` by default.
        k: slots K, one number, min(256, max_position_embeddings / 4) by default, or one a layer.
        sharing, projection, length_scaling, causal, window, slot_bias, slot_mass, exact_first, exact_last: options of
            the attention: see :class:`torch_linformer.nn.options.AttentionConfig`.
        attention: ``linformer``, or ``full`` for the same model with ordinary attention.
        position_embedding: ``learned``, ``sinusoidal``, ``none``, or for causal models ``rotary``; positions count real
            tokens.
        partial_rotary_factor: share of each head's channels that rotary positions turn.
        pooling: what a classifier reads: ``mean``, ``cls`` (the first real token, of a model that is not causal),
            ``last`` (the last real token), ``max``, or ``mean_max`` (both, side by side); padding takes no part.
        classifier_hidden_act: a dense layer with this activation between the pooling and the classifier, as BERT's
            pooler has one; None means none.
        embedding_norm: False leaves the norm of the embeddings out.
        norm_first: pre-norm layers and a final norm.
        final_norm: False leaves that final norm out.
        gated: gated feed-forward.
        lm_head_transform: False makes the head of a language model one linear map.
        activation_memory: what training keeps of each layer: ``none`` (everything), ``checkpoint`` (its input) or
            ``reversible`` (nothing; another model, which needs ``norm_first``): see
            :class:`torch_linformer.nn.options.StackConfig`.
        chunk_size: positions that inference works on at once, None for all.
        class_weights: weight of each label in the classification loss.
        lexical_features: words and pairs that the lexical head of a classifier counts
            (``torch_linformer.models.lexical_head``); None for a classifier without one.
        lexical_letters: of the longest token, where that head counts n-grams of characters too; 0 where it does not.
        threshold: the probability above which a label is predicted, where ``problem_type`` is
            ``multi_label_classification``; logits do not depend on it.
        max_answer_length: tokens of an answer to a question at most, None for any; logits do not depend on it.
        backbone_config: the configuration of a linear encoder (``torch_linformer.linearize(model).config``), on whose
            hidden states a head for rows, tokens or answers stands instead of layers of Linformer. Sizes and attention
            are then the encoder's, and are not given.
        read_window: tokens that an encoder with its ordinary attention reads at once: a longer row is read in windows,
            each with the row's ``exact_first`` and ``exact_last`` special tokens around its own. Rows may then have any
            length; ``max_position_embeddings`` says how much of a document is read.

    Raises:
        TypeError: for a keyword that neither it nor transformers knows; saved configurations may have any.
        ValueError: for a value that no model can be built from, and for an option that its attention does not have.
        huggingface_hub.errors.StrictDataclassFieldValidationError: for a value of another type.

    Example:
        >>> import torch
        >>> from torch_linformer import LinformerConfig, LinformerForSequenceClassification
        >>> config = LinformerConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=2, num_attention_heads=4,
        ...     intermediate_size=128, max_position_embeddings=8192, k=256, num_labels=3)
        >>> model = LinformerForSequenceClassification(config)
        >>> model(input_ids=torch.randint(1000, (2, 5000))).logits.shape
        torch.Size([2, 3])
    """

    if TYPE_CHECKING:  # a keyword too, as in transformers, where it is a property
        num_labels: int | None = None

    model_type = "linformer"
    keys_to_ignore_at_inference = [*CACHE_NAMES, "lexical_logits"]  # noqa: RUF012 - transformers reads it from the class

    vocab_size: int = 50265
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.1
    max_position_embeddings: int = 4096
    type_vocab_size: int = 2
    initializer_range: float | int = 0.02
    layer_norm_eps: float | int = 1e-5
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True
    classifier_dropout: float | int | None = None

    k: int | list[int] | None = None
    sharing: str = AttentionConfig.sharing
    projection: str | None = AttentionConfig.projection
    length_scaling: bool = AttentionConfig.length_scaling
    causal: bool = AttentionConfig.causal
    window: int | None = AttentionConfig.window
    slot_bias: bool = AttentionConfig.slot_bias
    slot_mass: str = AttentionConfig.slot_mass
    exact_first: int = AttentionConfig.exact_first
    exact_last: int = AttentionConfig.exact_last
    attention: str = "linformer"
    position_embedding: str = "learned"
    partial_rotary_factor: float | int = 0.5
    pooling: str = "mean"
    classifier_hidden_act: str | None = None
    embedding_norm: bool = True
    norm_first: bool = False
    final_norm: bool = True
    gated: bool = False
    lm_head_transform: bool = True
    activation_memory: str = "none"
    chunk_size: int | None = None
    class_weights: list[float | int] | None = None
    lexical_features: int | None = None
    lexical_letters: int = 0
    threshold: float | int = 0.5
    max_answer_length: int | None = None
    backbone_config: dict[str, Any] | PreTrainedConfig | None = None
    read_window: int | None = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """As in transformers, except that ``kwargs`` are checked together with the rest.

        Where ``kwargs`` ask for other attention, saved options that this does not have are left out.
        """
        changes = take_fields(cls, kwargs)
        changed = with_changes(config_dict, changes) if changes else config_dict
        return super().from_dict({"model_type": cls.model_type, **changed}, **kwargs)

    def __post_init__(self, **kwargs: Any) -> None:
        for name, choices in CHOICES.items():
            check_choice(name, getattr(self, name), choices)
        if self.backbone_config is not None:
            fill_from_backbone(self)
        if self.k is None:
            self.k = default_k(self.max_position_embeddings)
        if self.num_key_value_heads is None:
            self.num_key_value_heads = self.num_attention_heads
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            raise ValueError(
                f"hidden_size {self.hidden_size} is not a multiple of num_attention_heads {self.num_attention_heads}"
            )
        activations = {"hidden_act": self.hidden_act}
        if self.classifier_hidden_act is not None:
            activations["classifier_hidden_act"] = self.classifier_hidden_act
        for name, activation in activations.items():
            if activation not in ACT2FN:
                raise ValueError(f"{name} must be one of {', '.join(sorted(ACT2FN))}, got {activation!r}")
        if self.pad_token_id is not None and not -self.vocab_size <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} lies outside vocab_size {self.vocab_size}")
        if not self.causal and self.position_embedding == "rotary":
            raise ValueError(
                "position_embedding='rotary' needs causal=True: slots of a whole sequence have no position"
            )
        if self.lexical_features is not None and self.lexical_features < 1:
            raise ValueError(f"lexical_features must be at least 1, got {self.lexical_features}")
        if self.lexical_letters < 0:
            raise ValueError(f"lexical_letters must not be negative, got {self.lexical_letters}")
        if self.read_window is not None and self.backbone_config is None:
            raise ValueError(f"read_window={self.read_window} is for the encoder of a backbone_config: leave it out")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, got {self.threshold}")
        if self.max_answer_length is not None and self.max_answer_length < 1:
            raise ValueError(f"max_answer_length must be at least 1, got {self.max_answer_length}")
        if self.backbone_config is None:
            self._check_attention()
        check_activation_memory(self.activation_memory, self.norm_first)
        check_chunk_size(self.chunk_size)
        super().__post_init__(**kwargs)

    def _check_attention(self) -> None:
        CONTEXTS[self.attention][self.causal].check_options(attention_options(self))
        if self.attention == "full":
            return
        longest, limit = self.max_position_embeddings, "max_position_embeddings"
        for k in self.slots:
            check_k(k, longest, causal=self.causal, window=self.window, limit=limit)
        if not self.causal:
            check_exact_tokens(self.exact_first, self.exact_last, longest, limit=limit)

    def _dependent(self, changes: dict[str, Any]) -> dict[str, Any]:
        one_each = self.num_key_value_heads == self.num_attention_heads and "num_attention_heads" in changes
        return {"num_key_value_heads": None} if one_each and "num_key_value_heads" not in changes else {}

    @property
    def slots(self) -> list[int]:
        """K: one number, or one a layer."""
        return [self.k] if isinstance(self.k, int) else list(self.k or ())

    def to_diff_dict(self) -> dict[str, Any]:
        """What ``config.json`` holds; K too where it is the default: a model may come to read other lengths."""
        return {**super().to_diff_dict(), "k": self.k}

    @property
    def rotary_dim(self) -> int:
        """Channels of each head that rotary positions turn, an even number."""
        if self.position_embedding != "rotary":
            return 0
        width = self.hidden_size // self.num_attention_heads if self.head_dim is None else self.head_dim
        return int(width * self.partial_rotary_factor) // 2 * 2

    @property
    def longest_input(self) -> int | None:
        """Tokens that a model can read at once; None if there is no limit."""
        return longest_input(self)

    @property
    def label_names(self) -> list[str]:
        """The labels of a classifier, in the order of its logits."""
        names: dict[Any, str] = self.id2label or {}
        return [names[number] for number in sorted(names)]


def attention_options(config: LinformerConfig) -> AttentionConfig:
    """The options of every attention of a model."""
    options = {name: getattr(config, name) for name in ("head_dim", "rotary_dim", *FIELDS)}
    return AttentionConfig(num_kv_heads=config.num_key_value_heads, **options)


def take_fields(config_class: type[PreTrainedConfig], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Move the fields that ``config_class`` adds out of ``kwargs``, which transformers would set without a check."""
    names = {field.name for field in fields(config_class)} - {field.name for field in fields(PreTrainedConfig)}
    return {name: kwargs.pop(name) for name in names & kwargs.keys()}


def with_changes(saved: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of a configuration with ``changes``, without ``saved`` options that its attention does not have."""
    changed = {**saved, **changes}
    options = AttentionConfig(**{name: changed[name] for name in FIELDS if name in changed})
    attention = changed.get("attention", "linformer")
    check_choice("attention", attention, CHOICES["attention"])
    unused = CONTEXTS[attention][bool(options.causal)].unused_options(options)
    return {name: value for name, value in changed.items() if name in changes or name not in unused}

"""Configurations of the Linformer models, and which of transformers' Auto classes opens which model."""

import inspect
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast, get_args

from huggingface_hub.dataclasses import strict
from transformers import GenerationConfig, PreTrainedConfig
from transformers.activations import ACT2FN

from torch_linformer.choices import AttentionKind, Pooling, PositionEmbedding
from torch_linformer.encoders.classes import MODEL_TYPE, LinearConfig
from torch_linformer.encoders.families import dropout_of
from torch_linformer.functional.softmax import check_exact_tokens
from torch_linformer.models.arguments import CACHE_NAMES, refuse
from torch_linformer.nn.attention import CONTEXTS
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.chunks import check_chunk_size
from torch_linformer.nn.options import (
    DENSE,
    PARAMETERLESS,
    AttentionConfig,
    check_activation_memory,
    check_choice,
    check_k,
    default_k,
)

AUTO_CLASSES = {  # of a model type
    "linformer": {
        "AutoConfig": "LinformerConfig",
        "AutoModel": "LinformerModel",
        "AutoModelForCausalLM": "LinformerForCausalLM",
        "AutoModelForMaskedLM": "LinformerForMaskedLM",
        "AutoModelForMultipleChoice": "LinformerForMultipleChoice",
        "AutoModelForPreTraining": "LinformerForMaskedLM",
        "AutoModelForQuestionAnswering": "LinformerForQuestionAnswering",
        "AutoModelForSequenceClassification": "LinformerForSequenceClassification",
        "AutoModelForTextEncoding": "LinformerModel",
        "AutoModelForTokenClassification": "LinformerForTokenClassification",
    },
    "linformer_seq2seq": {
        "AutoConfig": "LinformerSeq2SeqConfig",
        "AutoModel": "LinformerForConditionalGeneration",
        "AutoModelForPreTraining": "LinformerForConditionalGeneration",
        "AutoModelForSeq2SeqLM": "LinformerForConditionalGeneration",
    },
}
CODE = "modeling_linformer"  # the module in a saved folder
CODE_TEXT = '''"""Opens this folder with trust_remote_code=True where torch-linformer is installed."""

from torch_linformer import {names}
'''


class NotCopied:
    """A class whose code transformers never copies into a saved folder: the module there imports it.

    Otherwise opening a folder with ``trust_remote_code=True`` would have the next save copy it, as a second class of
    the same name. Subclasses in other packages are copied as usual.
    """

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        if cls.__module__.partition(".")[0] != "torch_linformer":
            options = {} if auto_class is None else {"auto_class": auto_class}
            super().register_for_auto_class(**options)  # type: ignore[misc]  # of transformers, after this class


_OF_TRANSFORMERS = {
    *(name for name in dir(PreTrainedConfig) if not callable(getattr(PreTrainedConfig, name, None))),
    *vars(PreTrainedConfig()),
    *vars(GenerationConfig()),
    *("_commit_hash", "attn_implementation", "auto_map", "experts_implementation", "quantization_config"),
    # What configurations of transformers 4 have, and tools still write.
    *("add_cross_attention", "cross_attention_hidden_size", "finetuning_task", "gradient_checkpointing", "is_decoder"),
    *("prefix", "pruned_heads", "sep_token_id", "task_specific_params", "tf_legacy_loss", "tie_encoder_decoder"),
    *("tokenizer_class", "torchscript", "use_bfloat16"),
}
_BOOLS = {**dict.fromkeys(("true", "1", "y", "yes"), True), **dict.fromkeys(("false", "0", "n", "no"), False)}


class BaseConfig(NotCopied, PreTrainedConfig):
    """A configuration that refuses keywords which are neither its own nor transformers', unless it was saved.

    A saved one has a ``model_type``, and whatever other libraries left there. Its ``auto_map`` names our classes.
    """

    model_type: ClassVar[str]

    def __post_init__(self, **kwargs: Any) -> None:
        if "model_type" not in kwargs:
            for name in kwargs:
                if name not in _OF_TRANSFORMERS:
                    refuse(name, f"{type(self).__name__}()", [field.name for field in fields(self)])
        ours = {auto: f"{CODE}.{name}" for auto, name in AUTO_CLASSES[self.model_type].items()}
        self.auto_map = {**ours, **(kwargs.pop("auto_map", None) or {})}
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save ``config.json`` and the module that its ``auto_map`` names."""
        super().save_pretrained(save_directory)
        names = ", ".join(sorted(set(AUTO_CLASSES[self.model_type].values())))
        (Path(save_directory) / f"{CODE}.py").write_text(CODE_TEXT.format(names=names), encoding="utf-8")
        if push_to_hub:
            repo_id = kwargs.pop("repo_id", Path(save_directory).name)
            self.push_to_hub(repo_id, **kwargs)

    def update_from_string(self, update_str: str) -> None:
        """Set fields from ``name=value,name=value``, as ``--config_overrides`` of transformers' scripts has them.

        Optional fields take ``none`` too.

        Raises:
            ValueError: for an unknown name, a value of another type, or fields from which no model can be built; the
                configuration is then unchanged.
        """
        types = {field.name: field.type for field in fields(self)}
        changes: dict[str, Any] = {}
        for part in update_str.split(","):
            name, _, text = (x.strip() for x in part.partition("="))
            if not hasattr(self, name):
                raise ValueError(f"{type(self).__name__} has no field {name!r}: write name=value,name=value")
            changes[name] = _read(name, text, types.get(name, type(getattr(self, name))))
        if "num_attention_heads" in changes and self.num_key_value_heads == self.num_attention_heads:
            changes.setdefault("num_key_value_heads", None)  # which follows it
        checked = type(self)(**{**self.to_dict(), **{name: changes[name] for name in changes if name in types}})
        for name, value in changes.items():
            setattr(self, name, getattr(checked, name) if name in types else value)


def _read(name: str, text: str, hint: Any) -> Any:
    """A field's value parsed from text."""
    types, word = [hint, *get_args(hint)], text.lower()
    if bool in types and word in _BOOLS:
        return _BOOLS[word]
    if NoneType in types and word == "none":
        return None
    for kind in (float, int, str):
        if kind in types:
            try:
                return kind(text)
            except ValueError:
                continue
    declared = getattr(hint, "__name__", str(hint)).replace("float | int", "float")  # as one says it: 1 is a float too
    raise ValueError(f"{name} cannot be {text!r}: it is {declared}")


CHOICES: dict[str, Any] = {
    "attention": AttentionKind,
    "position_embedding": PositionEmbedding,
    "pooling": Pooling,
}

FIELDS = tuple(x.name for x in fields(AttentionConfig) if x.name not in ("num_kv_heads", "head_dim", "rotary_dim"))
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
        lexical_features: number of words and pairs of words whose TF-IDF adds to the logits of a classifier
            (``torch_linformer.models.lexical_head``); None for a classifier without words.
        lexical_letters: letters of the longest token, if n-grams of characters count too; 0 if they do not.
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
        for name in ("hidden_act", "classifier_hidden_act"):
            activation = getattr(self, name)
            if activation is not None and activation not in ACT2FN:
                raise ValueError(f"{name} must be one of {', '.join(sorted(ACT2FN))}, got {activation!r}")
        if self.pad_token_id is not None and not -self.vocab_size <= self.pad_token_id < self.vocab_size:
            raise ValueError(f"pad_token_id {self.pad_token_id} lies outside vocab_size {self.vocab_size}")
        if not self.causal and self.position_embedding == "rotary":
            raise ValueError(
                "position_embedding='rotary' needs causal=True: slots of a whole sequence have no position"
            )
        for name, least in (("lexical_features", 1), ("lexical_letters", 0), ("max_answer_length", 1)):
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} must be at least {least}, got {value}")
        if self.read_window is not None and self.backbone_config is None:
            raise ValueError(f"read_window={self.read_window} is for the encoder of a backbone_config: leave it out")
        if not 0 < self.threshold < 1:
            raise ValueError(f"threshold must lie between 0 and 1, got {self.threshold}")
        if self.backbone_config is None:
            CONTEXTS[self.attention][self.causal].check_options(attention_options(self))
        if self.backbone_config is None and self.attention != "full":
            longest, limit = self.max_position_embeddings, "max_position_embeddings"
            for k in self.slots:
                check_k(k, longest, causal=self.causal, window=self.window, limit=limit)
            if not self.causal:
                check_exact_tokens(self.exact_first, self.exact_last, longest, limit=limit)
        check_activation_memory(self.activation_memory, self.norm_first)
        check_chunk_size(self.chunk_size)
        super().__post_init__(**kwargs)

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
        unlimited = self.causal and self.position_embedding != "learned"
        return None if unlimited else self.max_position_embeddings

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


OF_HEADS = {  # fields that a head reads, whatever is below it
    *("backbone_config", "read_window", "tie_word_embeddings", "use_cache", "activation_memory"),
    *("pooling", "classifier_hidden_act", "classifier_dropout", "class_weights", "lexical_features", "lexical_letters"),
    *("threshold", "max_answer_length"),
    *(field.name for field in fields(PreTrainedConfig)),
}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")  # whose owner is the tokenizer
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "initializer_range")


def fill_from_backbone(config: Any) -> None:
    """Let the fields of a LinformerConfig say what its ``backbone_config`` says; refuse those that say otherwise."""
    backbone = config.backbone_config
    if isinstance(backbone, dict) and backbone.get("model_type") == MODEL_TYPE:
        backbone = LinearConfig.from_dict(backbone)
    if not isinstance(backbone, LinearConfig):
        kind = backbone.get("model_type") if isinstance(backbone, dict) else backbone.model_type
        raise ValueError(
            f"backbone_config must be that of a linear encoder, got one of {kind}: take "
            "torch_linformer.linearize(model).config"
        )
    config.backbone_config = backbone
    own = fields_of(backbone)
    of_windows: tuple[str, ...] = ()
    if config.read_window is not None:
        if backbone.linformer is not None:
            raise ValueError(
                f"read_window={config.read_window} is for an encoder with its ordinary attention, and this one is "
                "linear and reads rows in one pass: leave it out"
            )
        if config.read_window <= config.exact_first + config.exact_last:
            raise ValueError(
                f"read_window={config.read_window} has no room beside exact_first={config.exact_first} and "
                f"exact_last={config.exact_last}"
            )
        of_windows = ("max_position_embeddings", "exact_first", "exact_last")
        own["k"] = default_k(config.max_position_embeddings)
    for field in fields(config):
        name, value = field.name, getattr(config, field.name)
        if name in of_windows:
            continue
        if name in own:
            if value not in (field.default, own[name]):
                raise ValueError(
                    f"{name}={value!r} is not that of backbone_config, {own[name]!r}: leave it out, or change it there"
                )
            setattr(config, name, own[name])
        elif name in TOKENS:
            setattr(config, name, getattr(backbone, name) if value == field.default else value)
        elif name not in OF_HEADS and value != field.default:
            raise ValueError(
                f"{name}={value!r} is for layers of Linformer, and backbone_config has others: leave it out"
            )
    if config.activation_memory == "reversible":
        raise ValueError(
            "activation_memory='reversible' needs other layers than those of backbone_config: take 'checkpoint'"
        )


def fields_of(backbone: LinearConfig) -> dict[str, Any]:
    """What a LinformerConfig calls the sizes and the attention of an encoder."""
    config: Any = backbone
    sizes = {name: getattr(config, name) for name in SIZES}
    sizes["intermediate_size"] = getattr(config, "intermediate_size", None) or getattr(config, "hidden_dim", 0)
    sizes["type_vocab_size"] = getattr(config, "type_vocab_size", 0) if "token_type_ids" in inputs_of(backbone) else 0
    sizes["hidden_dropout_prob"] = dropout_of(config, "states")
    sizes["attention_probs_dropout_prob"] = dropout_of(config, "attention")
    if backbone.linformer is None:
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        longest = getattr(config, "max_position_embeddings", 0)
        return {**sizes, "attention": "full", "num_key_value_heads": heads, "max_position_embeddings": longest}
    options = backbone.linear_options
    attention: dict[str, Any] = options.of_attention().attention
    heads = next(iter(backbone.attentions.values()))
    attention |= {"k": options.k, "num_key_value_heads": heads.num_kv_heads, "head_dim": heads.head_dim}
    attention.pop("num_kv_heads"), attention.pop("rotary_dim")
    return {**sizes, **attention, "max_position_embeddings": options.max_length}


def with_ordinary_attention(config: dict[str, Any]) -> dict[str, Any]:
    """The fields of a configuration whose encoder has the attention that it had before it was linear."""
    kept = {name: x for name, x in config.items() if name in (*OF_HEADS, *TOKENS, "model_type")}
    return {**kept, "backbone_config": {**config["backbone_config"], "linformer": None}}


def inputs_of(backbone: LinearConfig) -> frozenset[str]:
    """The names of what the encoder's ``forward`` takes."""
    return frozenset(inspect.signature(backbone.encoder_class.forward).parameters)


OF_DECODER = ("hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")


def _of(part: str, name: str) -> Any:
    """A field of a part that transformers asks of the whole."""
    return property(lambda config: getattr(getattr(config, part), name))


@strict
class LinformerSeq2SeqConfig(BaseConfig):
    """What an encoder-decoder is built from: two configurations, and how the second reads the first.

    It has the usual fields of transformers, and these.

    Args:
        encoder: a :class:`LinformerConfig` or a dict of its fields, not causal. Its ``max_position_embeddings`` is the
            longest source.
        decoder: likewise, causal (a dict, or nothing, is made so); width, length and vocabulary may differ. With
            ``attention="full"`` both its attentions are ordinary ones.
        memory_k: slots that a layer of the decoder makes of the encoder's output, one number or one a layer; by default
            the encoder's ``k`` (its largest).
        memory_projection: ``linear``, ``random``, ``conv``, ``mean`` or ``max``; the encoder's by default.
        memory_sharing: ``none``, ``headwise``, ``kv`` or ``layerwise`` (one map for all layers of the decoder); the
            encoder's by default.
        share_embeddings: where ``tie_word_embeddings`` ties the output to the decoder's word embeddings, tie the
            encoder's to them too.
        pad_token_id: the decoder's by default.
        decoder_start_token_id: what a target begins with; by default ``bos_token_id`` or else ``pad_token_id``.

    Raises:
        TypeError: for a keyword that neither it nor transformers knows; saved configurations may have any.
        ValueError: for a value that no model can be built from.
        huggingface_hub.errors.StrictDataclassFieldValidationError: for a value of another type.
    """

    model_type = "linformer_seq2seq"
    keys_to_ignore_at_inference = [*CACHE_NAMES]  # noqa: RUF012 - transformers reads it from the class
    sub_configs = {"encoder": LinformerConfig, "decoder": LinformerConfig}  # noqa: RUF012 - read from the class

    encoder: LinformerConfig | dict[str, Any] | None = None
    decoder: LinformerConfig | dict[str, Any] | None = None
    memory_k: int | list[int] | None = None
    memory_projection: str | None = None
    memory_sharing: str | None = None
    share_embeddings: bool = True
    tie_word_embeddings: bool = True
    is_encoder_decoder: bool = True
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    decoder_start_token_id: int | None = None

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Self:
        """As :meth:`LinformerConfig.from_dict`; ``kwargs`` may hold some fields of a part: ``decoder={"k": 64}``."""
        changed_parts = {part: kwargs.pop(part) for part in ("encoder", "decoder") if part in kwargs}
        changes = take_fields(cls, kwargs)
        fields = {**config_dict, **changes}
        for part, changed in changed_parts.items():
            saved = config_dict.get(part)
            if isinstance(saved, dict) and isinstance(changed, dict):
                changed_parts[part] = LinformerConfig(**with_changes(saved, changed))
        if changes.get("memory_projection") in PARAMETERLESS and "memory_sharing" not in changes:
            fields.pop("memory_sharing", None)
        # Transformers exchanges parts afterwards: one may then have a vocabulary that the other does not.
        return super().from_dict({"model_type": cls.model_type, **fields}, **kwargs, **changed_parts)

    def __post_init__(self, **kwargs: Any) -> None:
        for name in (*OF_DECODER, "vocab_size", "max_position_embeddings"):
            if name in kwargs:
                raise ValueError(f"{name} belongs to encoder and decoder: give encoder={{{name!r}: ...}}, decoder=...")
        encoder = self.encoder = _as_config(self.encoder)
        decoder = self.decoder = _as_config(self.decoder, causal=True)
        if encoder.causal:
            raise ValueError("encoder must read in both directions: leave causal=True out of its configuration")
        if not decoder.causal:
            raise ValueError("decoder must be causal: give LinformerConfig(causal=True, ...), or a dict of its fields")
        check_activation_memory(decoder.activation_memory, decoder.norm_first, decoder=True)
        if self.memory_k is None:
            self.memory_k = max(encoder.slots)
        self.memory_projection = encoder.projection if self.memory_projection is None else self.memory_projection
        if self.memory_sharing is None:
            unshared = self.memory_projection in PARAMETERLESS
            self.memory_sharing = AttentionConfig.sharing if unshared else encoder.sharing
        if decoder.attention != "full":
            try:
                SlotContext.check_options(memory_options(self))
            except ValueError as error:
                raise ValueError(f"memory_{error}") from None
            for k in [self.memory_k] if isinstance(self.memory_k, int) else self.memory_k:
                limit = "the encoder's max_position_embeddings"
                check_k(k, encoder.max_position_embeddings, name="memory_k", limit=limit)
        if self.share_embeddings and self.tie_word_embeddings:
            for name in ("vocab_size", "hidden_size", "pad_token_id"):
                ours, theirs = getattr(encoder, name), getattr(decoder, name)
                if ours != theirs:
                    raise ValueError(
                        f"share_embeddings=True needs one {name}, got {ours} in the encoder and {theirs} in the "
                        "decoder: give share_embeddings=False"
                    )
        self.pad_token_id = decoder.pad_token_id if self.pad_token_id is None else self.pad_token_id
        if self.decoder_start_token_id is None:
            self.decoder_start_token_id = self.pad_token_id if self.bos_token_id is None else self.bos_token_id
        if self.decoder_start_token_id is None:
            raise ValueError("a target must begin with something: give decoder_start_token_id")
        super().__post_init__(**kwargs)

    def to_diff_dict(self) -> dict[str, Any]:
        """What ``config.json`` holds, with K of both parts, as theirs; nothing opens a part by its ``auto_map``."""
        written = super().to_diff_dict()
        for part in self.sub_configs:
            written[part]["k"] = getattr(self, part).k
            written[part].pop("auto_map", None)
        return written

    @property
    def vocab_size(self) -> int:
        """Of the target, as width, layers and heads are those of the decoder."""
        return cast(LinformerConfig, self.decoder).vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        cast(LinformerConfig, self.decoder).vocab_size = value
        if self.share_embeddings and self.tie_word_embeddings:
            cast(LinformerConfig, self.encoder).vocab_size = value

    hidden_size = _of("decoder", "hidden_size")
    num_hidden_layers = _of("decoder", "num_hidden_layers")
    num_attention_heads = _of("decoder", "num_attention_heads")
    num_key_value_heads = _of("decoder", "num_key_value_heads")
    max_position_embeddings = _of("encoder", "max_position_embeddings")  # of the source: the longest input


def memory_options(config: LinformerSeq2SeqConfig) -> AttentionConfig:
    """The options of the decoder's attention to the encoder's output."""
    encoder, decoder = cast(LinformerConfig, config.encoder), cast(LinformerConfig, config.decoder)
    options: dict[str, Any] = {"num_kv_heads": decoder.num_key_value_heads, "head_dim": decoder.head_dim}
    if decoder.attention == "linformer":
        options |= {"projection": config.memory_projection, "sharing": config.memory_sharing}
        if config.memory_projection in DENSE:
            options["length_scaling"] = encoder.length_scaling
    return AttentionConfig(**options)


def _as_config(config: LinformerConfig | dict[str, Any] | None, **defaults: Any) -> LinformerConfig:
    return config if isinstance(config, LinformerConfig) else LinformerConfig(**{**defaults, **(config or {})})

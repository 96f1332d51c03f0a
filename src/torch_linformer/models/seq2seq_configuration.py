"""Configuration of the encoder-decoder."""

from typing import Any, Self, cast

from huggingface_hub.dataclasses import strict

from torch_linformer.models.arguments import CACHE_NAMES
from torch_linformer.models.base_configuration import BaseConfig
from torch_linformer.models.configuration import LinformerConfig, take_fields, with_changes
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.options import (
    DENSE,
    PARAMETERLESS,
    AttentionConfig,
    check_activation_memory,
    check_k,
)

OF_THE_PARTS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


def _of(part: str, name: str) -> Any:
    """A field of one of the parts, that transformers asks of the whole."""
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
        for name in OF_THE_PARTS:
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
        self._check_memory()
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
        """What ``config.json`` holds, with K of both parts, as theirs."""
        fields = super().to_diff_dict()
        for part in self.sub_configs:
            fields[part]["k"] = getattr(self, part).k
        return fields

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

    def _check_memory(self) -> None:
        encoder, decoder = cast(LinformerConfig, self.encoder), cast(LinformerConfig, self.decoder)
        if decoder.attention == "full":
            return
        options = memory_options(self)
        try:
            SlotContext.check_options(options)
        except ValueError as error:
            raise ValueError(f"memory_{error}") from None
        for k in [self.memory_k] if isinstance(self.memory_k, int) else self.memory_k or []:
            limit = "the encoder's max_position_embeddings"
            check_k(k, encoder.max_position_embeddings, name="memory_k", limit=limit)


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

"""Configuration of the Linformer models."""

from typing import Any, get_args

from transformers.activations import ACT2FN

from torch_linformer.functional.causal import check_window
from torch_linformer.models.auto import OpenedByAutoClasses
from torch_linformer.models.overrides import OverriddenByText
from torch_linformer.nn.attention import check_causal
from torch_linformer.nn.chunks import check_chunk_size
from torch_linformer.nn.encoder import Memory, check_memory
from torch_linformer.nn.projection import Projection, Sharing

CHOICES = {
    "attention": ("linformer", "full"),
    "projection": get_args(Projection),
    "sharing": get_args(Sharing),
    "position_embedding": ("learned", "sinusoidal", "rotary", "none"),
    "memory": get_args(Memory),
    "pooling": ("mean", "cls", "last", "max", "mean_max"),
}


class LinformerConfig(OpenedByAutoClasses, OverriddenByText):
    """What a Linformer model is built from. Defaults have the dimensions of RoBERTa-base at 4,096 tokens.

    Args beyond the usual ones of transformers:
        max_position_embeddings: longest input in tokens, ``max_len`` of the projections. A causal model has no longest
            input unless its positions are ``learned``; its slots begin with time scales up to this one.
        num_key_value_heads: heads of keys and values, ``num_attention_heads`` by default.
        head_dim: width of one head, ``hidden_size / num_attention_heads`` by default.
        k: slots K, one number or one a layer.
        sharing: ``none``, ``headwise``, ``kv`` or ``layerwise``.
        projection: ``linear``, ``random``, ``conv``, ``mean`` or ``max``.
        length_scaling: False leaves the length factor of the projections out.
        causal: every position sees itself and what came before it, as a language model does:
            see :class:`torch_linformer.nn.LinformerAttention`.
        window: a local window of so many tokens in the same softmax as the slots; with one, a causal model may have
            ``k=0``.
        slot_bias: learned terms on the compressed keys and values, as some imported models have.
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
        memory: what a training keeps of each layer: ``none`` (everything), ``checkpoint`` (its input) or
            ``reversible`` (nothing; another model, which needs ``norm_first``): see
            :class:`torch_linformer.nn.LinformerEncoder`.
        chunk_size: positions that inference works on at once, None for all: see there.
        class_weights: weight of each label in the classification loss.

    Raises:
        ValueError: for a value that no model can be built from.
    """

    model_type = "linformer"
    keys_to_ignore_at_inference = ["past_key_values"]  # noqa: RUF012 - transformers reads it from the class

    vocab_size: int = 50265
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    attention_probs_dropout_prob: float = 0.1
    max_position_embeddings: int = 4096
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    tie_word_embeddings: bool = True
    use_cache: bool = True
    classifier_dropout: float | None = None

    k: int | list[int] = 256
    sharing: str = "headwise"
    projection: str = "linear"
    length_scaling: bool = True
    causal: bool = False
    window: int | None = None
    slot_bias: bool = False
    attention: str = "linformer"
    position_embedding: str = "learned"
    partial_rotary_factor: float = 0.5
    pooling: str = "mean"
    classifier_hidden_act: str | None = None
    embedding_norm: bool = True
    norm_first: bool = False
    final_norm: bool = True
    gated: bool = False
    lm_head_transform: bool = True
    memory: str = "none"
    chunk_size: int | None = None
    class_weights: list[float] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} must be one of {', '.join(choices)}, got {getattr(self, name)!r}")
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
        check_window(self.window)
        if not self.causal and self.position_embedding == "rotary":
            raise ValueError(
                "position_embedding='rotary' needs causal=True: slots of a whole sequence have no position"
            )
        for k in [self.k] if isinstance(self.k, int) else self.k:
            if self.causal:
                check_causal(k, self.max_position_embeddings, self.window, None, self.slot_bias)
            elif not 1 <= k <= self.max_position_embeddings:
                raise ValueError(
                    f"k must lie between 1 and max_position_embeddings = {self.max_position_embeddings}, got {k}"
                )
        check_memory(self.memory, self.norm_first)
        check_chunk_size(self.chunk_size)
        super().__post_init__(**kwargs)

    def _dependent(self, changes: dict[str, Any]) -> dict[str, Any]:
        one_each = self.num_key_value_heads == self.num_attention_heads and "num_attention_heads" in changes
        return {"num_key_value_heads": None} if one_each and "num_key_value_heads" not in changes else {}

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
        return None if self.causal and self.position_embedding != "learned" else self.max_position_embeddings

    @property
    def label_names(self) -> list[str]:
        """The labels of a classifier, in the order of its logits."""
        names: dict[Any, str] = self.id2label or {}
        return [names[number] for number in sorted(names)]

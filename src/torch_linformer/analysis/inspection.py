"""One document inside a trained model: what its attention does, and which tokens its answer draws on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase

from torch_linformer.analysis.attention_maps import (
    LayerAttention,
    attention_of_encoder,
    attention_of_layers,
    attention_of_windows,
)
from torch_linformer.analysis.relevance import Relevance, integrated_gradients, lexical_shares
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder
from torch_linformer.encoders.heads import head_of
from torch_linformer.models import LinformerConfig, LinformerForConditionalGeneration, LinformerModel
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.models.row_windows import windows_of
from torch_linformer.opening.load import AnyModel, read_length, reader_config

MOST_ANSWERS = 3  # labels whose tokens are looked for, the likeliest first


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The likeliest labels of a document, and which tokens they draw on.

    Attributes:
        labels: the likeliest first; of a regression the names of its numbers.
        probabilities: of these labels; None for a regression.
        relevance: of the tokens for the logits of these labels.
    """

    labels: list[str]
    probabilities: list[float] | None
    relevance: Relevance


@dataclass(frozen=True, kw_only=True)
class Inspection:
    """One document inside a model. All tensors are on the CPU.

    Attributes:
        text: the document.
        tokens: as the tokenizer spells them, special ones included.
        spans: the characters of ``text`` each stands for, from and up to; (0, 0) for special tokens.
        num_tokens: tokens of the whole document: more than ``tokens`` where it was cut.
        config: the configuration of the encoder.
        layers: the attention of the chosen layers, by their number from 0.
        answer: of a model that classifies documents; None for others.
        lexical: whether the model has a lexical head, in whose features the tokens have shares too.
        exact_below: tokens of the longest text that the model reads by ordinary attention, where this text has no more;
            ``layers`` are those of slots all the same. 0 where the model reads it as the layers show.
    """

    text: str
    tokens: list[str]
    spans: list[tuple[int, int]]
    num_tokens: int
    config: LinformerConfig | LinearConfig
    layers: dict[int, LayerAttention]
    answer: Answer | None
    lexical: bool
    exact_below: int = 0

    @property
    def chosen_by_input(self) -> bool:
        """Whether the slots of another text are others."""
        config = self.config.linear_options if isinstance(self.config, LinearConfig) else self.config
        return config.projection == "dynamic"

    @property
    def has_slot_bias(self) -> bool:
        """Whether a slot adds something that comes from no token."""
        return isinstance(self.config, LinformerConfig) and self.config.slot_bias


def inspect_text(
    model: AnyModel,
    tokenizer: PreTrainedTokenizerBase,
    text: str,
    *,
    layers: Sequence[int] | None = None,
    cut: bool = False,
    on_progress: Callable[[str], object] | None = None,
) -> Inspection:
    """Run a model on a document and keep what its attention did.

    Any model of this package that reads whole documents will do, the full-attention twin and the encoder of an
    encoder-decoder included, and any linear encoder of transformers, with or without a head.

    Args:
        model: a trained model.
        tokenizer: its tokenizer. Special tokens spelled out in the text are text.
        text: the document.
        layers: numbers from 0; all by default.
        cut: read the beginning of a text that is too long.
        on_progress: called with the next step.

    Raises:
        ValueError: the model has no such attention or is causal, a layer does not exist, or the text is empty or has
            more tokens than the model reads.
    """
    backbone, say = _reader(model), on_progress or (lambda doing: None)
    config = reader_config(model.config)
    count = config.num_hidden_layers
    chosen = range(count) if layers is None else sorted(set(layers))
    for number in chosen:
        if not 0 <= number < count:
            raise ValueError(f"layers must lie between 0 and {count - 1}, got {number}")
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # no tokenizer takes a lone surrogate
    encoding = _encode(tokenizer, text, read_length(config), cut)
    names = ("input_ids", "special_tokens_mask")
    input_ids, special = (torch.tensor([encoding[name]], device=backbone.device) for name in names)
    training, answer = model.training, None
    cast(nn.Module, model).eval()
    try:
        say("attention")
        if isinstance(backbone, EncoderBackbone):
            attention = attention_of_windows(backbone, input_ids, chosen)
        else:
            is_ours = isinstance(backbone, LinformerModel)
            attention = (attention_of_layers if is_ours else attention_of_encoder)(backbone, input_ids, chosen)
        if head_of(model) == "rows":
            say("which tokens the answer draws on")
            answer = _answer(model, backbone, input_ids, special == 0)
    finally:
        model.train(training)
    encoder, longest_exact = getattr(config, "backbone_config", None) or config, 0
    if isinstance(encoder, LinearConfig) and encoder.linformer is not None:
        longest_exact = encoder.linear_options.longest_exact
    return Inspection(
        text=text,
        tokens=cast("list[str]", tokenizer.convert_ids_to_tokens(encoding["input_ids"])),
        spans=[tuple(span) for span in encoding["offset_mapping"]],
        num_tokens=encoding["num_tokens"],
        config=config,
        layers=attention,
        answer=answer,
        lexical=getattr(model, "lexical", None) is not None,
        exact_below=longest_exact if input_ids.shape[1] <= longest_exact else 0,
    )


def _reader(model: AnyModel) -> Any:
    """The model below any head, one of ours or a linear encoder of transformers."""
    backbone: Any = model.encoder if isinstance(model, LinformerForConditionalGeneration) else model.base_model
    if isinstance(backbone, EncoderBackbone):
        if backbone.config.read_window is not None:
            return backbone
        backbone = model = backbone.body
    if isinstance(model, LinearEncoder):
        return backbone
    if not isinstance(backbone, LinformerModel):
        raise ValueError(
            f"a {type(model).__name__} has no Linformer attention to look into; import or train a Linformer"
        )
    if backbone.config.causal:
        raise ValueError(
            "a causal model has no E and F to show: its slots are running means that change at every token; inspect a "
            "model that reads whole documents"
        )
    return backbone


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, max_len: int, cut: bool) -> dict[str, Any]:
    """Ids, spans and special tokens of the text, ``max_len`` at most, and the number of tokens before a cut."""
    if not text.strip():
        raise ValueError("the text is empty: give one with at least one word")
    options: dict[str, Any] = {"return_offsets_mapping": True, "return_special_tokens_mask": True, "verbose": False}
    options |= {"padding": False, "split_special_tokens": True}
    encoding = dict(tokenizer(text, truncation=False, **options))
    count = len(encoding["input_ids"])
    if all(encoding["special_tokens_mask"]):
        raise ValueError("the tokenizer finds no token in the text: give one with at least one word")
    if count > max_len:
        if not cut:
            raise ValueError(
                f"the text has {count:,} tokens, the model reads {max_len:,}: shorten it, or read its beginning with "
                "cut (--cut)"
            )
        encoding = dict(tokenizer(text, truncation=True, max_length=max_len, **options))
    return {**encoding, "num_tokens": count}


def _answer(model: Any, backbone: Any, input_ids: Tensor, of_text: Tensor) -> Answer:
    config, lexical = model.config, getattr(model, "lexical", None)
    with torch.no_grad():
        logits = model(input_ids=input_ids).logits[0]
    names = config.label_names
    if config.problem_type == "regression" or len(names) == 1:
        best, probabilities = torch.arange(len(names)), None
    else:
        several = config.problem_type == "multi_label_classification"
        shares = logits.sigmoid() if several else logits.softmax(dim=-1)
        best = shares.argsort(descending=True)[:MOST_ANSWERS]
        probabilities = shares[best].tolist()
    words, windows = backbone.get_input_embeddings(), None
    if isinstance(backbone, EncoderBackbone):
        windows, backbone = windows_of(backbone.config, input_ids), backbone.body
    embeddings = getattr(backbone, "embeddings", words)  # with positions and a norm, where these are there
    relevance = integrated_gradients(
        lambda: cast(Tensor, model(input_ids=input_ids).logits[0, best]), embeddings, words, of_text, windows
    )
    if lexical is not None:  # which reads ids, not embeddings
        shares = lexical_shares(lexical, input_ids)[best.cpu()].to(relevance.values)
        without = relevance.blank_scores - shares.sum(dim=-1)
        relevance = replace(relevance, values=relevance.values + shares, blank_scores=without)
    return Answer(labels=[names[number] for number in best.tolist()], probabilities=probabilities, relevance=relevance)

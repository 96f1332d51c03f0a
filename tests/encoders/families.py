"""The encoders of transformers that are tested linear, a line each, and small models whose every number matters."""

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers

from torch_linformer.encoders import linearize

VOCABULARY, LENGTH = 37, 29
SIZES = {  # distinct, so that no axis can stand in for another
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "initializer_range": 0.3,  # so that attention matters
}
TEXT = {**SIZES, "vocab_size": VOCABULARY, "max_position_embeddings": 50, "pad_token_id": 0}
AFTER_PADDING = {**TEXT, "max_position_embeddings": 52, "pad_token_id": 1}  # as RoBERTa counts
NARROW = {**TEXT, "embedding_size": 14}
IMAGE = {**SIZES, "image_size": 20, "patch_size": 4, "num_channels": 3}
SOUND = {**SIZES, "conv_dim": (8, 8), "conv_stride": (4, 2), "conv_kernel": (5, 3), "mask_time_prob": 0.0}
SOUND |= {"vocab_size": VOCABULARY, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
SOUND |= {"classifier_proj_size": 12, "layerdrop": 0.0}
DISTIL = {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 20, "initializer_range": 0.3}
DISTIL |= {"vocab_size": VOCABULARY, "max_position_embeddings": 50, "pad_token_id": 0}
WHISPER = {"d_model": 24, "encoder_layers": 2, "encoder_attention_heads": 3, "encoder_ffn_dim": 20, "init_std": 0.3}
WHISPER |= {"num_mel_bins": 5, "max_source_positions": LENGTH, "vocab_size": VOCABULARY, "decoder_layers": 1}
WHISPER |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "decoder_ffn_dim": 4}
WHISPER |= {"decoder_attention_heads": 3}
ROLES = {"cls_token_id": 1, "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}


@dataclass(frozen=True, eq=False, repr=False)
class Family:
    """A family of encoders.

    Attributes:
        name: the beginning of the names of its classes.
        fields: of its configuration.
        first: of the text families, the ``position_ids`` of a text's first token.
        counts: its positions count real tokens by themselves, so that padding before a text needs no ``position_ids``.
        exact_first: tokens at the beginning that :func:`linearize` keeps exact by itself.
        length: positions that the inputs of :func:`inputs_of` become.
    """

    name: str
    fields: dict[str, Any]
    first: int = 0
    counts: bool = False
    exact_first: int = 1
    length: int = LENGTH

    def __repr__(self) -> str:
        return self.name

    @property
    def config(self) -> transformers.PreTrainedConfig:
        return getattr(transformers, f"{self.name}Config")(**self.fields)


TEXTS = [  # ESM divides by the number of tokens with token_dropout, and a row without any is NaN before any attention
    Family("Bert", TEXT),
    Family("Roberta", AFTER_PADDING, first=2, counts=True),
    Family("XLMRoberta", AFTER_PADDING, first=2, counts=True),
    Family("Camembert", AFTER_PADDING, first=2, counts=True),
    Family("DistilBert", DISTIL),
    Family("Electra", NARROW),
    Family("Albert", {**NARROW, "classifier_dropout_prob": 0.0}),
    Family("Ernie", TEXT),
    Family("MPNet", AFTER_PADDING, first=2, counts=True),
    Family("Esm", {**TEXT, "position_embedding_type": "rotary", "mask_token_id": 4, "token_dropout": False}),
    Family("EuroBert", {**TEXT, "num_attention_heads": 4, "num_key_value_heads": 2}),
    Family("NomicBert", TEXT),
    Family("Gte", TEXT),
    Family("JinaEmbeddingsV3", AFTER_PADDING),
    Family("ModernBert", {**TEXT, **ROLES, "local_attention": 8}),
]
OTHERS = [
    Family("ViT", IMAGE, length=26),
    Family("Dinov2", IMAGE, length=26),
    Family("Dinov2WithRegisters", {**IMAGE, "num_register_tokens": 3}, exact_first=4, length=29),
    Family("SiglipVision", IMAGE, exact_first=0, length=25),
    Family("Wav2Vec2", SOUND, exact_first=0),
    Family("Hubert", SOUND, exact_first=0),
    Family("Whisper", WHISPER, exact_first=0),
]
ROTARY = TEXTS[9:]
FAMILIES = [*TEXTS, *OTHERS]
OPTIONS = {"k": 7, "window": 6, "exact_below": 0, "max_length": 50}
TOKENS = (29, 17, 11, 14, 0)  # of the rows of `padded_mask`


def base_class(family: Family) -> Any:
    """The class of the encoder."""
    model_class = getattr(transformers, f"{family.name}Model")
    return type(model_class(family.config).get_encoder()) if family.name == "Whisper" else model_class


def random_model(model_class: Any, config: Any, dtype: torch.dtype = torch.float64) -> Any:
    """A model in evaluation mode, no bias of which is 0 and no norm 1; the same at every call."""
    torch.manual_seed(0)
    model = model_class(config).to(dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
    return model


@cache
def original(family: Family, dtype: torch.dtype = torch.float64) -> Any:
    """The encoder as transformers has it. Not to be changed."""
    return random_model(base_class(family), family.config, dtype)


def linear(model: Any, **options: Any) -> Any:
    """The model made linear, with slots that have learned something."""
    return learned(linearize(model, **{**OPTIONS, **options}))


def learned(linear: Any) -> Any:
    """The linear model, whose slots are as if they had learned something."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in linear.named_parameters():
            if ".linformer." in name:
                parameter.add_(torch.randn(parameter.shape, generator=draw).to(parameter), alpha=0.3)
    return linear


def inputs_of(
    family: Family, rows: int = 2, dtype: torch.dtype = torch.float64, length: int = LENGTH
) -> dict[str, Any]:
    """Inputs of ``family.length`` positions, or of ``length`` tokens of a text, without padding."""
    draw = torch.Generator().manual_seed(2)
    if family in TEXTS:
        return {"input_ids": torch.randint(5, VOCABULARY, (rows, length), generator=draw)}
    shapes = {"Wav2Vec2": (8 * LENGTH + 8,), "Hubert": (8 * LENGTH + 8,), "Whisper": (5, 2 * LENGTH)}
    shape = shapes.get(family.name, (3, 20, 20))
    name = base_class(family).main_input_name
    return {name: torch.randn(rows, *shape, generator=draw, dtype=torch.float64).to(dtype)}


def padded_mask() -> torch.Tensor:
    """A full row, one with padding after it, one before it, one with holes, and one of padding alone."""
    mask = torch.zeros(len(TOKENS), LENGTH, dtype=torch.long)
    mask[0] = 1
    mask[1, : TOKENS[1]] = 1
    mask[2, LENGTH - TOKENS[2] :] = 1
    mask[3, 1::2] = 1
    return mask


def padded(family: Family, mask: torch.Tensor) -> dict[str, torch.Tensor]:
    """A batch of texts with this mask, whose positions count real tokens."""
    ids = inputs_of(family, len(mask))["input_ids"].masked_fill(mask == 0, family.fields["pad_token_id"])
    positions = (mask.cumsum(-1) - 1).clamp(min=0) + family.first
    return {"input_ids": ids, "attention_mask": mask, "position_ids": positions}


def hidden(model: Any, **inputs: Any) -> torch.Tensor:
    """The last hidden states."""
    return model(**inputs).last_hidden_state

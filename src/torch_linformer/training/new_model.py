"""A new model: its configuration, as the options and the task say, and its first word embeddings."""

from dataclasses import fields
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub.errors import StrictDataclassError
from torch import nn
from transformers import PreTrainedConfig, PreTrainedTokenizerFast

from torch_linformer.errors import InputError, first_line
from torch_linformer.models import LinformerConfig, LinformerPreTrainedModel, LinformerSeq2SeqConfig
from torch_linformer.models.configuration import with_changes
from torch_linformer.tasks.latent_semantics import token_vectors
from torch_linformer.training.run_options import suggestion
from torch_linformer.training.sizes import SIZES
from torch_linformer.training.train_settings import DECODER_SLOTS, WINDOW, TrainSettings

_LSA_DOCUMENTS = 20_000  # at most; drawn at random
_LSA_STEPS = 100  # at the peak rate, that the optimizer would need to undo the vectors
DECIDED = {  # fields of a configuration that other options decide
    "max_position_embeddings": "--max-length",
    "k": "--k",
    "window": "--window",
    "causal": "--task",
    "vocab_size": "--tokenizer",
    "class_weights": "--class-weights",
    "read_window": "--read-window",
}
OF_DOCUMENTS = (  # and that the documents or the task decide
    *("pad_token_id", "bos_token_id", "eos_token_id", "type_vocab_size", "backbone_config", "use_cache"),
    *("lexical_features", "lexical_letters", "threshold", "max_answer_length"),
)
OF_SLOTS = ("sharing", "projection", "slot_mass")
POSITIONED = ("token-classify", "qa", "seq2seq")  # tasks that cannot do without positions


def build_config(
    settings: TrainSettings, vocab_size: int, pad_token_id: int | None, labels: dict[str, Any]
) -> LinformerConfig:
    """The configuration of the new model that ``settings`` ask for, with what the task sets in it."""
    size, causal = SIZES[settings.size], settings.task == "clm"
    positions = "rotary" if causal else "learned" if settings.task in POSITIONED else size.position_embedding
    # Segment means generalize best from a few thousand documents (docs/log.md).
    slots = {} if causal or settings.has_full_attention else {"projection": "mean"}
    chosen: dict[str, Any] = {**slots, **settings.own_fields}
    if chosen.get("projection") == "dynamic":  # two P, for keys and for values, learn slowly (docs/slots.md)
        chosen = {"sharing": "kv_per_head", **chosen}
    return LinformerConfig(
        **{
            "vocab_size": vocab_size,
            "hidden_size": size.hidden_size,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "intermediate_size": size.feed_forward,
            "hidden_dropout_prob": size.dropout,
            "attention_probs_dropout_prob": 0.0,
            "position_embedding": positions,
            "type_vocab_size": 0,
            "max_position_embeddings": settings.length,
            "pad_token_id": pad_token_id,
            "k": settings.slots,
            "window": settings.local_window,
            "causal": causal,
            "lm_head_transform": not causal,
            "embedding_norm": not causal,  # with one a language model learns much more slowly (docs/log.md)
            "pooling": "mean_max",
            "norm_first": True,
            **chosen,
            **labels,
        }
    )


def check_model(settings: TrainSettings) -> None:
    """Raise ``InputError`` for a field of ``--model`` that there is not, is decided elsewhere, or has no effect."""
    own = {field.name for field in fields(LinformerConfig)} - {field.name for field in fields(PreTrainedConfig)}
    known = sorted(own - DECIDED.keys() - set(OF_DOCUMENTS))
    for name, value in settings.own_fields.items():
        if name in DECIDED:
            raise InputError(f"--model {name}={value}: give {DECIDED[name]} instead")
        if name not in known:
            raise InputError(f"--model {name}={value}: no field of a new model; {suggestion(name, known)}")
        if name in OF_SLOTS and settings.k == "0":
            raise InputError(f"--model {name}={value} has no effect with --k 0, which leaves only the window")
    if settings.own_fields.get("sharing") == "layerwise" and not isinstance(settings.slots, int):
        raise InputError("--model sharing=layerwise has one projection for all layers: --k must be one number")
    try:
        build_config(settings, 8, 0, {})
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise InputError(f"--model: {first_line(error)}") from None


def build_seq2seq_config(
    settings: TrainSettings, tokenizer: PreTrainedTokenizerFast, tokens: dict[str, Any]
) -> LinformerSeq2SeqConfig:
    """The configuration of the new encoder-decoder that ``settings`` ask for.

    The decoder reads the encoder's output through slots like the encoder's. It is short, and keeps the inputs of its
    layers where the encoder is reversible, which a decoder cannot be.
    """
    encoder = build_config(settings, len(tokenizer), tokenizer.pad_token_id, tokens)
    target = {
        **encoder.to_diff_dict(),
        "max_position_embeddings": settings.target_length,
        "causal": True,
        "position_embedding": "rotary",
        "window": WINDOW,
        "k": min(DECODER_SLOTS, settings.target_length // 4),
        "exact_first": 0,  # that of documents
        "activation_memory": "checkpoint" if encoder.activation_memory == "reversible" else encoder.activation_memory,
        "lm_head_transform": False,
    }
    decoder = LinformerConfig(**with_changes(target, {}))
    return LinformerSeq2SeqConfig(encoder=encoder, decoder=decoder, pad_token_id=tokenizer.pad_token_id, **tokens)


def add_latent_semantics(model: LinformerPreTrainedModel, documents: Dataset, *, peak_rate: float, seed: int) -> None:
    """Add the tokens' vectors to the random embeddings, at a scale that training refines and does not erase.

    ``documents`` are the tokenized training documents, with a column "input_ids".
    """
    weight = cast(nn.Embedding, model.get_input_embeddings()).weight
    order = np.random.default_rng(seed).permutation(len(documents))
    drawn = documents.select(np.sort(order[:_LSA_DOCUMENTS])).with_format("numpy")
    vectors = token_vectors((row["input_ids"] for row in drawn), weight.shape[0], weight.shape[1], seed=seed)
    with torch.no_grad():
        weight += torch.from_numpy(vectors) * (_LSA_STEPS * peak_rate)
        weight[model.config.pad_token_id] = 0

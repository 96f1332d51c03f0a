"""A new model: its configuration, as the options and the task say, and its first word embeddings."""

from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.models import LinformerConfig, LinformerPreTrainedModel, LinformerSeq2SeqConfig
from torch_linformer.models.configuration import FIELDS, with_changes
from torch_linformer.tasks.latent_semantics import token_vectors
from torch_linformer.training.model_settings import DECODER_SLOTS, WINDOW, ModelSettings
from torch_linformer.training.sizes import SIZES

_LSA_DOCUMENTS = 20_000  # at most; drawn at random
_LSA_STEPS = 100  # at the peak rate, that the optimizer would need to undo the vectors
_MODEL_OPTIONS = ("attention", "activation_memory", "chunk_size")  # those of a model that are no options of attention


def build_config(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerFast, labels: dict[str, Any]
) -> LinformerConfig:
    """The configuration of the new model that ``settings`` ask for, with what the task sets in it."""
    size, causal = SIZES[settings.size], settings.task == "clm"
    same_names = [name for name in (*FIELDS, *_MODEL_OPTIONS) if hasattr(settings, name) and settings.applies(name)]
    return LinformerConfig(
        **{
            "vocab_size": len(tokenizer),
            "hidden_size": size.hidden_size,
            "num_hidden_layers": size.layers,
            "num_attention_heads": size.heads,
            "intermediate_size": size.feed_forward,
            "hidden_dropout_prob": size.dropout,
            "attention_probs_dropout_prob": 0.0,
            "position_embedding": settings.positions,
            "type_vocab_size": 0,
            "max_position_embeddings": settings.length,
            "pad_token_id": tokenizer.pad_token_id,
            **{name: getattr(settings, name) for name in same_names},
            "sharing": settings.map_sharing,
            "k": settings.slots,
            "window": settings.local_window,
            "causal": causal,
            "lm_head_transform": not causal,
            "embedding_norm": not causal,  # with one a language model learns much more slowly (docs/log.md)
            "pooling": "mean_max",
            "norm_first": True,
            **labels,
        }
    )


def build_seq2seq_config(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerFast, tokens: dict[str, Any]
) -> LinformerSeq2SeqConfig:
    """The configuration of the new encoder-decoder that ``settings`` ask for.

    The decoder reads the encoder's output through slots like the encoder's. It is short, and keeps the inputs of its
    layers where the encoder is reversible, which a decoder cannot be.
    """
    encoder = build_config(settings, tokenizer, tokens)
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

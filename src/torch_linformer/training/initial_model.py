"""The model that a training begins with."""

from collections import Counter
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import nn
from transformers import PreTrainedTokenizerFast, set_seed

from torch_linformer.models import LinformerConfig, LinformerPreTrainedModel
from torch_linformer.training.latent_semantics import token_vectors
from torch_linformer.training.parts import Parts
from torch_linformer.training.settings import SIZES, TrainSettings

_LSA_DOCUMENTS = 20_000  # at most; drawn at random
_LSA_STEPS = 100  # at the peak rate, that the optimiser would need to undo the vectors


def build_model(
    settings: TrainSettings,
    model_class: type[LinformerPreTrainedModel],
    tokenizer: PreTrainedTokenizerFast,
    parts: Parts,
) -> LinformerPreTrainedModel:
    """A model of the task's class with random weights that follow from the seed."""
    set_seed(settings.seed)
    return model_class(build_config(settings, tokenizer, parts))


def add_latent_semantics(model: LinformerPreTrainedModel, documents: Dataset, settings: TrainSettings) -> None:
    """Add the tokens' vectors to the random embeddings, so large that training refines and does not erase them.

    ``documents`` are the tokenised training documents, with a column "input_ids".
    """
    weight = cast(nn.Embedding, model.get_input_embeddings()).weight
    order = np.random.default_rng(settings.seed).permutation(len(documents))
    drawn = documents.select(np.sort(order[:_LSA_DOCUMENTS])).with_format("numpy")
    vectors = token_vectors((row["input_ids"] for row in drawn), weight.shape[0], weight.shape[1], seed=settings.seed)
    with torch.no_grad():
        weight += torch.from_numpy(vectors) * (_LSA_STEPS * settings.peak_rate)
        weight[model.config.pad_token_id] = 0


def build_config(settings: TrainSettings, tokenizer: PreTrainedTokenizerFast, parts: Parts) -> LinformerConfig:
    """The configuration of the model that ``settings`` ask for."""
    size = SIZES[settings.size]
    labels: dict[str, Any] = {}
    if settings.task == "classify":
        labels = {
            "id2label": dict(enumerate(parts.names)),
            "label2id": {name: number for number, name in enumerate(parts.names)},
            "class_weights": _class_weights(settings, parts),
        }
    return LinformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=size.hidden_size,
        num_hidden_layers=size.layers,
        num_attention_heads=size.heads,
        intermediate_size=size.feed_forward,
        hidden_dropout_prob=size.dropout,
        attention_probs_dropout_prob=0.0,
        position_embedding=size.position_embedding,
        type_vocab_size=0,
        max_position_embeddings=settings.max_length,
        pad_token_id=tokenizer.pad_token_id,
        k=settings.slots,
        sharing=settings.sharing,
        projection=settings.projection,
        attention=settings.attention,
        pooling="mean_max",
        norm_first=True,
        **labels,
    )


def _class_weights(settings: TrainSettings, parts: Parts) -> list[float] | None:
    """Weights inverse to how often a label occurs, 1 on average over the documents."""
    if settings.class_weights == "none":
        return None
    counts = Counter(parts.train["label"])
    return [counts.total() / (len(counts) * counts[name]) for name in parts.names]

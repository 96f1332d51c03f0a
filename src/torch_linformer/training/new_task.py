"""The task of a training run, as its settings and documents set it."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from torch_linformer.models import LinformerConfig
from torch_linformer.tasks.answering import Answering
from torch_linformer.tasks.language_modeling import CausalLanguageModeling, MaskedLanguageModeling
from torch_linformer.tasks.registry import TASKS
from torch_linformer.tasks.retrieval import POOLINGS, Retrieval
from torch_linformer.tasks.sequence_to_sequence import SequenceToSequence
from torch_linformer.tasks.tagging import Tagging, tagging_of
from torch_linformer.tasks.task import Task
from torch_linformer.tasks.whole_documents import Regression
from torch_linformer.training.first_model import first_config, pooling_of, token_types
from torch_linformer.training.train_settings import TrainSettings


def new_task(
    settings: TrainSettings, tokenizer: PreTrainedTokenizerFast, names: Sequence[str], documents: Dataset
) -> Task:
    """The task that the settings, the names of the labels and the training documents set."""
    kind = TASKS[settings.task]
    if kind is MaskedLanguageModeling:
        options = {"packing": settings.packing, "whole_words": settings.whole_words}
        return MaskedLanguageModeling(tokenizer, settings.seed, **options)
    if kind is CausalLanguageModeling:
        return CausalLanguageModeling(tokenizer, settings.seed, packing=settings.packing)
    if kind is Retrieval:
        known = None if settings.from_model is None else pooling_of(settings.from_model)
        return Retrieval(tokenizer, known if known in POOLINGS else "mean")
    if kind is SequenceToSequence:
        return SequenceToSequence(tokenizer, settings.target_length)
    if kind is Answering:
        return Answering(tokenizer, typed=_is_typed(settings), max_answer_length=settings.max_answer_length)
    if kind is Regression:
        values = np.asarray(documents["label"][:])
        return Regression(tokenizer, float(values.mean()), float(values.std()) or 1.0)
    if kind is Tagging:
        return tagging_of(tokenizer, names)
    return kind(tokenizer, names)


def _is_typed(settings: TrainSettings) -> bool:
    """Whether questions and texts have token types of their own; a model of this package can be given some."""
    if settings.from_model is None:
        return True
    config = first_config(settings.from_model)
    is_own = isinstance(config, LinformerConfig) and config.backbone_config is None
    return token_types(config) != 1 if is_own else token_types(config) > 1

"""What can be learnt: one file a kind of task, and the way from its name or from a trained model to it."""

from collections.abc import Sequence

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from torch_linformer.models import LinformerForSequenceClassification, LinformerPreTrainedModel
from torch_linformer.training.errors import InputError
from torch_linformer.training.folder import load_config, reader_config
from torch_linformer.training.settings import TrainSettings
from torch_linformer.training.tasks.answering import Answering
from torch_linformer.training.tasks.masking import MaskedLanguageModelling
from torch_linformer.training.tasks.next_token import CausalLanguageModelling
from torch_linformer.training.tasks.seq2seq import SequenceToSequence
from torch_linformer.training.tasks.tagging import Tagging
from torch_linformer.training.tasks.task import Task
from torch_linformer.training.tasks.whole_documents import Classification, MultiLabel, Regression

TASKS: dict[str, type[Task]] = {
    "classify": Classification,
    "multilabel": MultiLabel,
    "regress": Regression,
    "token-classify": Tagging,
    "qa": Answering,
    "mlm": MaskedLanguageModelling,
    "clm": CausalLanguageModelling,
    "seq2seq": SequenceToSequence,
}


def new_task(
    settings: TrainSettings, tokenizer: PreTrainedTokenizerFast, names: Sequence[str], documents: Dataset
) -> Task:
    """The task that the settings, the names of the labels and the training documents set."""
    kind = TASKS[settings.task]
    if kind is MaskedLanguageModelling:
        options = {"packing": settings.packing, "whole_words": settings.whole_words}
        return MaskedLanguageModelling(tokenizer, settings.seed, **options)
    if kind is CausalLanguageModelling:
        return CausalLanguageModelling(tokenizer, settings.seed, packing=settings.packing)
    if kind is SequenceToSequence:
        return SequenceToSequence(tokenizer, settings.target_length)
    if kind is Answering:
        first = None if settings.from_model is None else reader_config(load_config(settings.from_model))
        return Answering(tokenizer, typed=first is None or first.type_vocab_size != 1)
    if kind is Regression:
        values = np.asarray(documents["label"][:])
        return Regression(tokenizer, float(values.mean()), float(values.std()) or 1.0)
    return kind(tokenizer, names)


def task_of(model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Task:
    """The task that a trained model has learnt.

    Raises:
        InputError: it has learnt none that can be scored or asked for.
    """
    if isinstance(model, LinformerForSequenceClassification):
        match model.config.problem_type:
            case "regression":
                return Regression(tokenizer)
            case None if model.num_labels == 1:  # a number, as the loss takes it too
                return Regression(tokenizer)
            case "multi_label_classification":
                return MultiLabel(tokenizer, model.config.label_names)
            case _:
                return Classification(tokenizer, model.config.label_names)
    if isinstance(model, MaskedLanguageModelling.model_class):
        return MaskedLanguageModelling(tokenizer, seed)
    if isinstance(model, CausalLanguageModelling.model_class):
        return CausalLanguageModelling(tokenizer, seed)
    if isinstance(model, SequenceToSequence.model_class):
        return SequenceToSequence(tokenizer, model.decoder.config.max_position_embeddings)
    if isinstance(model, Answering.model_class):
        return Answering(tokenizer, typed=model.config.type_vocab_size > 1)
    if isinstance(model, Tagging.model_class):
        return Tagging(tokenizer, model.config.label_names)
    raise InputError(f"a {type(model).__name__} answers nothing: train it on a --task, with --from")


__all__ = [
    "TASKS",
    "Answering",
    "CausalLanguageModelling",
    "Classification",
    "MaskedLanguageModelling",
    "MultiLabel",
    "Regression",
    "SequenceToSequence",
    "Tagging",
    "Task",
    "new_task",
    "task_of",
]

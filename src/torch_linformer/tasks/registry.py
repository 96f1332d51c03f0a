"""The tasks by name, and the task that a trained model has learned."""

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from torch_linformer.encoders.heads import has_token_types, head_of
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForSequenceClassification, LinformerPreTrainedModel
from torch_linformer.tasks.answering import Answering
from torch_linformer.tasks.language_modeling import CausalLanguageModeling, MaskedLanguageModeling
from torch_linformer.tasks.retrieval import POOLINGS, Retrieval
from torch_linformer.tasks.sequence_to_sequence import SequenceToSequence
from torch_linformer.tasks.tagging import Tagging, tagging_of
from torch_linformer.tasks.task import Task
from torch_linformer.tasks.whole_documents import Classification, MultiLabel, Regression, WholeDocuments

TASKS: dict[str, type[Task]] = {
    "classify": Classification,
    "multilabel": MultiLabel,
    "regress": Regression,
    "embed": Retrieval,
    "token-classify": Tagging,
    "qa": Answering,
    "mlm": MaskedLanguageModeling,
    "clm": CausalLanguageModeling,
    "seq2seq": SequenceToSequence,
}


def task_of(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Task:
    """The task that a trained model has learned, of this package or with a head of transformers.

    Raises:
        InputError: it has learned none that can be scored or predicted.
    """
    if not isinstance(model, LinformerPreTrainedModel):
        return _task_of_head(model, tokenizer, seed)
    if isinstance(model, LinformerForSequenceClassification):
        return task_of_rows(
            model.config, tokenizer, lexical=model.lexical is not None, threshold=model.config.threshold
        )
    for language_model in (MaskedLanguageModeling, CausalLanguageModeling):
        if isinstance(model, language_model.model_class):
            return language_model(tokenizer, seed)
    if isinstance(model, SequenceToSequence.model_class):
        return SequenceToSequence(tokenizer, model.decoder.config.max_position_embeddings)
    if isinstance(model, Answering.model_class):
        longest = model.config.max_answer_length
        return Answering(tokenizer, typed=model.config.type_vocab_size > 1, max_answer_length=longest)
    if isinstance(model, Tagging.model_class):
        return tagging_of(tokenizer, model.config.label_names)
    if isinstance(model, Retrieval.model_class) and model.config.pooling in POOLINGS and not model.config.causal:
        return Retrieval(tokenizer, model.config.pooling)
    raise InputError(f"a {type(model).__name__} answers nothing: train it on a --task, with --from")


def task_of_rows(
    config: Any, tokenizer: PreTrainedTokenizerFast, *, lexical: bool = False, threshold: float = 0.5
) -> WholeDocuments:
    """What a classifier of whole rows says of them, by its configuration."""
    problem, names = config.problem_type, _label_names(config)
    if problem == "regression" or (problem is None and len(names) == 1):  # as the loss takes it too
        return Regression(tokenizer, lexical=lexical)
    if problem == "multi_label_classification":
        return MultiLabel(tokenizer, names, lexical=lexical, threshold=threshold)
    return Classification(tokenizer, names, lexical=lexical)


def _task_of_head(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int) -> Task:
    config: Any = model.config
    match head_of(model):
        case "rows":
            return task_of_rows(config, tokenizer, threshold=getattr(config, "threshold", 0.5))
        case "tokens":
            return tagging_of(tokenizer, _label_names(config))
        case "answers":
            longest = getattr(config, "max_answer_length", None)
            return Answering(tokenizer, typed=has_token_types(model), max_answer_length=longest)
        case "masked words":
            return MaskedLanguageModeling(tokenizer, seed)
        case "none" if getattr(config, "pooling", None) in POOLINGS:
            return Retrieval(tokenizer, config.pooling)
    raise InputError(f"a {type(model).__name__} answers nothing: train it on a --task, with --from")


def _label_names(config: Any) -> list[str]:
    """Names of the labels, in the order of the logits; of models of transformers too."""
    return [config.id2label[number] for number in sorted(config.id2label)]

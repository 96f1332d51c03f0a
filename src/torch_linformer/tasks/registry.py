"""The tasks by name, and the task that a trained model has learned."""

from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from torch_linformer.encoders.heads import has_token_types, head_of
from torch_linformer.errors import InputError
from torch_linformer.tasks.answering import Answering
from torch_linformer.tasks.language_modeling import CausalLanguageModeling, MaskedLanguageModeling
from torch_linformer.tasks.retrieval import POOLINGS, Retrieval
from torch_linformer.tasks.sequence_to_sequence import SequenceToSequence
from torch_linformer.tasks.tagging import Tagging, tagging_of
from torch_linformer.tasks.task import Task
from torch_linformer.tasks.whole_documents import Classification, MultiLabel, Regression

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
    config: Any = model.config
    if isinstance(model, CausalLanguageModeling.model_class):
        return CausalLanguageModeling(tokenizer, seed)
    if isinstance(model, SequenceToSequence.model_class):
        return SequenceToSequence(tokenizer, model.decoder.config.max_position_embeddings)
    labels = config.id2label or {}
    names = [labels[number] for number in sorted(labels)]  # in the order of the logits
    match head_of(model):
        case "rows":
            problem, lexical = config.problem_type, getattr(model, "lexical", None) is not None
            if problem == "regression" or (problem is None and len(names) == 1):  # as the loss takes it too
                return Regression(tokenizer, lexical=lexical)
            if problem == "multi_label_classification":
                several = MultiLabel(tokenizer, names, lexical=lexical)
                several.threshold = getattr(config, "threshold", several.threshold)
                return several
            return Classification(tokenizer, names, lexical=lexical)
        case "tokens":
            return tagging_of(tokenizer, names)
        case "answers":
            longest = getattr(config, "max_answer_length", None)
            return Answering(tokenizer, typed=has_token_types(model), max_answer_length=longest)
        case "masked words":
            return MaskedLanguageModeling(tokenizer, seed)
        case "none" if getattr(config, "pooling", None) in POOLINGS and not getattr(config, "causal", False):
            return Retrieval(tokenizer, config.pooling)
    raise InputError(f"a {type(model).__name__} answers nothing: train it on a --task, with --from")

"""The tasks by name, and the task that a trained model has learned."""

from transformers import PreTrainedTokenizerFast

from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForSequenceClassification, LinformerPreTrainedModel
from torch_linformer.tasks.answering import Answering
from torch_linformer.tasks.masking import MaskedLanguageModeling
from torch_linformer.tasks.next_token import CausalLanguageModeling
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


def task_of(model: LinformerPreTrainedModel, tokenizer: PreTrainedTokenizerFast, seed: int = 0) -> Task:
    """The task that a trained model has learned.

    Raises:
        InputError: it has learned none that can be scored or predicted.
    """
    if isinstance(model, LinformerForSequenceClassification):
        problem = model.config.problem_type
        if problem == "regression" or (problem is None and model.num_labels == 1):  # as the loss takes it too
            return Regression(tokenizer, lexical=model.lexical is not None)
        names, lexical = model.config.label_names, model.lexical is not None
        if problem == "multi_label_classification":
            return MultiLabel(tokenizer, names, lexical=lexical, threshold=model.config.threshold)
        return Classification(tokenizer, names, lexical=lexical)
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

"""The Trainer of a task, and that of masked words whose head is one of transformers: it predicts only these."""

from typing import Any, cast

from torch import nn
from transformers import PreTrainedModel

from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.heads import predicts_at
from torch_linformer.models.loss import token_loss
from torch_linformer.opening.model_folder import AnyModel
from torch_linformer.tasks.language_modeling import MaskedLanguageModeling
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.tasks.task import IGNORED, Task
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.retrieval_trainer import RetrievalTrainer

SPARSE = "sparse_prediction"  # in batches of a training


class MaskedWordsTrainer(DocumentTrainer):
    """A run's Trainer whose model has a head of transformers for masked words."""

    def loss_of(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        if SPARSE not in inputs:
            return super().loss_of(model, inputs, *args, **kwargs)
        chosen = inputs["labels"] != IGNORED
        rows = {name: x for name, x in inputs.items() if name not in (SPARSE, "labels")}
        with predicts_at(cast(PreTrainedModel, self.accelerator.unwrap_model(model)), chosen):
            logits = model(**rows).logits.squeeze(0)
        return token_loss(logits, inputs["labels"][chosen])


def trainer_for(task: Task, model: AnyModel) -> type[DocumentTrainer]:
    """The Trainer by which a model learns a task."""
    if isinstance(task, MaskedLanguageModeling) and isinstance(model, LinearEncoder):
        return MaskedWordsTrainer
    return RetrievalTrainer if isinstance(task, Retrieval) else DocumentTrainer

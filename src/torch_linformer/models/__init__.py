"""Linformer on transformers: configuration, backbone and heads, registered with the Auto classes on import."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
)

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.heads import LinformerForMaskedLM, LinformerForSequenceClassification

AutoConfig.register(LinformerConfig.model_type, LinformerConfig)
AutoModel.register(LinformerConfig, LinformerModel)
AutoModelForMaskedLM.register(LinformerConfig, LinformerForMaskedLM)
AutoModelForSequenceClassification.register(LinformerConfig, LinformerForSequenceClassification)

__all__ = [
    "LinformerConfig",
    "LinformerForMaskedLM",
    "LinformerForSequenceClassification",
    "LinformerModel",
    "LinformerPreTrainedModel",
]

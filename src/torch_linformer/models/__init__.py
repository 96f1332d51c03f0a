"""Linformer on transformers: configuration, backbone and heads, registered with the Auto classes on import."""

from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.cache import LinformerCache
from torch_linformer.models.causal_lm import LinformerForCausalLM
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.heads import (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from torch_linformer.models.seq2seq import LinformerForConditionalGeneration
from torch_linformer.models.seq2seq_configuration import LinformerSeq2SeqConfig

AutoConfig.register(LinformerConfig.model_type, LinformerConfig)
AutoConfig.register(LinformerSeq2SeqConfig.model_type, LinformerSeq2SeqConfig)
AutoModel.register(LinformerConfig, LinformerModel)
AutoModelForCausalLM.register(LinformerConfig, LinformerForCausalLM)
AutoModelForMaskedLM.register(LinformerConfig, LinformerForMaskedLM)
AutoModelForMultipleChoice.register(LinformerConfig, LinformerForMultipleChoice)
AutoModelForQuestionAnswering.register(LinformerConfig, LinformerForQuestionAnswering)
AutoModelForSeq2SeqLM.register(LinformerSeq2SeqConfig, LinformerForConditionalGeneration)
AutoModelForSequenceClassification.register(LinformerConfig, LinformerForSequenceClassification)
AutoModelForTokenClassification.register(LinformerConfig, LinformerForTokenClassification)

__all__ = [
    "LinformerCache",
    "LinformerConfig",
    "LinformerForCausalLM",
    "LinformerForConditionalGeneration",
    "LinformerForMaskedLM",
    "LinformerForMultipleChoice",
    "LinformerForQuestionAnswering",
    "LinformerForSequenceClassification",
    "LinformerForTokenClassification",
    "LinformerModel",
    "LinformerPreTrainedModel",
    "LinformerSeq2SeqConfig",
]

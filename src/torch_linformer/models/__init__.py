"""Linformer on transformers: configuration, backbone and heads, registered with the Auto classes on import."""

from typing import Any

import transformers

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.cache import LinformerCache
from torch_linformer.models.configuration import AUTO_CLASSES, LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.models.heads import (
    LinformerForCausalLM,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from torch_linformer.models.seq2seq import LinformerForConditionalGeneration

for _config in (LinformerConfig, LinformerSeq2SeqConfig):
    transformers.AutoConfig.register(_config.model_type, _config)
    for _auto_name, _name in AUTO_CLASSES[_config.model_type].items():
        if _auto_name != "AutoConfig":
            _auto: Any = getattr(transformers, _auto_name)
            _auto.register(_config, globals()[_name])
            # The Trainer shifts the labels that it smooths only for the causal language models in this list.
            _auto._model_mapping._model_mapping[_config.model_type] = _name

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

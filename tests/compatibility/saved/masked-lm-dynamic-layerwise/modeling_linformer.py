"""Opens this folder with trust_remote_code=True where torch-linformer is installed."""

from torch_linformer import LinformerConfig, LinformerForCausalLM, LinformerForMaskedLM, LinformerForMultipleChoice, LinformerForQuestionAnswering, LinformerForSequenceClassification, LinformerForTokenClassification, LinformerModel

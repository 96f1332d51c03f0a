"""torchao: the linear layers of a trained classifier in int8, their inputs quantized dynamically; and what it costs.

Install: pip install "torch-linformer[train]" torchao
Run: python examples/int8_quantization.py
"""

import copy
import tempfile

import torch
from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForSequenceClassification

train, held_out = documents("asyncio", "email")
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)
train = [{**tokenizer(row["text"], truncation=True), "labels": row["label"]} for row in train]

set_seed(0)
config = LinformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=256,
    k=64,
    num_labels=2,
)
model = LinformerForSequenceClassification(config)
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder,
        num_train_epochs=2,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    Trainer(model=model, args=arguments, train_dataset=train, data_collator=DataCollatorWithPadding(tokenizer)).train()

model.eval()
quantized = copy.deepcopy(model)
quantize_(quantized, Int8DynamicActivationInt8WeightConfig())

labels = torch.tensor([row["label"] for row in held_out])
batch = tokenizer([row["text"] for row in held_out], padding=True, truncation=True, return_tensors="pt")
with torch.no_grad():
    exact, rounded = model(**batch).logits, quantized(**batch).logits
before, after = ((scores.argmax(-1) == labels).float().mean().item() for scores in (exact, rounded))
linear = [module for module in quantized.modules() if isinstance(module, torch.nn.Linear)]
print("linear layers:", len(linear))
print("of which int8:", sum(type(module.weight) is not torch.nn.Parameter for module in linear))
print("held-out documents:", len(held_out))
print("accuracy in float32:", round(before, 4))
print("accuracy in int8:", round(after, 4))
print("accuracy lost:", round(before - after, 4))
error = (rounded - exact).abs().max() / exact.abs().max()
print("largest error of a score, relative to the largest score:", round(error.item(), 4))

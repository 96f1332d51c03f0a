"""PEFT: a LoRA adapter teaches a trained classifier two other labels; saved, loaded and merged into the model.

Install: pip install "torch-linformer[train]" peft
Run: python examples/peft_lora.py
"""

import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForSequenceClassification

first, second = documents("asyncio", "email"), documents("importlib", "xml")
tokenizer = word_tokenizer([row["text"] for part in (first, second) for row in part[0]], max_length=256)
collator = DataCollatorWithPadding(tokenizer)


def fit(model, rows, epochs, learning_rate):
    arguments = TrainingArguments(
        folder,
        num_train_epochs=epochs,
        per_device_train_batch_size=16,
        learning_rate=learning_rate,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    rows = [{**tokenizer(row["text"], truncation=True), "labels": row["label"]} for row in rows]
    Trainer(model=model, args=arguments, train_dataset=rows, data_collator=collator).train()


@torch.no_grad()
def scores(model):
    """Logits of the documents with the new labels that are held out."""
    texts = [row["text"] for row in second[1]]
    return model.eval()(**tokenizer(texts, padding=True, truncation=True, return_tensors="pt")).logits


def accuracy(logits):
    labels = torch.tensor([row["label"] for row in second[1]])
    return round((logits.argmax(-1) == labels).float().mean().item(), 4)


with tempfile.TemporaryDirectory() as folder:
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
    base = LinformerForSequenceClassification(config)
    fit(base, first[0], epochs=2, learning_rate=1e-3)
    base.save_pretrained(f"{folder}/base")
    print("accuracy of the base model on the new labels:", accuracy(scores(base)))

    # The word embeddings too, because the new documents have words that the base model never saw.
    modules = ["word_embeddings", "q_proj", "k_proj", "v_proj", "out_proj"]
    lora = LoraConfig(task_type="SEQ_CLS", r=8, lora_alpha=16, target_modules=modules)
    adapted = get_peft_model(base, lora)
    trained, whole = adapted.get_nb_trainable_parameters()
    print(f"share of the parameters that is trained: {trained / whole:.4f}")
    fit(adapted, second[0], epochs=4, learning_rate=5e-3)
    expected = scores(adapted)
    print("accuracy with the adapter:", accuracy(expected))
    adapted.save_pretrained(f"{folder}/adapter")

    base = AutoModelForSequenceClassification.from_pretrained(f"{folder}/base")
    loaded = PeftModel.from_pretrained(base, f"{folder}/adapter")
    print("largest difference of a score once loaded:", (scores(loaded) - expected).abs().max().item())
    loaded.merge_and_unload().save_pretrained(f"{folder}/merged")
    merged = AutoModelForSequenceClassification.from_pretrained(f"{folder}/merged")
    print("largest difference of a score once merged:", (scores(merged) - expected).abs().max().item())

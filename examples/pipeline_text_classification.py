"""The pipelines "text-classification" and "feature-extraction" of transformers, from the saved folder of a classifier.

Install: pip install "torch-linformer[train]"
Run: python examples/pipeline_text_classification.py
"""

import tempfile

import torch
from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, pipeline, set_seed

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForSequenceClassification

train, held_out = documents("asyncio", "email")
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)

set_seed(0)
config = LinformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=256,
    k=64,
    id2label={0: "asyncio", 1: "email"},
    label2id={"asyncio": 0, "email": 1},
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=LinformerForSequenceClassification(config),
        args=TrainingArguments(
            folder,
            num_train_epochs=2,
            per_device_train_batch_size=16,
            learning_rate=1e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[{**tokenizer(row["text"], truncation=True), "labels": row["label"]} for row in train],
        data_collator=DataCollatorWithPadding(tokenizer),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(f"{folder}/model")  # and the tokenizer
    classify = pipeline("text-classification", model=f"{folder}/model")
    extract = pipeline("feature-extraction", model=f"{folder}/model")

print(classify("loop.call_soon(future.set_result, None)")[0])
texts, labels = [row["text"] for row in held_out], torch.tensor([row["label"] for row in held_out])
answers = classify(texts, batch_size=16, truncation=True)
right = [answer["label"] == config.id2label[row["label"]] for answer, row in zip(answers, held_out, strict=True)]
print("text-classification, accuracy on held-out texts:", round(sum(right) / len(right), 4))

means = torch.stack([torch.tensor(vectors[0]).mean(dim=0) for vectors in extract(texts, truncation=True)])
nearest = torch.cdist(means, means).fill_diagonal_(torch.inf).argmin(dim=1)
alike = (labels[nearest] == labels).float().mean().item()
print("feature-extraction, nearest text is of the same package:", round(alike, 4))

"""The pipeline "token-classification" of transformers, from the saved folder of a trained model.

The model tells keywords, names, numbers and signs of Python source apart.
Install: pip install "torch-linformer[train]"
Run: python examples/pipeline_token_classification.py
"""

import keyword
import tempfile

from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments, pipeline, set_seed

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForTokenClassification

KINDS = ["keyword", "name", "number", "sign"]
train, held_out = documents("asyncio", "email")
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)


def kind(word):
    if keyword.iskeyword(word):
        return "keyword"
    return "name" if word.isidentifier() else "number" if word.isdigit() else "sign"


def encoded(text):
    """Ids, and the kind of each token by its number; the special tokens have −100, which the loss ignores."""
    row = tokenizer(text, truncation=True, return_offsets_mapping=True)
    places = row.pop("offset_mapping")
    return {**row, "labels": [KINDS.index(kind(text[start:end])) if end else -100 for start, end in places]}


set_seed(0)
config = LinformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=256,
    k=64,
    id2label=dict(enumerate(KINDS)),
    label2id={label: number for number, label in enumerate(KINDS)},
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=LinformerForTokenClassification(config),
        args=TrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=8,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[encoded(row["text"]) for row in train],
        data_collator=DataCollatorForTokenClassification(tokenizer),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(f"{folder}/model")  # and the tokenizer
    tell_kinds = pipeline("token-classification", model=f"{folder}/model")

print(*(f"{found['word']}/{found['entity']}" for found in tell_kinds("while x < 10: x += step")))
texts = [row["text"] for row in held_out]
right = [
    found["entity"] == kind(text[found["start"] : found["end"]])
    for text, answers in zip(texts, tell_kinds(texts, batch_size=16), strict=True)
    for found in answers
]
print("token-classification, accuracy on held-out texts:", round(sum(right) / len(right), 4))

"""The pipelines "token-classification" and "fill-mask" of transformers, from saved folders.

One model tells keywords, names, numbers and signs of Python apart; another one guesses a word that is missing.
Install: pip install "torch-linformer[train]"
Run: python examples/pipelines_of_tokens.py
"""

import keyword
import re
import tempfile

from transformers import (
    DataCollatorForLanguageModeling,
    DataCollatorForTokenClassification,
    Trainer,
    TrainingArguments,
    pipeline,
    set_seed,
)

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForMaskedLM, LinformerForTokenClassification

KINDS = ["keyword", "name", "number", "sign"]
train, held_out = documents("asyncio", "email")
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)


def kind(word):
    if keyword.iskeyword(word):
        return "keyword"
    return "name" if word.isidentifier() else "number" if word.isdigit() else "sign"


def encoded(text):
    """Ids, and the kind of each token by its number; the special tokens have −100, which takes no part."""
    row = tokenizer(text, truncation=True, return_offsets_mapping=True)
    places = row.pop("offset_mapping")
    return {**row, "labels": [KINDS.index(kind(text[start:end])) if end else -100 for start, end in places]}


def train_and_save(model_class, name, rows, collator, epochs):
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
    arguments = TrainingArguments(
        name,
        num_train_epochs=epochs,
        learning_rate=3e-3,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = Trainer(model_class(config), arguments, collator, rows, processing_class=tokenizer)
    trainer.train()
    trainer.save_model()  # and the tokenizer


with tempfile.TemporaryDirectory() as folder:
    rows = [encoded(row["text"]) for row in train]
    collator = DataCollatorForTokenClassification(tokenizer)
    train_and_save(LinformerForTokenClassification, f"{folder}/kinds", rows, collator, epochs=1)
    tell_kinds = pipeline("token-classification", model=f"{folder}/kinds")
    rows = [tokenizer(row["text"], truncation=True) for row in train]
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)  # masks anew at every step
    train_and_save(LinformerForMaskedLM, f"{folder}/words", rows, collator, epochs=3)
    fill = pipeline("fill-mask", model=f"{folder}/words")

text = "while x < 10: x += step"
print(*(f"{found['word']}/{found['entity']}" for found in tell_kinds(text)))
right = [
    found["entity"] == kind(row["text"][found["start"] : found["end"]])
    for row in held_out
    for found in tell_kinds(row["text"])
]
print("token-classification, accuracy on held-out texts:", round(sum(right) / len(right), 4))

masked, hidden = [], []
for row in held_out:
    words = [*re.finditer(r"\w+|[^\w\s]+", row["text"])]
    if len(words) > 50:
        word = words[40]
        masked.append(f"{row['text'][: word.start()]}[MASK]{row['text'][word.end() :]}")
        hidden.append(word.group())
found = fill(masked, top_k=1, tokenizer_kwargs={"truncation": True})
right = [answer[0]["token_str"] == word for answer, word in zip(found, hidden, strict=True)]
most_frequent = max(map(hidden.count, hidden))
print("fill-mask, share of missing words guessed:", round(sum(right) / len(right), 4))
print("the most frequent word everywhere would give:", round(most_frequent / len(hidden), 4))

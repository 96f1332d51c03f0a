"""Answering with the model itself (transformers 5 has no pipeline for it): where the answer begins and ends.

The texts are made up: each says who did something, when and where, in any order among other words.
Install: pip install "torch-linformer[train]"
Run: python examples/question_answering.py
"""

import random
import tempfile

import torch
from transformers import AutoModelForQuestionAnswering, DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

from documents import word_tokenizer
from torch_linformer import LinformerConfig, LinformerForQuestionAnswering

WHO = [f"{first} {last}" for first in ("Ada", "Alan", "Emmy", "Grace") for last in ("Byron", "Turing", "Noether")]
WHEN = [f"in the year {year}" for year in range(1900, 1930)]
WHERE = ["Rome", "Bern", "New York", "Cape Town", "Oslo", "Sao Paulo"]
OTHERS = ["the", "and", "of", "a", "very", "long", "letter", "about", "numbers", "went", "to", "somebody", "who"]


def draw(rows):
    """Questions, texts, answers, and where in the text each answer begins."""
    found = []
    for _ in range(rows):
        facts = {"who": random.choice(WHO), "when": random.choice(WHEN), "where": random.choice(WHERE)}
        parts = [*facts.values(), *random.choices(OTHERS, k=random.randint(10, 40))]
        text = " ".join(random.sample(parts, len(parts)))
        question = random.choice(sorted(facts))
        found.append((question, text, facts[question], text.index(facts[question])))
    return found


def encoded(question, text, answer, start):
    """A row for the Trainer: the answer as the positions of its first and last token."""
    row = tokenizer(question, text)
    first, last = (row.char_to_token(place, sequence_index=1) for place in (start, start + len(answer) - 1))
    return {**row, "start_positions": first, "end_positions": last}


def answer(model, question, text):
    row = tokenizer(question, text, return_tensors="pt")
    with torch.no_grad():
        scores = model(**row)
    first, last = scores.start_logits.argmax().item(), scores.end_logits.argmax().item()
    return tokenizer.decode(row["input_ids"][0, first : last + 1])


set_seed(0)
train, held_out = draw(2000), draw(200)
tokenizer = word_tokenizer([f"{question} {text}" for question, text, _, _ in train], max_length=64)
config = LinformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=64,
    k=32,
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=LinformerForQuestionAnswering(config),
        args=TrainingArguments(
            folder,
            num_train_epochs=4,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[encoded(*row) for row in train],
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train()
    trainer.save_model(f"{folder}/model")
    model = AutoModelForQuestionAnswering.from_pretrained(f"{folder}/model").eval()

question, text, _, _ = held_out[0]
print(f"{text}\n{question}? {answer(model, question, text)}")
exact = sum(answer(model, question, text) == wanted for question, text, wanted, _ in held_out)
print("held-out questions answered word for word:", exact / len(held_out))

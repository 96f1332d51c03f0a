"""The pipeline "fill-mask" of transformers, from the saved folder of a model trained on masked words.

The texts are made up, each of the words of one season; a good guess is a word of the season of the others.
Install: pip install "torch-linformer[train]"
Run: python examples/pipeline_fill_mask.py
"""

import random
import tempfile

from transformers import DataCollatorForLanguageModeling, Trainer, TrainingArguments, pipeline, set_seed

from documents import word_tokenizer
from torch_linformer import LinformerConfig, LinformerForMaskedLM

SEASONS = [
    ["bud", "lamb", "seed", "nest", "shower"],
    ["heat", "beach", "swim", "thunder", "drought"],
    ["fog", "harvest", "leaf", "mushroom", "storm"],
    ["frost", "snow", "ice", "skate", "fire"],
]


def draw(season):
    return random.choices(SEASONS[season], k=random.randint(10, 25))


set_seed(0)
train = [" ".join(draw(number % 4)) for number in range(1000)]
tokenizer = word_tokenizer(train, max_length=32)
config = LinformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=32,
    k=16,
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=LinformerForMaskedLM(config),
        args=TrainingArguments(
            folder,
            num_train_epochs=6,
            per_device_train_batch_size=32,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[tokenizer(text) for text in train],
        data_collator=DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15),
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(f"{folder}/model")  # and the tokenizer
    fill = pipeline("fill-mask", model=f"{folder}/model")

for answer in fill("snow ice [MASK] frost snow snow ice", top_k=3):
    print(f"{answer['sequence']} ({answer['score']:.2f})")

seasons = [number % 4 for number in range(200)]
texts = [" ".join(["[MASK]", *draw(season)]) for season in seasons]
guesses = [answers[0]["token_str"] for answers in fill(texts, top_k=1)]
right = [guess in SEASONS[season] for guess, season in zip(guesses, seasons, strict=True)]
print("fill-mask, share of guesses of the right season (by chance 0.25):", sum(right) / len(right))

"""The Trainer of transformers: evaluation while training, early stopping at the best model, and exact resuming.

Install: pip install "torch-linformer[train]"
Run: python examples/trainer.py
"""

import tempfile

from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    Trainer,
    TrainingArguments,
    set_seed,
)

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig

train, held_out = documents("asyncio", "email")
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)
train, held_out = (
    [{**tokenizer(row["text"], truncation=True), "labels": row["label"]} for row in rows] for rows in (train, held_out)
)


def new_trainer(folder, steps, **options):
    """A trainer of a new model, the same at every call."""
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
    arguments = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        lr_scheduler_type="constant",
        eval_strategy="steps",
        eval_steps=10,
        save_steps=10,
        report_to="none",
        disable_tqdm=True,
        **options,
    )
    return Trainer(
        model=AutoModelForSequenceClassification.from_config(config),
        args=arguments,
        train_dataset=train,
        eval_dataset=held_out,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
    )


with tempfile.TemporaryDirectory() as folder:
    trainer = new_trainer(
        f"{folder}/stopped", 500, load_best_model_at_end=True, metric_for_best_model="accuracy", save_total_limit=2
    )
    trainer.add_callback(EarlyStoppingCallback(early_stopping_patience=3))
    trainer.train()
    accuracies = [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
    print("steps until it stopped:", trainer.state.global_step)
    print("best accuracy while training:", round(max(accuracies), 4))
    print("accuracy of the model that was kept:", round(trainer.evaluate()["eval_accuracy"], 4))

    whole = new_trainer(f"{folder}/whole", 20)
    whole.train()
    resumed = new_trainer(f"{folder}/resumed", 20)
    resumed.train(resume_from_checkpoint=f"{folder}/whole/checkpoint-10")
    pairs = zip(whole.model.parameters(), resumed.model.parameters(), strict=True)
    largest = max((a - b).abs().max() for a, b in pairs)
    print("largest difference of a weight, resumed at step 10 or never stopped:", largest.item())

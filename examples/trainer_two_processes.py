"""The Trainer of transformers in two processes (gloo on CPU): the losses of one process, step by step.

Install: pip install "torch-linformer[train]"
Run: torchrun --nproc_per_node 2 examples/trainer_two_processes.py
and for comparison: python examples/trainer_two_processes.py
"""

import os
import tempfile

from transformers import DataCollatorWithPadding, Trainer, TrainingArguments, set_seed

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForSequenceClassification

ROWS_A_STEP = 16
processes = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun

train, _ = documents("asyncio", "email")
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
    hidden_dropout_prob=0.0,  # each process would draw different random numbers
    attention_probs_dropout_prob=0.0,
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=LinformerForSequenceClassification(config),
        args=TrainingArguments(
            folder,
            max_steps=12,
            per_device_train_batch_size=ROWS_A_STEP // processes,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            use_cpu=True,
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=train,
        data_collator=DataCollatorWithPadding(tokenizer),
    )
    trainer.train()

if trainer.is_world_process_zero():
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    print("processes:", processes)
    print("losses:", *(f"{loss:.4f}" for loss in losses))
trainer.accelerator.end_training()

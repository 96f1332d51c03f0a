"""Trains the classifier of FOLDER/start for 8 steps of 8 rows, over as many processes as torchrun started.

Usage: eight_rows_a_step.py FOLDER NAME ACCUMULATED_BATCHES

Leaves the losses in "FOLDER/losses NAME.json" and the model in FOLDER/NAME.
"""

import json
import os
import sys
from pathlib import Path

from transformers import AutoTokenizer, DataCollatorWithPadding, Trainer, TrainingArguments

from torch_linformer.models import LinformerForSequenceClassification

folder, name, accumulated = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
processes = int(os.environ.get("WORLD_SIZE", "1"))
examples = json.loads((folder / "examples.json").read_text(encoding="utf-8"))
trainer = Trainer(
    model=LinformerForSequenceClassification.from_pretrained(folder / "start"),
    args=TrainingArguments(
        output_dir=str(folder / f"checkpoints {name}"),
        max_steps=8,
        per_device_train_batch_size=8 // processes // accumulated,
        gradient_accumulation_steps=accumulated,
        learning_rate=1e-3,
        logging_steps=1,
        save_strategy="no",
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
    ),
    train_dataset=examples,
    data_collator=DataCollatorWithPadding(AutoTokenizer.from_pretrained(folder / "start")),
)
trainer.train()
if trainer.is_world_process_zero():
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    (folder / f"losses {name}.json").write_text(json.dumps(losses), encoding="utf-8")
trainer.save_model(folder / name)
# Without an orderly end a process that is still talking to one that is gone may abort.
trainer.accelerator.wait_for_everyone()
trainer.accelerator.end_training()

"""The Trainer of transformers, in one process and in two."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from torch.testing import assert_close
from transformers import DataCollatorWithPadding, EarlyStoppingCallback, Trainer, TrainingArguments

from torch_linformer.models import LinformerForSequenceClassification

EIGHT_ROWS = Path(__file__).with_name("eight_rows_a_step.py")


def trainer_of(model, tokenizer, examples, output, *, steps, callbacks=(), **options):
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        eval_strategy="steps",
        eval_steps=6,
        save_steps=6,
        logging_steps=6,
        **options,
    )
    return Trainer(
        model=model,
        args=arguments,
        train_dataset=examples[:64],
        eval_dataset=examples[64:],
        processing_class=tokenizer,
        data_collator=DataCollatorWithPadding(tokenizer),
        compute_metrics=lambda found: {"accuracy": float((found.predictions.argmax(-1) == found.label_ids).mean())},
        callbacks=list(callbacks),
    )


def test_training_evaluation_and_saving(model, tokenizer, examples, tmp_path):
    trainer = trainer_of(model, tokenizer, examples, tmp_path / "run", steps=36)
    trainer.train()
    scores = trainer.evaluate()
    assert scores["eval_accuracy"] > 0.9
    trainer.save_model(tmp_path / "saved")
    loaded = LinformerForSequenceClassification.from_pretrained(tmp_path / "saved")
    assert_close(loaded.state_dict(), model.state_dict(), rtol=0, atol=0)


def test_resume_gives_the_weights_of_a_run_that_was_not_stopped(config, tokenizer, examples, tmp_path):
    def run(output, resume=None):
        torch.manual_seed(0)
        model = LinformerForSequenceClassification(config)
        trainer_of(model, tokenizer, examples, output, steps=12).train(resume_from_checkpoint=resume)
        return model.state_dict()

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "other", resume=str(tmp_path / "whole" / "checkpoint-6"))
    assert_close(resumed, whole, rtol=0, atol=0)


def test_early_stopping_keeps_the_best(model, tokenizer, examples, tmp_path):
    options = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    stop = EarlyStoppingCallback(early_stopping_patience=2)
    trainer = trainer_of(model, tokenizer, examples, tmp_path, steps=300, callbacks=[stop], **options)
    trainer.train()
    assert trainer.state.global_step < 300
    seen = [entry["eval_accuracy"] for entry in trainer.state.log_history if "eval_accuracy" in entry]
    assert trainer.evaluate()["eval_accuracy"] == max(seen)


def test_two_processes_and_two_batches_a_step_give_the_losses_of_one(model, tokenizer, examples, tmp_path):
    """8 rows a step: at once, 4 in each of two processes (gloo), and 4 after 4."""
    model.save_pretrained(tmp_path / "start")
    tokenizer.save_pretrained(tmp_path / "start")
    (tmp_path / "examples.json").write_text(json.dumps(examples[:64]), encoding="utf-8")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    runs = {"whole": [sys.executable], "processes": torchrun, "accumulated": [sys.executable]}
    losses, weights = {}, {}
    for name, command in runs.items():
        accumulated = "2" if name == "accumulated" else "1"
        subprocess.run([*command, EIGHT_ROWS, tmp_path, name, accumulated], check=True, timeout=300)
        losses[name] = torch.tensor(json.loads((tmp_path / f"losses {name}.json").read_text()))
        weights[name] = LinformerForSequenceClassification.from_pretrained(tmp_path / name).state_dict()
    assert losses["whole"].shape == (8,)
    for name in ("processes", "accumulated"):
        assert_close(losses[name], losses["whole"], rtol=1e-3, atol=1e-4)  # the log rounds
        assert_close(weights[name], weights["whole"], rtol=1e-3, atol=1e-4)

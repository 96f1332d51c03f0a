"""Training by the trainers of transformers, in one process and in two, by Lightning, and what a tracker gets."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import lightning
import pytest
import torch
from torch.testing import assert_close
from torch.utils.data import DataLoader
from transformers import (
    DataCollatorForSeq2Seq,
    DataCollatorWithPadding,
    EarlyStoppingCallback,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    Trainer,
    TrainingArguments,
)

from torch_linformer.models import (
    LinformerForConditionalGeneration,
    LinformerForSequenceClassification,
    LinformerSeq2SeqConfig,
)

EIGHT_ROWS = Path(__file__).with_name("eight_rows_a_step.py")
ON_A_CPU = {"learning_rate": 5e-3, "use_cpu": True, "report_to": "none", "disable_tqdm": True}


def trainer_of(model, tokenizer, examples, output, *, callbacks=(), **options):
    steps = {"eval_strategy": "steps", "eval_steps": 6, "save_steps": 6, "logging_steps": 6}
    arguments = TrainingArguments(str(output), per_device_train_batch_size=8, **ON_A_CPU, **steps, **options)
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
    trainer = trainer_of(model, tokenizer, examples, tmp_path / "run", max_steps=36)
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
        trainer_of(model, tokenizer, examples, output, max_steps=12).train(resume_from_checkpoint=resume)
        return model.state_dict()

    whole = run(tmp_path / "whole")
    resumed = run(tmp_path / "other", resume=str(tmp_path / "whole" / "checkpoint-6"))
    assert_close(resumed, whole, rtol=0, atol=0)


def test_early_stopping_keeps_the_best(model, tokenizer, examples, tmp_path):
    options = {"load_best_model_at_end": True, "metric_for_best_model": "accuracy"}
    stop = EarlyStoppingCallback(early_stopping_patience=2)
    trainer = trainer_of(model, tokenizer, examples, tmp_path, max_steps=300, callbacks=[stop], **options)
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


# An encoder-decoder


@pytest.fixture
def pair_model(tokenizer):
    sizes = {"vocab_size": len(tokenizer), "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    sizes |= {"intermediate_size": 40, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "k": 8}
    encoder = {**sizes, "max_position_embeddings": 16, "projection": "mean"}
    decoder = {**sizes, "max_position_embeddings": 8, "window": 4}
    torch.manual_seed(0)
    tokens = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
    return LinformerForConditionalGeneration(LinformerSeq2SeqConfig(encoder=encoder, decoder=decoder, **tokens))


@pytest.fixture
def pairs(tokenizer):
    """Texts of one topic among words of none, and the topic's first word as often as the source has words of it."""
    draw, rows = random.Random(0), []
    for _ in range(96):
        topic = draw.choice([["wet", "grey", "mud"], ["warm", "sand", "sea"]])
        words = draw.choices([*topic, "the", "of"], k=draw.randint(3, 12))
        ids = tokenizer(" ".join(words), return_token_type_ids=False)["input_ids"]
        target = [tokenizer.convert_tokens_to_ids(topic[0])] * (1 + (words.count("the") > 2))
        rows.append({"input_ids": ids, "labels": [*target, 3]})
    return rows


def pair_trainer(model, tokenizer, pairs, output, **options):
    arguments = Seq2SeqTrainingArguments(
        str(output),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        lr_scheduler_type="constant",
        label_smoothing_factor=0.1,
        save_strategy="no",
        **ON_A_CPU,
        **options,
    )
    return Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=pairs[:64],
        eval_dataset=pairs[64:],
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=lambda found: {"first": float((found.predictions[:, 1] == found.label_ids[:, 0]).mean())},
    )


def test_training_with_label_smoothing_evaluating_by_generation_and_saving(pair_model, tokenizer, pairs, tmp_path):
    generation = {"predict_with_generate": True, "generation_max_length": 6}
    trainer = pair_trainer(pair_model, tokenizer, pairs, tmp_path / "run", max_steps=80, **generation)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_first"] > 0.9 and after["eval_loss"] < 0.5 * before["eval_loss"]
    beams = trainer.predict(pairs[64:], max_length=6, num_beams=3)
    assert beams.metrics["test_first"] > 0.9 and beams.predictions.shape[0] == 32
    trainer.save_model(tmp_path / "saved")
    loaded = LinformerForConditionalGeneration.from_pretrained(tmp_path / "saved")
    assert_close(dict(loaded.state_dict()), dict(pair_model.state_dict()), rtol=0, atol=0)


def test_the_smoothed_loss_is_that_of_its_definition(pair_model, tokenizer, pairs, tmp_path):
    trainer = pair_trainer(pair_model, tokenizer, pairs, tmp_path)
    batch = trainer.data_collator(pairs[:5])
    logits = pair_model(**batch).logits
    scores, labels = logits.log_softmax(-1).flatten(0, 1), batch["labels"].flatten()
    counted, wanted = scores[labels != -100], labels[labels != -100]
    plain = -counted.gather(1, wanted[:, None]).mean()
    assert_close(trainer.compute_loss(pair_model, dict(batch)), 0.9 * plain - 0.1 * counted.mean())


# Others


class Classifier(lightning.LightningModule):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def training_step(self, batch):
        return self.model(**batch).loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=5e-3)


def test_a_module_that_wraps_a_model(model, tokenizer, examples, batch, tmp_path):
    loader = DataLoader(examples, batch_size=8, collate_fn=DataCollatorWithPadding(tokenizer))
    before = model(**batch).loss.item()
    trainer = lightning.Trainer(
        max_epochs=2, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False
    )
    trainer.fit(Classifier(model), loader)
    assert model.eval()(**batch).loss.item() < before / 2
    trainer.save_checkpoint(tmp_path / "checkpoint")
    weights = torch.load(tmp_path / "checkpoint", weights_only=True)["state_dict"]
    assert_close({name.removeprefix("model."): value for name, value in weights.items()}, dict(model.state_dict()))


def test_losses_rates_and_scores_are_in_tensorboard(train_quickly, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    shown = train_quickly(tmp_path / "run", report_to="tensorboard", baseline=False)
    (folder,) = (tmp_path / "run" / "runs").iterdir()
    reader = accumulators.EventAccumulator(str(folder)).Reload()
    found = {tag: {each.step: each.value for each in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}
    told = re.findall(r"^step (\d+): validation .*macro-f1 ([\d.]+)", shown, re.MULTILINE)
    assert len(told) == 10
    assert {step: f"{value:.4f}" for step, value in found["eval/macro_f1"].items()} == {int(a): b for a, b in told}
    assert found["eval/loss"].keys() == found["eval/macro_f1"].keys()
    assert found["train/loss"].keys() == found["train/learning_rate"].keys() and max(found["train/loss"]) == 40
    assert max(found["train/learning_rate"].values()) == pytest.approx(0.003)

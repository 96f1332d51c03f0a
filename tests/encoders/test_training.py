"""A linear encoder in transformers' Trainer."""

import pytest
import torch
import transformers
from encoders.families import TEXTS, VOCABULARY, linear, random_model
from torch.testing import assert_close
from transformers import AutoModelForSequenceClassification, Trainer, TrainingArguments

STEPS = 3


@pytest.mark.filterwarnings("ignore:.*pin_memory.*:UserWarning")
def test_three_steps_of_the_trainer(tmp_path):
    """Rows of several lengths, some read exactly; the checkpoint opens, and goes on."""
    family = TEXTS[-1]
    whole = random_model(transformers.ModernBertForSequenceClassification, family.config, torch.float32)
    model, draw = linear(whole, exact_below=8), torch.Generator().manual_seed(0)
    rows = [
        {"input_ids": torch.randint(5, VOCABULARY, (length,), generator=draw), "label": length % 2}
        for length in (5, 29, 17, 8, 23, 11, 14, 20)
    ]

    def batch_of(chosen):
        ids = torch.nn.utils.rnn.pad_sequence([row["input_ids"] for row in chosen], batch_first=True)
        labels = torch.tensor([row["label"] for row in chosen])
        return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": labels}

    before = {name: x.clone() for name, x in model.named_parameters()}
    options = {"max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "save_steps": STEPS}
    options |= {"use_cpu": True, "report_to": [], "disable_tqdm": True, "seed": 1}
    arguments = TrainingArguments(output_dir=str(tmp_path), **options)
    trainer = Trainer(model, arguments, data_collator=batch_of, train_dataset=rows)
    assert trainer.train().training_loss < 5
    assert all((x != before[name]).any() for name, x in model.named_parameters() if ".linformer." in name)
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path / f"checkpoint-{STEPS}")
    batch = batch_of(rows)
    with torch.no_grad():
        assert_close(opened.eval()(**batch).logits, model.eval()(**batch).logits)
    arguments.max_steps = STEPS + 1
    again = Trainer(opened, arguments, data_collator=batch_of, train_dataset=rows)
    assert again.train(resume_from_checkpoint=True).global_step == STEPS + 1

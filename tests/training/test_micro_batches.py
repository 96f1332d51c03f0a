"""Batches in parts: memory that does not grow with the batch, and the gradients of the whole."""

import re

import pytest
import torch
from torch.testing import assert_close

from torch_linformer import models
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.tasks.task import IGNORED
from torch_linformer.tasks.whole_documents import Classification
from torch_linformer.training import micro_batches
from torch_linformer.training.batches import parts_of, without_padding
from torch_linformer.training.micro_batches import few_steps, texts_for
from torch_linformer.training.task_trainers import DocumentTrainer
from torch_linformer.training.trainer import quiet_arguments

LENGTHS = torch.tensor([3, 7, 1, 5, 4])
MASK = (torch.arange(9) < LENGTHS[:, None]).long()
IDS = torch.arange(1, 46).view(5, 9) * MASK
CONFIG = {
    **dict.fromkeys(("hidden_size", "intermediate_size"), 8),
    **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0),
    **{"vocab_size": 50, "num_attention_heads": 2, "num_hidden_layers": 1, "max_position_embeddings": 9, "k": 3},
    "initializer_range": 0.5,
}
CHOSEN = MASK.bool() & (IDS % 3 == 1)
KNOWN = MASK.bool() & (torch.arange(9) > 0)  # what follows some token
# The model, more of its configuration, and the targets of the batch: unequally many a row.
CASES = {
    "classes": ("SequenceClassification", {"class_weights": [1.0, 5.0]}, {"labels": torch.tensor([0, 1, 0, 1, 1])}),
    "as many labels as tokens": (
        "SequenceClassification",
        {"num_labels": 9, "problem_type": "multi_label_classification"},
        {"labels": (IDS % 2).float()},
    ),
    "unknown labels": (
        "SequenceClassification",
        {"num_labels": 9, "problem_type": "multi_label_classification"},
        {"labels": torch.where(MASK.bool(), IDS % 2, torch.nan)},
    ),
    "unknown numbers": (
        "SequenceClassification",
        {"num_labels": 9, "problem_type": "regression"},
        {"labels": torch.where(MASK.bool(), IDS / 9, torch.nan)},
    ),
    "tags": ("TokenClassification", {}, {"labels": torch.where(CHOSEN, IDS % 2, IGNORED)}),
    "answers": ("QuestionAnswering", {}, {"start_positions": LENGTHS * 0, "end_positions": LENGTHS - 1}),
    "masked words": ("MaskedLM", {}, {"labels": torch.where(CHOSEN, IDS, IGNORED), "sparse_prediction": True}),
    "next words": ("CausalLM", {"causal": True, "window": 2}, {"labels": torch.where(KNOWN, IDS, IGNORED)}),
    "targets": ("ConditionalGeneration", {}, {"labels": torch.where(MASK.bool(), IDS, IGNORED)[:, :6]}),
}


def test_rows_of_a_batch_in_parts():
    """Every row once, longest first, with its labels; and without padding that its part does not need."""
    batch = {"input_ids": IDS, "attention_mask": MASK, "labels": IDS - 1, "sparse_prediction": True}
    parts = parts_of(batch, 18)  # two rows of nine columns
    assert [part["attention_mask"].sum(dim=1).tolist() for part in parts] == [[7, 5], [4, 3], [1]]
    assert [part["labels"][:, 0].tolist() for part in parts] == [[9, 27], [36, 0], [18]]
    assert all(part["sparse_prediction"] is True and part["labels"].shape[1] == 9 for part in parts)
    assert parts_of(batch, 45) == [batch] and len(parts_of(batch, 1)) == 5
    del parts[1]["sparse_prediction"]
    assert {name: x.shape for name, x in without_padding(parts[1]).items()} == dict.fromkeys(parts[1], (2, 4))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("tokens_at_once", [18, 1])
def test_a_batch_in_parts_has_the_gradients_of_the_whole(case, tokens_at_once, word_tokenizer, tmp_path):
    name, more, targets = CASES[case]
    kind, config = getattr(models, f"LinformerFor{name}"), LinformerConfig(**{**CONFIG, **more})
    if name == "ConditionalGeneration":
        decoder = LinformerConfig(**CONFIG, causal=True, is_decoder=True, add_cross_attention=True, window=2)
        config = LinformerSeq2SeqConfig(encoder=config.to_dict(), decoder=decoder.to_dict())
    model = kind(config).double().train()
    arguments = quiet_arguments(tmp_path, batch_size=5, device="cpu", precision="fp32")
    task = Classification(word_tokenizer(["[PAD]", "[CLS]", "[SEP]", "[UNK]"]), ["a", "b"])
    trainer = DocumentTrainer(model=model, args=arguments, task=task)

    def gradients():
        model.zero_grad()
        loss = trainer.compute_loss(model, {"input_ids": IDS, "attention_mask": MASK, **targets})
        loss.backward()
        return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}

    wanted = gradients()
    trainer.tokens_at_once = tokens_at_once
    assert_close(gradients(), wanted, rtol=1e-4, atol=1e-6)  # losses are computed in float32


def test_a_training_takes_the_memory_there_is(train_quickly, tmp_path, monkeypatch):
    """And refuses, before anything is trained, what does not fit."""
    options = {"max_steps": 1, "baseline": False}
    monkeypatch.setattr(micro_batches, "device_bytes", lambda device: 1000)
    with pytest.raises(InputError, match=r"--batch-size 8: a step takes about .* even with one text at once") as error:
        train_quickly(tmp_path / "run", **options)
    number, unit = re.search(r"about ([\d.]+) ([kM])B", str(error.value)).groups()
    monkeypatch.setattr(
        micro_batches, "device_bytes", lambda device: int(1.6 * float(number) * {"k": 1e3, "M": 1e6}[unit])
    )
    shown = train_quickly(tmp_path / "run", **options)
    assert re.search(r"a step of 8 texts, [1-7] at once: about ", shown)
    assert (tmp_path / "run" / "report.html").exists()


@pytest.mark.parametrize(
    ("seconds", "text_seconds", "texts"),
    [(1200, 21.0, 1), (1200, 5.0, 4), (1200, 1.2, 16), (1200, 0.01, 16), (60, 60.0, 1), (1200, 1200 / 180, 3)],
)
def test_the_batch_follows_from_the_time(seconds, text_seconds, texts):
    assert texts_for(seconds, text_seconds, 16) == texts


@pytest.mark.parametrize(
    ("arguments", "warning"),
    [
        ((20, 40.0, 16), ""),
        ((20, 339.0, 16, 1, 3), ""),  # no more are asked for
        ((20, 339.0, 16), "about 4 steps at --batch-size 16, too few to learn from: --batch-size 1 makes 57"),
        ((20, 100.0, 8, 2), "about 12 steps at --batch-size 16, too few to learn from: --batch-size 2 makes 96"),
        (
            (2, 320.0, 16),
            "about 0 steps at --batch-size 16, too few to learn from: --batch-size 1 makes 6; then --minutes 10 "
            "makes 30, a smaller --max-length more",
        ),
        (
            (20, 300.0, 1),
            "about 4 steps at --batch-size 1, too few to learn from: --minutes 150 makes 30, a smaller --max-length "
            "more",
        ),
    ],
)
def test_too_few_steps_are_told_with_what_to_change(arguments, warning):
    assert few_steps(*arguments) == (warning and f"warning: --minutes {arguments[0]:g} makes {warning}")


def test_a_training_whose_time_is_short_says_so_before_it_starts(train_quickly, tmp_path):
    shown = train_quickly(tmp_path / "run", minutes=1e-5, baseline=False)
    assert re.search(r"a step of 8 texts: .*\nwarning: --minutes 1e-05 makes about 0 steps at --batch-size 8, ", shown)

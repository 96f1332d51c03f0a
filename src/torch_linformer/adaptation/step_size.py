"""What a step of a distillation takes, measured on two short texts: before it runs out of memory, and said."""

import time
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from torch_linformer.adaptation.distillation import DistillationTrainer
from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import device_bytes
from torch_linformer.measuring.memory import SavedBytes
from torch_linformer.opening import processes
from torch_linformer.opening.devices import autocast
from torch_linformer.reporting.tables import format_bytes, format_duration
from torch_linformer.training.batches import TOKENS_AT_ONCE

MEASURED = 1024  # tokens of each of the two texts: more than are read exactly, so that memory grows in proportion
# Bytes that a backward pass holds at most, of each that the forward pass has kept for it: all-MiniLM-L6-v2, four texts
# of 4,096 tokens one at a time, bfloat16 on a CPU, took 1.84 GB (2026-11-28), as this gives.
PASSING = 1.7
SHARE = 0.8  # of the free memory
STATE = 3  # numbers beside each parameter: its gradient and the two of AdamW


@dataclass(frozen=True)
class StepSize:
    """A step of a distillation.

    Attributes:
        texts: of the batch of a process.
        texts_at_once: of a part of it.
        tokens_at_once: of such a part, with padding.
        bytes: at its peak, beyond the models.
        free: bytes before it.
        seconds: it takes.
    """

    texts: int
    texts_at_once: int
    tokens_at_once: int
    bytes: float
    free: int
    seconds: float

    def describe(self) -> str:
        """For the screen."""
        parts = f", {self.texts_at_once} at once" if self.texts_at_once < self.texts else ""
        return (
            f"a step of {self.texts} texts{parts}: about {format_bytes(self.bytes)} of the {format_bytes(self.free)} "
            f"that are free, and {format_duration(self.seconds)}"
        )


def measure_step(trainer: DistillationTrainer, texts: int, precision: str) -> StepSize:
    """Measure the memory and the time of two texts, and see how many of the longest fit into a step.

    Args:
        trainer: with its texts, before it trains.
        texts: those of a batch of this process.
        precision: in which the trainer will compute.

    Raises:
        InputError: the memory does not even hold one text.
    """
    windows: Any = trainer.train_dataset
    lengths = windows["length"][:]
    longest, mean = max(lengths), sum(lengths) / len(lengths)
    ids = windows[lengths.index(longest)]["input_ids"][:MEASURED]
    kept, held, seconds = _measured(trainer, [{**windows[0], "input_ids": ids}] * 2, precision)
    student = cast(nn.Module, trainer.model)
    fixed = STATE * sum(p.numel() * p.element_size() for p in student.parameters()) + held * texts * longest
    device = trainer.args.device.type
    free = min(processes.gathered(device_bytes(device))) // (processes.count() if device == "cpu" else 1)
    a_text = kept * PASSING * longest
    if fixed + a_text > free:
        raise InputError(
            f"--max-length {longest}, --batch-size {trainer.args.train_batch_size}: a step takes about "
            f"{format_bytes(fixed + a_text)} even with one text at once, and {format_bytes(free)} are free; lower one "
            "of them"
        )
    most = min(TOKENS_AT_ONCE, int((SHARE * free - fixed) / a_text * longest))
    at_once = max(1, min(texts, most // longest))
    return StepSize(texts, at_once, max(longest, most), fixed + at_once * a_text, free, seconds * mean * texts)


def _measured(trainer: DistillationTrainer, rows: list[Any], precision: str) -> tuple[float, float, float]:
    """Bytes that a token leaves for the backward pass, bytes of the teacher's hidden states of it, and its seconds."""
    device, student = trainer.args.device, cast(nn.Module, trainer.model)
    batch = {name: x.to(device) for name, x in trainer.data_collator(rows).items()}
    was_training = student.training
    # A compiler would make graphs of these shapes, and takes minutes.
    with torch.compiler.set_stance("force_eager"), SavedBytes(student) as saved:
        began = time.monotonic()
        with autocast(device.type, precision):
            loss = trainer.compute_loss(student, batch)
        loss.backward()
        loss.item()  # waits for the device
        seconds = time.monotonic() - began
    student.zero_grad(set_to_none=True)
    student.train(was_training)
    tokens = batch["input_ids"].numel()
    base: Any = trainer.teacher.model.config
    return saved.bytes / tokens, 4.0 * base.num_hidden_layers * base.hidden_size, seconds / tokens

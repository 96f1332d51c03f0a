"""How many texts of a batch a training step reads at once, from what one of them takes in memory and time."""

import time
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import device_bytes
from torch_linformer.measuring.step import SavedBytes
from torch_linformer.opening import processes
from torch_linformer.opening.devices import autocast
from torch_linformer.reporting.tables import format_bytes, format_duration
from torch_linformer.training.trainer import RunTrainer, precision_of

# Tokens of the text that is measured, if there is such a one: more than are read exactly, so that memory grows in
# proportion.
MEASURED = 1024
# Bytes that a backward pass holds at most, of each that the forward pass has kept for it: all-MiniLM-L6-v2, four texts
# of 4,096 tokens one at a time, bfloat16 on a CPU, took 1.84 GB (2026-11-28), as this gives.
PASSING = 1.7
MEMORY_SHARE = 0.8  # of the free memory
STATE = 3  # numbers beside each parameter: its gradient and the two of AdamW


@dataclass(frozen=True)
class StepEstimate:
    """A training step.

    Attributes:
        texts: of the batch of a process.
        texts_at_once: of a part of it.
        bytes: at its peak, beyond the models.
        free: bytes before it.
        seconds: it takes.
    """

    texts: int
    texts_at_once: int
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


def fit_micro_batches(trainer: RunTrainer, *, held: float = 0.0) -> StepEstimate:
    """Measure two texts, and let the trainer's step read as many of the longest at once as the memory holds.

    Args:
        trainer: before it trains, with its texts and with a model in one piece.
        held: bytes for each token of the whole batch until the step is over.

    Raises:
        InputError: the memory does not even hold one text.
    """
    windows: Any = trainer.train_dataset
    lengths = windows["length"][:]
    longest, mean = max(lengths), sum(lengths) / len(lengths)
    texts = trainer.args.train_batch_size // processes.count()
    kept, seconds = _measured(trainer, windows[int(np.abs(np.asarray(lengths) - MEASURED).argmin())])
    weights = cast(nn.Module, trainer.model).parameters()
    fixed = STATE * sum(p.numel() * p.element_size() for p in weights) + held * texts * longest
    device = trainer.args.device.type
    free = min(processes.gathered(device_bytes(device))) // (processes.count() if device == "cpu" else 1)
    a_text = kept * PASSING * longest
    if fixed + a_text > free:
        raise InputError(
            f"--max-length {longest}, --batch-size {trainer.args.train_batch_size}: a step takes about "
            f"{format_bytes(fixed + a_text)} even with one text at once, and {format_bytes(free)} are free; lower one "
            "of them"
        )
    most = min(trainer.most_at_once, int((MEMORY_SHARE * free - fixed) / a_text * longest))
    trainer.tokens_at_once = max(longest, most)
    at_once = max(1, min(texts, most // longest))
    return StepEstimate(texts, at_once, fixed + at_once * a_text, free, seconds * mean * texts)


def _measured(trainer: RunTrainer, row: Any) -> tuple[float, float]:
    """Bytes that a token leaves for the backward pass, and its seconds."""
    device, model = trainer.args.device, cast(nn.Module, trainer.model)
    batch = trainer._prepare_inputs(trainer.data_collator([row, row]))
    was_training = model.training
    # A compiler would make graphs of these shapes, and takes minutes; the training draws the numbers it would draw.
    with torch.compiler.set_stance("force_eager"), torch.random.fork_rng(), SavedBytes(model) as saved:
        began = time.monotonic()
        with autocast(device.type, precision_of(trainer.args)):
            loss: Any = trainer.compute_loss(model.train(), batch)
        loss.backward()
        loss.item()  # waits for the device
        seconds = time.monotonic() - began
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    tokens = batch["input_ids"].numel()
    return saved.bytes / tokens, seconds / tokens

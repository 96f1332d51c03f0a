"""How many texts of a batch a training step reads at once, from what one of them takes in memory and time."""

import math
import time
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from torch_linformer.distributed import processes
from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import device_bytes
from torch_linformer.measuring.step import SavedBytes
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
ENOUGH_STEPS, FEW_STEPS = 60, 30  # of a training that --minutes ends


@dataclass(frozen=True)
class TokenCost:
    """What a token of a training step takes: bytes that are kept for its backward pass, and seconds."""

    bytes: float
    seconds: float


@dataclass(frozen=True)
class StepEstimate:
    """A training step."""

    texts: int  # of the batch of a process
    texts_at_once: int
    bytes: float  # at its peak, beyond the models
    free: int  # bytes before it
    seconds: float

    def describe(self) -> str:
        parts = f", {self.texts_at_once} at once" if self.texts_at_once < self.texts else ""
        return (
            f"a step of {self.texts} texts{parts}: about {format_bytes(self.bytes)} of the {format_bytes(self.free)} "
            f"that are free, and {format_duration(self.seconds)}"
        )


def texts_for(seconds: float, text_seconds: float, usual: int, steps: int = ENOUGH_STEPS) -> int:
    """Texts of a step, at most the ``usual``, of which so many seconds make ``steps``; else one."""
    return max(1, min(usual, int(seconds / (steps * text_seconds))))


def few_steps(minutes: float, step_seconds: float, texts: int, replicas: int = 1, most: int = FEW_STEPS) -> str:
    """A warning where ``minutes`` make too few steps, with what to change; empty where they make enough, or ``most``.

    ``texts`` are those of the batch of each of the ``replicas``.
    """
    seconds, needed = 60 * minutes, min(FEW_STEPS, most)
    if seconds >= needed * step_seconds:
        return ""
    text_seconds = step_seconds / texts
    fewer = texts_for(seconds, text_seconds, texts)
    remedies = [f"--batch-size {fewer * replicas} makes {seconds / (fewer * text_seconds):,.0f}"] * (fewer < texts)
    if seconds < (needed_seconds := needed * fewer * text_seconds):
        least = f"--minutes {math.ceil(needed_seconds / 60)} makes {needed}, a smaller --max-length more"
        remedies.append(f"then {least}" if remedies else least)
    return (
        f"warning: --minutes {minutes:g} makes about {seconds / step_seconds:,.0f} steps at --batch-size "
        f"{texts * replicas}, too few to learn from: {'; '.join(remedies)}"
    )


def fit_micro_batches(trainer: RunTrainer, token: TokenCost | None = None, *, held: float = 0.0) -> StepEstimate:
    """Let the trainer's step read as many of the longest at once as the memory holds.

    Args:
        trainer: before it trains, with its texts and with a model in one piece.
        token: what one takes; measured here if None.
        held: bytes for each token of the whole batch until the step is over.

    Raises:
        InputError: the memory does not even hold one text.
    """
    windows: Any = trainer.train_dataset
    lengths = windows["length"][:]
    longest, mean = max(lengths), sum(lengths) / len(lengths)
    texts = trainer.args.train_batch_size // processes.count()
    token = token or token_cost(trainer)
    weights = cast(nn.Module, trainer.model).parameters()
    fixed = STATE * sum(p.numel() * p.element_size() for p in weights) + held * texts * longest
    device = trainer.args.device.type
    free = min(processes.gathered(device_bytes(device))) // (processes.count() if device == "cpu" else 1)
    a_text = token.bytes * PASSING * longest
    if fixed + a_text > free:
        raise InputError(
            f"--max-length {longest}, --batch-size {trainer.args.train_batch_size}: a step takes about "
            f"{format_bytes(fixed + a_text)} even with one text at once, and {format_bytes(free)} are free; lower one "
            "of them"
        )
    most = min(trainer.most_at_once, int((MEMORY_SHARE * free - fixed) / a_text * longest))
    trainer.tokens_at_once = max(longest, most)
    at_once = max(1, min(texts, most // longest))
    return StepEstimate(texts, at_once, fixed + at_once * a_text, free, token.seconds * mean * texts)


def token_cost(trainer: RunTrainer) -> TokenCost:
    """What a token takes of two texts, which are read twice: the first time libraries are loaded."""
    device, model, windows = trainer.args.device, cast(nn.Module, trainer.model), cast(Any, trainer.train_dataset)
    row = windows[int(np.abs(np.asarray(windows["length"][:]) - MEASURED).argmin())]
    batch = trainer._prepare_inputs(trainer.data_collator([row, row]))
    was_training = model.training
    # A compiler would make graphs of these shapes, and takes minutes; the training draws the numbers it would draw.
    with torch.compiler.set_stance("force_eager"), torch.random.fork_rng():
        for _ in range(2):
            began = time.monotonic()
            with SavedBytes(model) as saved:
                with autocast(device.type, precision_of(trainer.args)):
                    loss: Any = trainer.compute_loss(model.train(), batch)
                loss.backward()
                loss.item()  # waits for the device
            seconds = time.monotonic() - began
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    tokens = batch["input_ids"].numel()
    return TokenCost(saved.bytes / tokens, max(processes.gathered(seconds)) / tokens)

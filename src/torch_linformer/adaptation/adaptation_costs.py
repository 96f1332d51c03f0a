"""What an adaptation takes, measured before it is waited for: a step in time and memory, and a forward pass."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import nn

from torch_linformer.adaptation.distillation import DistillationTrainer
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import device_bytes
from torch_linformer.measuring.step import SavedBytes
from torch_linformer.opening import processes
from torch_linformer.opening.devices import autocast
from torch_linformer.reporting.tables import format_bytes, format_count, format_duration
from torch_linformer.training.batches import TOKENS_AT_ONCE
from torch_linformer.training.step_costs import ModelStep, StepCost, measure_steps, with_full_attention
from torch_linformer.training.training_screen import TrainingScreen

MEASURED = 1024  # tokens of each of the two texts: more than are read exactly, so that memory grows in proportion
# Bytes that a backward pass holds at most, of each that the forward pass has kept for it: all-MiniLM-L6-v2, four texts
# of 4,096 tokens one at a time, bfloat16 on a CPU, took 1.84 GB (2026-11-28), as this gives.
PASSING = 1.7
MEMORY_SHARE = 0.8  # of the free memory
STATE = 3  # numbers beside each parameter: its gradient and the two of AdamW
TIME_SHARE = 0.1  # of the time of the distillation that measuring takes at most
LEAST_SECONDS = 30.0  # processes take ten to start
Pair = tuple[StepCost | None, StepCost | None]  # of the model, and of the same one with full attention


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
    most = min(TOKENS_AT_ONCE, int((MEMORY_SHARE * free - fixed) / a_text * longest))
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


@dataclass(frozen=True)
class ForwardCosts:
    """Costs of forward passes over one text; None for one that failed.

    Attributes:
        by_length: by tokens of the text, longest first.
        alone: of the model without slots, and a text of full length.
        by_k: of the same weights with other K, likewise.
    """

    by_length: Mapping[int, Pair] = field(default_factory=dict)
    alone: StepCost | None = None
    by_k: Mapping[int, StepCost | None] = field(default_factory=dict)

    @property
    def longest(self) -> StepCost | None:
        """That of the model, and a text of full length."""
        return next(iter(self.by_length.values()), (None, None))[0]


def measuring_seconds(distillation: float) -> float:
    """What measuring takes at most, of a distillation of this many seconds."""
    return max(LEAST_SECONDS, TIME_SHARE * distillation)


def measure_forward(
    step_of: Callable[[LinearEncoder, int], ModelStep],
    student: LinearEncoder,
    usual: int,
    *,
    alone: LinearEncoder | None,
    by_k: Mapping[int, LinearEncoder],
    seconds: float,
    screen: TrainingScreen,
) -> ForwardCosts:
    """Measure a student and the same model with full attention on a text of full length and on a usual one.

    Args:
        step_of: the forward pass of an encoder over a text of so many tokens.
        student: the trained model.
        usual: tokens of a usual text, at most those that the model reads.
        alone: the student without slots, if it can be.
        by_k: the student with other K.
        seconds: for all of it, beside the start of processes; what is not over by then has failed.
        screen: where it is said.
    """
    longest = student.config.longest_input
    lengths = list(dict.fromkeys((longest, usual)))
    shown = " and ".join(map(format_count, lengths))
    screen.say(
        f"measuring a text of {shown} tokens compared with full attention: at most {format_duration(seconds)} "
        "(--no-probe leaves it out)"
    )
    groups = [[step_of(student, length), with_full_attention(step_of(student, length))] for length in lengths]
    if alone is not None:
        groups[0].append(step_of(alone, longest))
    if by_k:
        groups.append([step_of(model, longest) for model in by_k.values()])
    costs = [measure_steps(group, seconds / len(groups)) for group in groups]
    return ForwardCosts(
        {length: (ours, full) for length, (ours, full, *_) in zip(lengths, costs, strict=False)},
        costs[0][2] if alone is not None else None,
        dict(zip(by_k, costs[-1], strict=True)) if by_k else {},
    )

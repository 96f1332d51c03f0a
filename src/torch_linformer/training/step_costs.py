"""Speed and memory of a model's step, of training or inference, and of the same model with full attention."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, cast

import torch
from torch import nn

from torch_linformer import models
from torch_linformer.encoders.classes import LinearEncoder, linear_or_original
from torch_linformer.measuring.step import PeakMemory, limited_memory, mean_seconds
from torch_linformer.models import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.models.configuration import with_changes, with_ordinary_attention
from torch_linformer.opening.devices import autocast
from torch_linformer.opening.load import AnyModel
from torch_linformer.reporting.tables import MISSING, format_comparison, format_count, format_duration
from torch_linformer.tasks.language_modeling import MASK_SHARE
from torch_linformer.tasks.task import IGNORED

LINEAR = "linear encoder"
PATIENCE = 120.0  # seconds for all steps, beyond which one that would take longer counts as one that failed
SHORT = 2048  # tokens: of fewer nobody asks first how long they would take
REASON = 60  # characters of why a step failed, at most
TURNS, TURN = 3, 0.3  # that are timed after a first one, and the seconds of each at least


@dataclass(frozen=True)
class ModelStep:
    """A step to measure: a model, a batch of full length, a device and a precision; without training a forward pass.

    ``model_class`` is one of this package, or ``LINEAR`` for the encoder of transformers that ``config`` names.
    """

    model_class: str
    config: dict[str, Any]
    batch_size: int
    length: int
    device: str
    precision: str
    training: bool = True


@dataclass(frozen=True)
class StepCost:
    """Tokens per second, and peak memory beyond the parameters and the batch (:mod:`torch_linformer.measuring.step`).

    For a training step that is the peak of its activations, gradients and AdamW's state together.
    """

    tokens_per_second: float
    peak_memory_mb: float


def step_of(model: AnyModel, rows: int, length: int, device: str, precision: str, *, training: bool) -> ModelStep:
    """A step, or without training a forward pass, of so many rows of this length."""
    kind = LINEAR if isinstance(model, LinearEncoder) else type(model).__name__
    config = model.config.to_dict() if kind == LINEAR else model.config.to_diff_dict()
    return ModelStep(kind, config, rows, length, device, precision, training)


Cost = StepCost | str  # or why it could not be measured


def measure_beside_full_attention(step: ModelStep) -> tuple[Cost, Cost]:
    """The model as it is, and the same with full attention; why, for one that failed ("out of memory", for example)."""
    ours, full = measure_steps([step, with_full_attention(step)])
    return ours, full


def with_full_attention(step: ModelStep) -> ModelStep:
    """The step of the same model with full attention, in both parts of an encoder-decoder."""

    def full(config: dict[str, Any]) -> dict[str, Any]:
        if "encoder_class" in config:
            return {**config, "linformer": None}
        if config.get("backbone_config"):
            return with_ordinary_attention(config)
        if "encoder" in config:
            return {**config, **{side: full(config[side]) for side in ("encoder", "decoder")}}
        return with_changes(config, {"attention": "full"})

    return replace(step, config=full(step.config))


def measure_steps(steps: Sequence[ModelStep], seconds: float = PATIENCE) -> list[Cost]:
    """What each costs, all in turn for so many seconds; why, for one that failed or would take longer."""
    ends, failed = time.monotonic() + seconds, dict[int, str]()
    runs, peaks, taken = dict[int, Callable[[], None]](), dict[int, int](), [list[float]() for _ in steps]
    with torch.random.fork_rng():
        for turn in range(1 + TURNS):
            for number, step in enumerate(steps):
                if number in failed or (turn and time.monotonic() + max(TURN, taken[number][-1]) > ends):
                    continue
                try:
                    with limited_memory(step.device):
                        if turn == 0:
                            _check_time(step, ends - time.monotonic())
                            runs[number], peak = build_step(step), PeakMemory(step.device)
                        calls = max(1, round(TURN / taken[number][-1])) if turn else 1
                        taken[number].append(mean_seconds(runs[number], step.device, calls))
                        if turn == 0:
                            peaks[number] = peak.bytes()
                except Exception as error:  # of whatever library: the others are measured all the same
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                    failed[number] = "out of memory" if "memory" in reason.lower() else reason[:REASON]
                    runs.pop(number, None)
    return [
        failed.get(number)
        or StepCost(step.batch_size * step.length / median(taken[number][1:] or taken[number]), peaks[number] / 1e6)
        for number, step in enumerate(steps)
    ]


def _check_time(step: ModelStep, seconds: float) -> None:
    """Raise ``TimeoutError`` where the step takes longer, as the same over a quarter of the length tells."""
    if step.length < SHORT:
        return
    quarter = build_step(replace(step, length=step.length // 4))
    quarter()
    growth = 16 if step == with_full_attention(step) else 4
    if growth * mean_seconds(quarter, step.device) > seconds:
        raise TimeoutError(f"would take over {format_duration(seconds)}")


def cost_cells(cost: Cost | None) -> tuple[str, str]:
    """Speed and memory, or why there are none; dashes for what nobody has tried to measure."""
    if not isinstance(cost, StepCost):
        return f"failed: {cost}" if cost else MISSING, MISSING
    return format_count(cost.tokens_per_second), format_count(cost.peak_memory_mb)


def compare_costs(ours: Cost | None, full: Cost | None) -> tuple[str, str]:
    """Speed and memory of a model beside those of its twin with full attention, in words; a dash where one failed."""
    if not (isinstance(ours, StepCost) and isinstance(full, StepCost)):
        return MISSING, MISSING
    speed = format_comparison(ours.tokens_per_second / full.tokens_per_second, "faster", "slower")
    if not ours.peak_memory_mb or not full.peak_memory_mb:  # a step so small that no page of memory was added
        return speed, MISSING
    return speed, format_comparison(ours.peak_memory_mb / full.peak_memory_mb, "more memory", "less memory")


def build_step(step: ModelStep) -> Callable[[], None]:
    """What computes the step, with random weights and tokens."""
    model, batch = _build(step)
    if not step.training:

        def forward() -> None:
            with torch.inference_mode(), autocast(step.device, step.precision):
                model(**batch)

        return forward
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)

    def train() -> None:
        with autocast(step.device, step.precision):
            outputs = model(**batch)
            # The vectors that a loss compares are made of an encoder's hidden states.
            loss = outputs.loss if "loss" in outputs else outputs.last_hidden_state.square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def _build(step: ModelStep) -> tuple[nn.Module, dict[str, Any]]:
    shape = (step.batch_size, step.length)
    if step.model_class == LINEAR:
        encoder = linear_or_original(step.config)
        cast(nn.Module, encoder).to(step.device).train(step.training)
        ids = torch.full(shape, encoder.config.vocab_size - 1, device=step.device)
        return cast(nn.Module, encoder), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    seq2seq = "encoder" in step.config
    config: Any = (LinformerSeq2SeqConfig if seq2seq else LinformerConfig)(**step.config)
    reader, writer = (config.encoder, config.decoder) if seq2seq else (config, config)
    model: nn.Module = getattr(models, step.model_class)(config)
    model.to(step.device).train(step.training)
    ids = torch.randint(1, reader.vocab_size, shape, device=step.device)
    batch: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if not step.training:
        return model, batch
    first, kept = torch.zeros_like(ids[:, 0]), torch.rand(shape, device=step.device) >= MASK_SHARE
    label = {"labels": first}
    if config.problem_type in ("regression", "multi_label_classification"):
        label = {"labels": torch.zeros(len(ids), len(config.label_names), device=step.device)}
    targets: dict[str, dict[str, Any]] = {
        "LinformerModel": {},
        "LinformerForMaskedLM": {"labels": ids.masked_fill(kept, IGNORED), "sparse_prediction": True},
        "LinformerForCausalLM": {"labels": ids},
        "LinformerForTokenClassification": {"labels": torch.zeros_like(ids)},
        "LinformerForQuestionAnswering": {"start_positions": first, "end_positions": first},
        "LinformerForConditionalGeneration": {"labels": ids[:, : writer.max_position_embeddings]},
        "LinformerForSequenceClassification": label,
    }
    return model, {**batch, **targets[step.model_class]}

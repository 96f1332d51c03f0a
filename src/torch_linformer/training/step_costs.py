"""Speed and memory of a model's step, of training or inference, and of the same model with full attention."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from torch import nn

from torch_linformer import models
from torch_linformer.encoders.classes import LinearEncoder, linear_or_original
from torch_linformer.measuring.workers import StepRequest, measure_in_turn
from torch_linformer.models import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.models.backbone_fields import with_ordinary_attention
from torch_linformer.models.configuration import with_changes
from torch_linformer.opening.devices import autocast
from torch_linformer.opening.load import AnyModel
from torch_linformer.reporting.tables import MISSING, format_comparison, format_count
from torch_linformer.tasks.language_modeling import MASK_SHARE
from torch_linformer.tasks.task import IGNORED

LINEAR = "linear encoder"


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
    """The step of the same model with full attention."""
    return replace(step, config=_with_full_attention(step.config))


def measure_steps(steps: Sequence[ModelStep], seconds: float = math.inf) -> list[Cost]:
    """What each costs, each in a fresh process, all in turn for so many seconds; why, for one that failed."""
    requests = [StepRequest(f"{__name__}:build_step", asdict(step), step.device) for step in steps]
    costs: list[Cost] = []
    for step, measured in zip(steps, measure_in_turn(requests, seconds=seconds), strict=True):
        tokens = step.batch_size * step.length
        if isinstance(measured, str):
            costs.append(measured)
        else:
            costs.append(StepCost(tokens / measured.seconds, measured.peak_bytes / 1e6))
    return costs


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


def build_step(**fields: Any) -> Callable[[], None]:
    """The step of a :class:`ModelStep` with these fields, in the process that measures it."""
    step = ModelStep(**fields)
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


def _with_full_attention(config: dict[str, Any]) -> dict[str, Any]:
    """A configuration with full attention, in both parts of an encoder-decoder."""
    if "encoder_class" in config:
        return {**config, "linformer": None}
    if config.get("backbone_config"):
        return with_ordinary_attention(config)
    if "encoder" in config:
        return {**config, **{side: _with_full_attention(config[side]) for side in ("encoder", "decoder")}}
    return with_changes(config, {"attention": "full"})


def _build(step: ModelStep) -> tuple[nn.Module, dict[str, Any]]:
    if step.model_class == LINEAR:
        encoder = linear_or_original(step.config)
        cast(nn.Module, encoder).to(step.device).train(step.training)
        ids = torch.full((step.batch_size, step.length), encoder.config.vocab_size - 1, device=step.device)
        return cast(nn.Module, encoder), {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    seq2seq = "encoder" in step.config
    config: Any = (LinformerSeq2SeqConfig if seq2seq else LinformerConfig)(**step.config)
    reader = config.encoder if seq2seq else config
    model: nn.Module = getattr(models, step.model_class)(config)
    model.to(step.device).train(step.training)
    shape = (step.batch_size, step.length)
    ids = torch.randint(1, reader.vocab_size, shape, device=step.device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if step.training:
        batch |= _targets(step.model_class, config, ids)
    return model, batch


def _targets(model_class: str, config: Any, ids: torch.Tensor) -> dict[str, Any]:
    """Targets of the shape that the model expects."""
    first = torch.zeros_like(ids[:, 0])
    match model_class:
        case "LinformerModel":
            return {}
        case "LinformerForMaskedLM":
            masked = torch.rand(ids.shape, device=ids.device) < MASK_SHARE
            return {"labels": ids.masked_fill(~masked, IGNORED), "sparse_prediction": True}
        case "LinformerForCausalLM":
            return {"labels": ids}
        case "LinformerForTokenClassification":
            return {"labels": torch.zeros_like(ids)}
        case "LinformerForQuestionAnswering":
            return {"start_positions": first, "end_positions": first}
        case "LinformerForConditionalGeneration":
            return {"labels": ids[:, : config.decoder.max_position_embeddings]}
    if config.problem_type in ("regression", "multi_label_classification"):
        return {"labels": torch.zeros(len(ids), len(config.label_names), device=ids.device)}
    return {"labels": first}

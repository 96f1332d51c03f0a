"""Speed and memory of a step, of training or inference, each model in a process of its own, all in turn."""

import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import fmean, median
from typing import Any

import torch
from torch import nn

from torch_linformer import models
from torch_linformer.measuring.machine import process_bytes
from torch_linformer.models import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.opening.devices import autocast

TURNS = 3  # timed, after one that is not
TURN = 0.3  # seconds of steps, or one step: short ones would measure how a process wakes


@dataclass(frozen=True)
class Probe:
    """A step to measure: a model, a batch of full length, a device and a precision; without training a forward pass."""

    model_class: str
    config: dict[str, Any]
    batch_size: int
    length: int
    device: str
    precision: str
    training: bool = True


@dataclass(frozen=True)
class Cost:
    """Tokens per second, and the peak memory of the process (of the GPU, where there is one)."""

    tokens_per_second: float
    peak_memory_mb: float


def measure_beside_full_attention(probe: Probe) -> tuple[Cost | None, Cost | None]:
    """The model as it is, and the same with full attention; None for one that failed, for want of memory say."""
    ours, full = measure_in_turn([probe, replace(probe, config=_with_attention(probe.config, "full"))])
    return ours, full


def measure_in_turn(probes: Sequence[Probe]) -> list[Cost | None]:
    """What each costs; None for one that failed.

    Each runs in a fresh process; they step in turn, so that a noisy machine slows all alike.
    """
    workers = [_Worker(probe) for probe in probes]
    for _ in range(1 + TURNS):
        for worker in workers:
            worker.turn()
    return [worker.finish() for worker in workers]


class _Worker:
    """The parent's end of a measuring process: a line in is a turn to take, a line out is the seconds of a step."""

    def __init__(self, probe: Probe) -> None:
        self.tokens = probe.batch_size * probe.length
        self.seconds: list[float] = []
        command = [sys.executable, "-m", __name__]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )
        self._ask(asdict(probe))

    def turn(self) -> None:
        answer = self._ask("turn")
        if answer is not None:
            self.seconds.append(answer)

    def finish(self) -> Cost | None:
        peak = self._ask("finish")
        self.process.communicate()
        if peak is None or len(self.seconds) <= TURNS:
            return None
        return Cost(self.tokens / median(self.seconds[1:]), peak / 1e6)

    def _ask(self, question: object) -> float | None:
        """The number the process answers; None once it is gone."""
        assert self.process.stdin and self.process.stdout
        try:
            print(json.dumps(question), file=self.process.stdin, flush=True)
            return float(self.process.stdout.readline())
        except (BrokenPipeError, ValueError):
            return None


def _with_attention(config: dict[str, Any], attention: str) -> dict[str, Any]:
    """A configuration with another attention, in both parts of an encoder-decoder."""
    if "encoder" in config:
        return {**config, **{side: {**config[side], "attention": attention} for side in ("encoder", "decoder")}}
    return {**config, "attention": attention}


def _serve() -> None:
    """The process: a probe on the first line, then a turn of steps for each line until ``finish``."""
    probe = Probe(**json.loads(input()))
    model, batch, optimizer = _build(probe)
    print(0.0, flush=True)
    while json.loads(input()) != "finish":
        seconds = [_timed_step(probe, model, batch, optimizer)]
        while sum(seconds) < TURN:
            seconds.append(_timed_step(probe, model, batch, optimizer))
        print(fmean(seconds), flush=True)
    print(_peak_bytes(probe.device), flush=True)


def _build(probe: Probe) -> tuple[nn.Module, dict[str, torch.Tensor], torch.optim.Optimizer]:
    seq2seq = "encoder" in probe.config
    config: Any = (LinformerSeq2SeqConfig if seq2seq else LinformerConfig)(**probe.config)
    reader = config.encoder if seq2seq else config
    model: nn.Module = getattr(models, probe.model_class)(config)
    model.to(probe.device).train(probe.training)
    shape = (probe.batch_size, probe.length)
    ids = torch.randint(1, reader.vocab_size, shape, device=probe.device)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if probe.training:
        batch |= _targets(probe, config, ids)
    return model, batch, torch.optim.AdamW(model.parameters(), lr=1e-5)


def _targets(probe: Probe, config: Any, ids: torch.Tensor) -> dict[str, torch.Tensor]:
    """Something to learn, of the shape that the model expects."""
    first = torch.zeros_like(ids[:, 0])
    match probe.model_class:
        case "LinformerForMaskedLM" | "LinformerForCausalLM":
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


def _timed_step(
    probe: Probe, model: nn.Module, batch: dict[str, torch.Tensor], optimizer: torch.optim.Optimizer
) -> float:
    if not probe.training:
        return _timed_forward(probe, model, batch)
    started = time.perf_counter()
    with autocast(probe.device, probe.precision):
        loss = model(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss.item()  # waits for the device
    return time.perf_counter() - started


def _timed_forward(probe: Probe, model: nn.Module, batch: dict[str, torch.Tensor]) -> float:
    started = time.perf_counter()
    with torch.inference_mode(), autocast(probe.device, probe.precision):
        outputs = model(**batch)
    outputs[0].flatten()[0].item()  # waits for the device
    return time.perf_counter() - started


def _peak_bytes(device: str) -> float:
    if device == "cuda":
        return float(torch.cuda.max_memory_allocated())
    peak = process_bytes("VmHWM")
    return float(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss if peak is None else peak)  # bytes on macOS


if __name__ == "__main__":
    _serve()

"""What the training scripts share: choosing runs, going on with them and their page, the loop with rates and curve."""

import json
import math
import time
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from statistics import mean
from typing import Any, Literal

import torch
import typer

from torch_linformer.measuring.machine import machine_facts
from torch_linformer.reporting.files import write_text

NATS = {"nats": 1.0, "bits": math.log(2)}  # in one unit
EVERY = 50  # steps from one point of the curve to the next


def one_of(names: Collection[str]) -> Any:
    """A command-line option that takes only one of these names."""
    known = ", ".join(names)

    def check(name: str) -> str:
        if name not in names:
            raise typer.BadParameter(f"{name!r} is none of {known}")
        return name

    return typer.Option(help=known, callback=check)


def chosen(names: str, known: Collection[str], option: str) -> list[str]:
    """The names of a comma-separated list, each of which is known."""
    for name in names.split(","):
        if name not in known:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(known)}", param_hint=option)
    return names.split(",")


def run_all(
    settings: Iterable[dict[str, Any]],
    train: Callable[[dict[str, Any]], dict],
    report: Callable[[list[dict]], None],
    file: Path,
) -> None:
    """Train with each of the settings that no earlier call did, and report all runs after each.

    Args:
        settings: what tells one run from another.
        train: returns what is kept of a run, its setting among it.
        report: writes what all runs so far have shown.
        file: JSON lines, one a run.
    """
    runs = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    for setting in settings:
        if not any(setting.items() <= run.items() for run in runs):
            runs.append(train(setting))
            write_text(file, "".join(json.dumps(run) + "\n" for run in runs))
            report(runs)
    report(runs)


def write_results(output: Path, paragraphs: list[str], device: str) -> None:
    """Write results.md, which ends with what the machine is."""
    machine = ", ".join(f"{name} {value}" for name, value in machine_facts(device).items())
    write_text(output / "results.md", "\n\n".join([*paragraphs, machine]) + "\n")


def learn(
    name: str,
    model: torch.nn.Module,
    loss_at: Callable[[int], torch.Tensor],
    optimizer: torch.optim.Optimizer,
    steps: int,
    *,
    warm_up: int,
    last_rate: float,
    unit: Literal["nats", "bits"] = "nats",
    held_out: Callable[[], float] | None = None,
) -> tuple[list[tuple[int, float]], float]:
    """Train a model; returns its curve of (step, loss), and the seconds it took.

    The loss of a point is the mean of training since the last point, or that of rows held out.

    Args:
        name: of the run, on the screen.
        model: whose gradients are clipped.
        loss_at: draws rows and returns the loss in nats, at a step counted from 1.
        optimizer: with the peak rates.
        steps: of the training.
        warm_up: steps of the rise to the peak rates.
        last_rate: share of the peak rates that is left at the end.
        unit: of the loss on the screen and in the curve.
        held_out: returns the loss of rows held out, in nats.
    """
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate(step, steps, warm_up, last_rate))
    curve, recent, begin = [], [], time.perf_counter()
    for step in range(1, steps + 1):
        loss = loss_at(step)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent.append(loss.item() / NATS[unit])
        if step % EVERY == 0 or step == steps:
            curve.append((step, mean(recent) if held_out is None else held_out() / NATS[unit]))
            recent.clear()
            seconds = time.perf_counter() - begin
            print(f"{name}: step {step}, {curve[-1][1]:.4f} {unit}, {seconds:.0f} s", flush=True)
    return curve, time.perf_counter() - begin


def rate(step: int, steps: int, warm_up: int, last: float) -> float:
    """Share of the peak rate: a short rise, then a half cosine down to ``last``."""
    fall = last + (1 - last) * (1 + math.cos(math.pi * min(1, step / steps))) / 2
    return min(1, (step + 1) / warm_up) * fall

"""A training that is only tried: its data are read, its model is built, a step is measured, and nothing is left."""

import tempfile
from pathlib import Path

import numpy as np
import transformers

from torch_linformer.errors import InputError
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.reporting.tables import format_bytes, format_count, format_duration
from torch_linformer.training.batches import TOKENS_AT_ONCE
from torch_linformer.training.describing import describe_model
from torch_linformer.training.initial_model import build_model, with_the_first_model
from torch_linformer.training.micro_batches import fit_micro_batches
from torch_linformer.training.prepared import prepare
from torch_linformer.training.splits import load_splits
from torch_linformer.training.step_costs import measure_steps, step_of
from torch_linformer.training.train import new_trainer
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen


def try_training(
    settings: TrainSettings, *, resume: bool = False, command: str = "", screen: TrainingScreen | None = None
) -> None:
    """Say what a training would take: ``linformer train --check``.

    Args:
        settings: of the training.
        resume: has no place here.
        command: the command line.
        screen: where it is said.

    Raises:
        InputError: for what the training would refuse, and for a step that the memory does not hold.
    """
    if resume:
        raise InputError("--check tries a new training: leave out --resume")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    screen = screen or TrainingScreen()
    device = resolve_device(settings.device)
    precision = resolve_precision(settings.precision, device)
    settings = with_the_first_model(settings)
    data = prepare(settings, load_splits(settings), None, screen)
    model = build_model(settings, data.task, data.tokenizer, data.splits, screen.say)
    describe_model(model, settings, device, precision, screen)
    rows, at_once = data.task.training_rows(data.train), settings.batch_size
    if not settings.freeze:
        with tempfile.TemporaryDirectory() as folder:
            size = fit_micro_batches(new_trainer(settings, Path(folder), data, model, device, precision))
        at_once = size.texts_at_once
    # More take minutes on a CPU, and as long for each token.
    measured = min(at_once, max(1, TOKENS_AT_ONCE // settings.length))
    screen.say("measuring a step")
    step = step_of(model, measured, settings.length, device, precision, training=not settings.freeze)
    (cost,) = measure_steps([step])
    if cost is None:
        raise InputError(
            f"a step of {measured} × {settings.length:,} tokens ran out of memory or took minutes: lower --max-length"
            f"{' or --batch-size' if measured > 1 else ''}"
        )
    peak = 1e6 * cost.peak_memory_mb if settings.freeze or measured == at_once else size.bytes
    read = settings.batch_size * float(np.mean(rows["length"][:])) / cost.tokens_per_second
    full = settings.batch_size * settings.length / cost.tokens_per_second
    parts = f", {at_once} at once," if at_once < settings.batch_size else ""
    screen.say(
        f"a step of {settings.batch_size} documents{parts} takes {format_duration(full)} and "
        f"{format_bytes(peak)} beside the model where all have {settings.length:,} tokens, and "
        f"{format_duration(read)} on average here"
    )
    steps = -(-len(rows) // settings.batch_size) if settings.freeze else settings.steps(len(rows))
    seconds = steps * read
    if settings.minutes is not None and 60 * settings.minutes < seconds:
        within = f"--minutes {settings.minutes:g} is enough for {format_count(60 * settings.minutes / read)} of them"
    else:
        within = f"about {format_duration(seconds)}, before it is scored"
    screen.say(f"{format_count(steps)} steps: {within}; nothing was trained or written (--check)")

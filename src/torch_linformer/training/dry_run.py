"""A training that is only tried: its data are read, its model is built, a step is measured, and nothing is left."""

import tempfile
from pathlib import Path

import numpy as np

from torch_linformer.errors import InputError
from torch_linformer.opening.load import quiet_transformers
from torch_linformer.reporting.tables import format_bytes, format_count, format_duration
from torch_linformer.training.batches import TOKENS_AT_ONCE
from torch_linformer.training.micro_batches import fit_micro_batches
from torch_linformer.training.splits import load_splits
from torch_linformer.training.step_costs import measure_steps
from torch_linformer.training.train import prepare_run, trainer_of
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen


def try_training(
    settings: TrainSettings, *, resume: bool = False, command: str = "", screen: TrainingScreen | None = None
) -> None:
    """Say what a training would take: ``linformer train --check``.

    Raises:
        InputError: for what the training would refuse, and for a step that the memory does not hold.
    """
    if resume:
        raise InputError("--check tries a new training: leave out --resume")
    quiet_transformers()
    screen = screen or TrainingScreen()
    with tempfile.TemporaryDirectory() as folder:
        start = prepare_run(settings, Path(folder), load_splits, screen)
        settings, at_once = start.settings, start.settings.batch_size
        if not settings.frozen:
            size = fit_micro_batches(trainer_of(start))
            at_once = size.texts_at_once
    rows = start.data.task.training_rows(start.data.train)
    # More take minutes on a CPU, and as long for each token.
    measured = min(at_once, max(1, TOKENS_AT_ONCE // settings.length))
    screen.say("measuring a step")
    (cost,) = measure_steps([start.step(measured)])
    if isinstance(cost, str):
        raise InputError(
            f"a step of {measured} × {settings.length:,} tokens failed ({cost}): lower --max-length"
            f"{' or --batch-size' if measured > 1 else ''}"
        )
    peak = 1e6 * cost.peak_memory_mb if settings.frozen or measured == at_once else size.bytes
    read = settings.batch_size * float(np.mean(rows["length"][:])) / cost.tokens_per_second
    full = settings.batch_size * settings.length / cost.tokens_per_second
    parts = f", {at_once} at once," if at_once < settings.batch_size else ""
    screen.say(
        f"a step of {settings.batch_size} documents{parts} takes {format_duration(full)} and "
        f"{format_bytes(peak)} beside the model where all have {settings.length:,} tokens, and "
        f"{format_duration(read)} on average here"
    )
    steps = -(-len(rows) // settings.batch_size) if settings.frozen else settings.steps(len(rows))
    seconds = steps * read
    if settings.minutes is not None and 60 * settings.minutes < seconds:
        within = f"--minutes {settings.minutes:g} is enough for {format_count(60 * settings.minutes / read)} of them"
    else:
        within = f"about {format_duration(seconds)}, before it is scored"
    screen.say(f"{format_count(steps)} steps: {within}; nothing was trained or written (--check)")

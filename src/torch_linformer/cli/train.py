"""``linformer train``."""

from typing import Annotated, Any

import typer

from torch_linformer.cli.options import showing
from torch_linformer.cli.resumable import options_of, run_resumable
from torch_linformer.cli.started_by import processes_started
from torch_linformer.errors import InputError
from torch_linformer.training.train_settings import TrainSettings


@showing(options_of(TrainSettings))
def train(
    check: Annotated[
        bool, typer.Option("--check", help="read the data, build the model, measure a step, and write nothing")
    ] = False,
    **options: Any,
) -> None:
    """Train a model and score it on held-out documents.

    Without arguments it learns to predict the package of Python's standard library that a source file belongs to.
    """
    if check and processes_started() > 1:
        raise InputError("--check tries a training in a single process: start it without torchrun")

    def run(*arguments: Any, **keywords: Any) -> None:
        if check:
            from torch_linformer.training.dry_run import try_training

            try_training(*arguments, **keywords)
        else:
            from torch_linformer.training.train import train as run_training

            run_training(*arguments, **keywords)

    run_resumable(run, TrainSettings, options, leaves_a_run=not check)

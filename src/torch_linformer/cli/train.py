"""``linformer train``."""

import inspect
from typing import Any

from torch_linformer.cli.resumable import options_of, run_resumable
from torch_linformer.training.train_settings import TrainSettings


def train(**options: Any) -> None:
    """Train a model and score it on held-out documents.

    Without arguments it learns to predict the package of Python's standard library that a source file belongs to.
    """
    from torch_linformer.training.train import train as run

    run_resumable(run, TrainSettings, options)


train.__signature__ = inspect.Signature(options_of(TrainSettings))  # type: ignore[attr-defined]

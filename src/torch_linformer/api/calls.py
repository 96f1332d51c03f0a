"""How the functions of Python are called: the options of the commands, of which some may be paths and numbers there."""
# mypy: disable-error-code="assignment"

import inspect
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.reporting.screen import Screen
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen

PathOrName = str | os.PathLike[str]  # or the name of a model or a data set
Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class TrainCall(TrainSettings):
    data: PathOrName = field(default="stdlib", kw_only=False)
    text_folder: PathOrName | None = None
    documents: PathOrName | None = None
    validation: float | PathOrName = 0.1
    test: float | PathOrName = 0.2
    from_model: PathOrName | None = None
    tokenizer: PathOrName = "bpe:8192"
    k: int | Sequence[int] | str | None = None
    output: PathOrName | None = None
    resume: bool = False
    screen: TrainingScreen | None = None


@dataclass(frozen=True)
class _Source:
    source: PathOrName


@dataclass(frozen=True, kw_only=True)
class AdaptCall(AdaptSettings, _Source):  # whose field comes first
    data: PathOrName = field(kw_only=False)
    text_folder: PathOrName | None = None
    test: float | PathOrName = 0.1
    output: PathOrName | None = None
    resume: bool = False
    screen: TrainingScreen | None = None


@dataclass(frozen=True, kw_only=True)
class EvaluateCall(DataOptions):
    model: PathOrName = field(kw_only=False)
    data: PathOrName = field(kw_only=False)
    documents: PathOrName | None = None
    text_folder: PathOrName | None = None
    max_errors: int = 0
    max_length: int | None = None
    overflow: str = "cut"
    stride: int | None = None
    batch_size: int = 16
    device: str = "auto"
    precision: str = "auto"
    screen: Screen | None = None
    trained: tuple[tuple[str, str], ...] = field(default=(), init=False)


def called_as(call: Callable[Parameters, object]) -> Callable[[Callable[..., Result]], Callable[Parameters, Result]]:
    """Give a function that takes any options the parameters of a record, for editors and ``inspect.signature``."""

    def show(function: Callable[..., Result]) -> Callable[Parameters, Result]:
        result = inspect.signature(function).return_annotation
        vars(function)["__signature__"] = inspect.signature(call).replace(return_annotation=result)
        return function

    return show

"""A finished training or adaptation as an object."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from torch_linformer.opening.load import AnyModel, load_model, load_tokenizer


@dataclass(frozen=True)
class Run:
    """A finished training or adaptation: what :func:`torch_linformer.train` and :func:`torch_linformer.adapt` return.

    It can be passed anywhere a path is accepted: ``Predictor(run)``, ``evaluate(run, "more.csv")``,
    ``train("labeled.csv", from_model=run)``, ``AutoModel.from_pretrained(run)``.

    Attributes:
        folder: of the model and its report, which ``from_pretrained`` loads.
        scores: of the task, on the documents that were held out; of an adaptation those that say how close it is to its
            original.
        result: all of ``metrics.json`` or ``adaptation.json``: scores of what it is compared with, costs, the machine.

    Raises:
        InputError: at ``model`` or ``tokenizer``, where the folder is no longer there or is damaged.
    """

    folder: Path
    scores: Mapping[str, float]
    result: Mapping[str, Any] = field(repr=False)

    @cached_property
    def model(self) -> AnyModel:
        """The model of the folder, in evaluation mode, opened when it is first asked for."""
        return load_model(str(self.folder))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """That of the model."""
        return load_tokenizer(str(self.folder))

    def __fspath__(self) -> str:
        return os.fspath(self.folder)

    def __str__(self) -> str:  # by which transformers takes a path
        return os.fspath(self)

"""An adaptation from Python: from a model, its tokenizer and texts to the linear model."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation_report import show_adapted, write_adapted
from torch_linformer.adaptation.adaptation_run import Adaptation
from torch_linformer.adaptation.pretrained_encoder import check_kind, encoder_of
from torch_linformer.adaptation.remote_code import is_own_code, without_own_code
from torch_linformer.data.parts import parse_part, split_documents
from torch_linformer.errors import InputError, flag
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.new_folder import check_free, new_folder
from torch_linformer.training.training_screen import TrainingScreen

OF_THE_COMMAND = {
    **dict.fromkeys(
        ("data", "text_column", "label_column", "trust_remote_code"), "here the model and the texts are given"
    ),
    "fsdp": "torchrun starts it in several processes",
}


def adapt(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    texts: Sequence[str],
    *,
    output: str | Path | None = None,
    screen: TrainingScreen | None = None,
    **options: Any,
) -> LinformerPreTrainedModel:
    """Make a pretrained encoder linear, as ``linformer adapt`` does.

    Args:
        model: a BERT, RoBERTa, XLM-RoBERTa or DistilBERT of transformers, one of a class that extends these and gives
            the same output, or a model of this package with full attention; it is not changed.
        tokenizer: its own.
        texts: like those that it is to read, without labels.
        output: folder for the result, with ``adaptation.json`` and ``report.html``; None writes nothing.
        screen: where progress is shown.
        options: those of the command, with underscores: ``task``, ``k``, ``max_length``, ``window``, ``steps``,
            ``minutes``, ``batch_size``, …: see ``linformer adapt --help``. ``test`` is a fraction.

    Returns:
        The adapted model, in evaluation mode, with the head of its task.

    Raises:
        InputError: for anything wrong with the model, the texts, the options or the folder.
        TypeError: an unknown option.
    """
    for name, reason in OF_THE_COMMAND.items():
        if name in options:
            raise InputError(f"{flag(name)} is for the command: {reason}")
    settings = AdaptSettings(data=f"{len(texts)} texts", output=None if output is None else str(output), **options)
    held_out = parse_part(str(settings.test))
    if not isinstance(held_out, float):
        raise InputError(f"test must be a fraction of the texts, got {settings.test!r}")
    name = model.name_or_path or type(model).__name__
    if is_own_code(type(model)) or is_own_code(type(model.config)):
        model = without_own_code(model, name, settings.task)
    check_kind(name, model.config)
    original = encoder_of(model, tokenizer, model.config, name, task=settings.task, seed=settings.seed)
    screen = screen or TrainingScreen()
    if output is not None:
        check_free(Path(output))
    train, test = split_documents(Dataset.from_dict({"text": list(texts)}), held_out, settings.seed)
    adaptation = Adaptation(original, train, test, settings, screen)
    with tempfile.TemporaryDirectory() as checkpoints:
        spent = adaptation.distil(Path(checkpoints))
    if output is not None:
        outcome = adaptation.outcome(spent, "")
        with new_folder(Path(output)) as folder:
            write_adapted(outcome, folder)
        show_adapted(outcome, Path(output), screen)
    cast(nn.Module, adaptation.student).eval()
    return adaptation.student

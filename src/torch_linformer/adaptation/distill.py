"""A distillation from Python: a linear encoder learns from texts to do what its original does."""

import copy
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar, cast

from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import Adaptation
from torch_linformer.adaptation.adaptation_report import show_adapted, write_report, write_student
from torch_linformer.adaptation.pretrained_encoder import encoder_of
from torch_linformer.data.parts import parse_part, split_documents
from torch_linformer.data.tokenizer import reads_from_the_left
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.heads import head_of
from torch_linformer.errors import InputError
from torch_linformer.opening.devices import WEIGHTS
from torch_linformer.opening.folder import check_free, new_folder
from torch_linformer.tasks.retrieval import POOLINGS
from torch_linformer.training.training_screen import TrainingScreen

Model = TypeVar("Model", bound=PreTrainedModel)
SAME = ("hidden_size", "num_hidden_layers", "vocab_size")  # of teacher and student


def distill(
    model: Model,
    teacher: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    *,
    task: str | None = None,
    pooling: str | None = None,
    test: float = 0.1,
    steps: int | None = None,
    minutes: float | None = None,
    batch_size: int | None = None,
    slots_only: bool = False,
    learning_rate: float | None = None,
    slot_learning_rate: float | None = None,
    seed: int = 0,
    precision: str = "auto",
    device: str = "auto",
    compile: bool = False,
    probe: bool = True,
    output: str | os.PathLike[str] | None = None,
    screen: TrainingScreen | None = None,
) -> Model:
    r"""Train a linear encoder to do what its original does, as ``linformer adapt``.

    .. math:: \frac{1}{L} \sum_l \frac{\overline{(h_l - t_l)^2}}{\mathrm{var}(t_l)} + 10\,(1 - \cos(e, e_t))

    is minimized over the real tokens of the texts, with the hidden states h, t of every layer and the embeddings e of
    the last one, and, where there is a head for masked words or labels, the divergence of its predictions. Texts longer
    than the teacher reads, or than the ``usual_length`` that ``model`` was made with, are read by it as windows.

    Args:
        model: made by ``torch_linformer.linearize``; it is trained in place, in float32, and returned in
            evaluation mode.
        teacher: the original that it was made of; it is not changed.
        tokenizer: its own, a fast one.
        texts: like those that it is to read, without labels.
        task: ``embed``, ``mlm`` or ``classify``; what the head is for if None.
        pooling: what makes embeddings of hidden states: ``mean``, ``cls`` or ``max``; mean by default, and what a
            classifier reads.
        test: share of the texts held out for the comparison with the original.
        steps: of the training; 1,000, or as many as ``minutes`` allow, if None.
        minutes: that it takes at most.
        batch_size: texts per step; 16, or as few as make 60 steps in ``minutes``, if None.
        slots_only: train only the slots; the weights of the original, and its output for short texts, do not change.
        learning_rate: the peak; 7e-5 if None.
        slot_learning_rate: the peak of the parameters that choose the slots; 6e-3 if None, 0.02 with ``slots_only``.
        seed: of the split and of the order.
        precision: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        device: ``auto`` takes a GPU if there is one.
        compile: use ``torch.compile``; the first batches are then slow.
        probe: also compare the time of a forward pass with the original's, for the report.
        output: folder for the result, with ``adaptation.json`` and ``report.html``; None writes nothing.
        screen: where progress is shown.

    Raises:
        InputError: for anything wrong with the models, the texts, the options or the folder.
    """
    if not isinstance(model, LinearEncoder):
        raise InputError(f"{type(model).__name__} is not linear: torch_linformer.linearize makes it so")
    if teacher is model:
        raise InputError("the teacher is the student itself: take the model that torch_linformer.linearize was given")
    for name in SAME:
        value, value_of_teacher = (getattr(side.config, name, None) for side in (model, teacher))
        if value != value_of_teacher:
            raise InputError(
                f"the teacher has {name} = {value_of_teacher} and the student {value}: the teacher is the model that "
                "torch_linformer.linearize was given"
            )
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"the tokenizer is a {type(tokenizer).__name__}: a fast one is needed, with a tokenizer.json")
    if pooling not in (None, *POOLINGS):
        raise InputError(f"pooling must be one of {', '.join(POOLINGS)}, got {pooling!r}")
    linear = model.config.linear_options
    settings = AdaptSettings(
        data=f"{len(texts)} texts",
        task=task,
        test=str(test),
        steps=steps,
        minutes=minutes,
        batch_size=batch_size,
        slots_only=slots_only,
        learning_rate=learning_rate,
        slot_learning_rate=slot_learning_rate,
        seed=seed,
        precision=precision,
        device=device,
        compile=compile,
        probe=probe,
        output=None if output is None else os.fspath(output),
        k=linear.k,
        window=linear.window or 0,
        max_length=linear.max_length,
        exact_below=linear.exact_below,
    )
    held_out = parse_part(settings.test)
    if not isinstance(held_out, float):
        raise InputError(f"test must be a fraction of the texts, got {test!r}")
    if output is not None:
        check_free(Path(output))
    frozen, read_by = copy.deepcopy(teacher), reads_from_the_left(copy.deepcopy(tokenizer))
    cast(nn.Module, frozen).to(WEIGHTS)
    name = teacher.name_or_path or type(teacher).__name__
    original = encoder_of(frozen, read_by, name, task=settings.task, pooling=pooling, seed=settings.seed)
    head, task = original.objective.head, original.objective.name
    if head not in ("none", head_of(model)):
        raise InputError(
            f"the teacher has a head for {head} and {type(model).__name__} has none: linearize the teacher, or take "
            f"task='embed' instead of {task!r}"
        )
    cast(nn.Module, model).to(WEIGHTS)
    train, test = split_documents(Dataset.from_dict({"text": list(texts)}), held_out, settings.seed)
    adaptation = Adaptation(original, train, test, settings, screen or TrainingScreen(), student=model)
    with tempfile.TemporaryDirectory() as checkpoints:
        spent = adaptation.distil(Path(checkpoints))
    if output is not None:
        outcome = adaptation.outcome(spent, "")
        with new_folder(Path(output)) as folder:
            write_student(original, model, folder)
            write_report(outcome, folder)
        show_adapted(outcome, Path(output), adaptation.screen)
    cast(nn.Module, model).requires_grad_(True).eval()
    return model

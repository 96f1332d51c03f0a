"""One adaptation, from a pretrained encoder and texts to a folder with a linear one and its report."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import transformers
from datasets import Dataset
from torch import nn
from transformers import DataCollatorWithPadding, set_seed

from torch_linformer.models import LinformerModel
from torch_linformer.models.with_attention import with_attention
from torch_linformer.reporting.files import write_json
from torch_linformer.reporting.tables import format_count, format_percent
from torch_linformer.training.adaptation.comparison import Comparison
from torch_linformer.training.adaptation.distillation import DistillationTrainer
from torch_linformer.training.adaptation.report import RESULT, Adapted, said, show_adapted, write_adapted
from torch_linformer.training.adaptation.settings import STEPS, AdaptSettings
from torch_linformer.training.adaptation.source import Source, load_source
from torch_linformer.training.adaptation.teacher import Marks, Teacher
from torch_linformer.training.adaptation.texts import mix_lengths
from torch_linformer.training.checkpoints import remove_checkpoints
from torch_linformer.training.devices import resolve_device, resolve_precision
from torch_linformer.training.errors import InputError
from torch_linformer.training.probe import Cost, Probe, measure_beside_full_attention
from torch_linformer.training.reading.columns import Named
from torch_linformer.training.reading.documents import load_documents, parse_part, split_documents
from torch_linformer.training.reading.records import TEXT
from torch_linformer.training.run_folder import RUN_FILE, identity, open_run
from torch_linformer.training.screen import Screen, attention_of
from torch_linformer.training.trainer import fit, run_arguments
from torch_linformer.training.windows import DocumentEncoder, tokenize_documents

EVALUATIONS = 10  # of the validation texts, over the whole distillation
VALIDATED, TESTED = 128, 512  # texts
LEAST_TEXTS = 20  # ten neighbours among them
MOST_PASSES = 10  # over the texts, where --minutes alone says when to stop
MOST_STEPS_UNSCORED = 100  # and without a checkpoint
COST_LENGTHS = (128, 512, 2048, 8192)


def run_adaptation(
    source: str, settings: AdaptSettings, *, resume: bool = False, command: str = "", screen: Screen | None = None
) -> Path:
    """Adapt an encoder, compare it with the original on texts it never saw, and leave everything in a folder.

    Args:
        source: a folder, or a name on the hub.
        settings: how, and on which texts.
        resume: go on from the last whole checkpoint of the same adaptation.
        command: the command line, for the report.
        screen: where to show what happens.

    Returns:
        The folder, which ``from_pretrained`` loads.

    Raises:
        InputError: for anything wrong with the source, the settings, the texts or the folder.
        Interrupted: on Ctrl-C, once a checkpoint is left.
    """
    screen = screen or Screen()
    device = resolve_device(settings.device)
    precision = resolve_precision(settings.precision, device)
    output = Path(settings.output or Path("runs") / f"{Path(source).absolute().name}-linformer")
    run = {**identity(settings), "source": source}
    checkpoint = open_run(output, run, resume, screen, RESULT)
    if (output / RESULT).exists():
        screen.say(f"{output} holds this adaptation already, and it is finished; remove the folder to make it again")
        remove_checkpoints(output)
        return output
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    original = load_source(source)
    max_length = settings.max_length or original.longest
    set_seed(settings.seed)
    student = build_student(original.model, settings, max_length)
    parts = _read(original, settings, max_length, screen)
    teacher = Teacher(original.model, min(original.longest, max_length), parts.marks)
    for module in (student, teacher.model):
        cast(nn.Module, module).to(device)
    screen.say(
        f"{source}: {format_count(student.num_parameters())} parameters, reads {original.longest:,} tokens; the "
        f"student {max_length:,}, with {attention_of(student.config)}; {device}, {precision}"
    )
    validation, test = (
        Comparison(teacher, texts, settings.batch_size, precision) for texts in (parts.validation, parts.test)
    )
    start = test.scores(student)
    screen.say(f"before any training: {said(start)}")

    write_json(output / RUN_FILE, run)  # not before: a mistake in the texts leaves no folder
    trainer = _trainer(settings, output, student, teacher, validation, parts, original, device, precision)
    spent = fit(trainer, output, checkpoint, screen)
    outcome = Adapted(
        source=original,
        settings=settings,
        command=command,
        model=student,
        start=start,
        end=test.scores(student),
        history=trainer.state.log_history,
        costs=_costs(student, device, precision, screen),
        texts=(len(parts.train), len(parts.test)),
        spent=spent,
        device=device,
        precision=precision,
    )
    write_adapted(outcome, output)
    remove_checkpoints(output)
    show_adapted(outcome, output, screen)
    return output


def build_student(original: LinformerModel, settings: AdaptSettings, max_length: int) -> LinformerModel:
    """The original with slots, and without dropout, which would have it follow a teacher half blind.

    Raises:
        InputError: K does not fit.
    """
    k = min(256, max_length // 4) if settings.k is None else settings.k
    if not 1 <= k <= max_length:
        raise InputError(f"--k must lie between 1 and the {max_length:,} tokens read at once, got {k}")
    return with_attention(
        original,
        attention="linformer",
        max_position_embeddings=max_length,
        k=k,
        window=settings.window or None,
        projection=settings.projection,
        sharing=settings.sharing,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )


@dataclass(frozen=True)
class _Texts:
    """Token ids of the texts to learn from, for validation, and held out, and how many marks stand around them."""

    train: Dataset
    validation: list[list[int]]
    test: list[list[int]]
    marks: Marks


def _read(source: Source, settings: AdaptSettings, max_length: int, screen: Screen) -> _Texts:
    """Read, split and tokenise the texts."""
    named = Named(settings.text_column)
    documents = load_documents(str(settings.data), TEXT, named=named)
    notes = list(documents.notes)
    held_out = parse_part(settings.test)
    if isinstance(held_out, float):
        train, test = split_documents(documents.dataset, held_out, settings.seed)
    else:
        others = load_documents(held_out, TEXT, named=named)
        notes += [f"test: {note}" for note in others.notes]
        train, test = documents.dataset, others.dataset
    validated = min(VALIDATED, max(LEAST_TEXTS, len(train) // 10))
    train, validation = split_documents(train, min(0.5, validated / len(train)), settings.seed)
    for part, name in ((train, "to learn from"), (validation, "for validation"), (test, "held out")):
        if len(part) < LEAST_TEXTS:
            raise InputError(f"{settings.data}: leaves {len(part)} texts {name}; at least {LEAST_TEXTS} are needed")
    draws = np.random.default_rng(settings.seed)
    test = test.select(np.sort(draws.permutation(len(test))[:TESTED]))
    encoder = DocumentEncoder(source.tokenizer, max_length)
    before, after = encoder.marks
    windows = [tokenize_documents(part, encoder) for part in (train, validation, test)]
    tokens = np.asarray(windows[0]["num_tokens"][:])
    for note in notes:
        screen.say(note)
    screen.say(
        f"{format_count(len(train))} texts to learn from, {format_count(len(validation))} for validation, "
        f"{format_count(len(test))} held out; tokens of a text: median {format_count(np.median(tokens))}, "
        f"{format_percent(float((tokens > max_length).mean()))} are cut at --max-length {max_length:,}"
    )
    return _Texts(
        mix_lengths(windows[0], after, settings.seed),
        windows[1]["input_ids"][:],
        windows[2]["input_ids"][:],
        Marks(len(before), len(after)),
    )


def _trainer(
    settings: AdaptSettings,
    output: Path,
    student: LinformerModel,
    teacher: Teacher,
    validation: Comparison,
    texts: _Texts,
    source: Source,
    device: str,
    precision: str,
) -> DistillationTrainer:
    passes = MOST_PASSES * -(-len(texts.train) // settings.batch_size)
    steps = settings.steps or (passes if settings.minutes else STEPS)
    arguments = run_arguments(
        output,
        steps=steps,
        batch_size=settings.batch_size,
        learning_rate=settings.learning_rate,
        seed=settings.seed,
        device=device,
        precision=precision,
        evaluations=max(EVALUATIONS, steps // MOST_STEPS_UNSCORED),
        best="cosine",
        larger_is_better=True,
        weight_decay=0.0,
    )
    pad = DataCollatorWithPadding(source.tokenizer)
    return DistillationTrainer(
        teacher=teacher,
        compare=validation.scores,
        model=student,
        args=arguments,
        train_dataset=texts.train,
        eval_dataset=validation.texts,
        data_collator=lambda windows: dict(pad([{"input_ids": window["input_ids"]} for window in windows])),
        processing_class=source.tokenizer,
        minutes=settings.minutes,
    )


def _costs(
    student: LinformerModel, device: str, precision: str, screen: Screen
) -> dict[int, tuple[Cost | None, Cost | None]]:
    """A forward pass of one text of several lengths, the student's and the same with full attention."""
    found = {}
    for length in COST_LENGTHS:
        screen.say(f"measuring a text of {length:,} tokens beside full attention")
        most = max(length, student.config.max_position_embeddings)
        config = {**student.config.to_diff_dict(), "max_position_embeddings": most}
        probe = Probe("LinformerModel", config, 1, length, device, precision, training=False)
        found[length] = measure_beside_full_attention(probe)
    return found

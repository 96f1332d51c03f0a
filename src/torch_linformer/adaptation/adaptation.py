"""An adaptation, from a pretrained encoder and texts to a linear encoder with its report."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher
from torch import nn
from transformers import TrainerState, set_seed

from torch_linformer.adaptation.adapt_settings import BATCH, STEPS, AdaptSettings
from torch_linformer.adaptation.adaptation_report import (
    RESULT,
    Adapted,
    Pair,
    score_line,
    show_adapted,
    write_report,
    write_student,
)
from torch_linformer.adaptation.comparison import TeacherComparison, WithoutSlots
from torch_linformer.adaptation.distillation import DistillationTrainer, Teacher, split_slot_parameters
from torch_linformer.adaptation.objectives import Embeddings, Labels
from torch_linformer.adaptation.pretrained_encoder import PretrainedEncoder, load_encoder
from torch_linformer.data.labels import check_labels, name_labels
from torch_linformer.data.parts import content_digest, find_overlap, parse_part, split_documents
from torch_linformer.data.reading.documents import Documents, load_documents, quiet
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.windows import DocumentEncoder, ask_of_lines, tokenize_documents, with_text
from torch_linformer.distributed import processes
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.linearize import linearize, with_options
from torch_linformer.encoders.options import LinearOptions
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError
from torch_linformer.opening.devices import compile_backbone, require_compiler, resolve_device, resolve_precision
from torch_linformer.opening.folder import Spent, begin_run, identity, shared_run
from torch_linformer.opening.hub import repository_for, upload
from torch_linformer.opening.load import quiet_transformers
from torch_linformer.opening.summary import attention_of
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_count, format_duration, format_percent
from torch_linformer.training.micro_batches import (
    ENOUGH_STEPS,
    TokenCost,
    few_steps,
    fit_micro_batches,
    texts_for,
    token_cost,
)
from torch_linformer.training.step_costs import LINEAR, Cost, ModelStep, measure_steps, with_full_attention
from torch_linformer.training.trainer import fit, run_arguments
from torch_linformer.training.training_screen import TrainingScreen

CUT, SHORTEST = 0.25, 8  # the share of the texts that are cut to a random length, and the tokens of the shortest
LONG = 8192  # tokens that a student reads at least, unless told otherwise
VALIDATED, TESTED = 128, 512  # texts
LEAST_TEXTS = 20  # enough for ten nearest neighbors
EVALUATIONS = 10  # on the validation texts, in the whole distillation
LEARNING_RATE, SLOT_LEARNING_RATE = 7e-5, {False: 6e-3, True: 0.02}  # the latter by --slots-only
MOST_PASSES = 10  # over the texts, where only --minutes ends the distillation
MOST_STEPS_UNSCORED = 100  # and without a checkpoint
# Shares of --minutes, so that they are kept: teacher and student read a text once for the first scores, the student
# again for later ones; what measuring takes, where that is more than its processes take to start.
VALIDATING, COMPARING, MEASURING = 0.2, 0.1, 0.1
LEAST_SECONDS = 30.0
TIMED = 4  # texts


def run_adaptation(
    source: str,
    settings: AdaptSettings,
    *,
    resume: bool = False,
    command: str = "",
    screen: TrainingScreen | None = None,
) -> Path:
    """Adapt an encoder, compare it with the original on texts held out, and write everything into a folder.

    Under ``torchrun`` or ``accelerate launch`` the processes share each batch. The main one does what is done once.

    Args:
        source: a folder, a name on the hub, or ``minilm`` (:func:`torch_linformer.encoder_folder`).
        settings: how, and on which texts.
        resume: go on from the last whole checkpoint of the same adaptation.
        command: the command line, for the report.
        screen: where progress is shown.

    Returns:
        The folder, which ``from_pretrained`` loads.

    Raises:
        InputError: for anything wrong with the source, the settings, the texts or the folder.
        Interrupted: on Ctrl-C, SIGTERM or SIGHUP, once a checkpoint is written.
        SaidElsewhere: in the other processes, where the main one failed.
    """
    device = resolve_device(settings.device)
    resolve_precision(settings.precision, device)
    if settings.compile:
        require_compiler(device)
    processes.join(device, settings.batch_size or BATCH, fsdp=settings.fsdp, command="adapt")
    screen = screen or TrainingScreen()
    output = Path(settings.output or Path("runs") / f"{Path(source).absolute().name}-linformer")
    run = {**identity(settings), "source": source}
    with shared_run(output, run, resume, screen, RESULT) as (checkpoint, finished):
        repository = processes.on_main(lambda: repository_for(settings.push_to_hub))
        if finished:
            screen.say(f"{output} holds this adaptation already, and it is finished; remove the folder to run it again")
        else:
            quiet_transformers()
            original = load_encoder(source, settings.task, settings.seed, settings.trust_remote_code)
            train, test, notes = processes.on_main(lambda: read_documents(original.objective, settings))
            for note in notes:
                screen.say(note)
            digest = processes.on_main(lambda: content_digest({"training": train, "test": test}))
            processes.on_main(lambda: begin_run(output, run, digest, checkpoint))
            adaptation = Adaptation(original, train, test, settings, screen)
            spent = adaptation.distil(output, checkpoint)
            if processes.is_main():  # before anything is measured, so that nothing can take it away
                write_student(original, adaptation.student, output)
                screen.say(f"the model is in {output}")
            outcome = adaptation.outcome(spent, command)
            if processes.is_main():
                write_report(outcome, output)
                show_adapted(outcome, output, screen)
    if repository is not None and processes.is_main():
        upload(output, repository, screen)
    return output


class Part(NamedTuple):
    """The tokens of texts, and the texts as they were read, perhaps with labels."""

    windows: Dataset
    documents: Dataset

    def sample(self, texts: int) -> "Part":
        """At most so many of the texts, drawn, in their order."""
        numbers = np.sort(np.random.default_rng(0).permutation(len(self.documents))[:texts])
        return Part(self.windows.select(numbers), self.documents.select(numbers))


class Texts(NamedTuple):
    train: Dataset
    validation: Part
    test: Part


def read_documents(objective: Embeddings, settings: AdaptSettings) -> tuple[Dataset, Dataset, list[str]]:
    """Texts to learn from, texts held out, with labels if they are asked for, and notes on both for the user."""
    options, data, held_out = settings.reading, str(settings.data), parse_part(settings.test)
    if options.label_column and not isinstance(objective, Labels):
        raise InputError("--label-column is for a classifier, and this model has none")

    def load(path: str, labeled: bool) -> Documents:
        if not (labeled and options.label_column and isinstance(objective, Labels)):
            return load_documents(path, TEXT, options=replace(options, label_column=None))
        documents = load_documents(path, objective.task.record, options=options)
        dataset = name_labels(documents.dataset, objective.task.names, several=objective.several)
        check_labels(objective.task.names, dataset, path)
        return replace(documents, dataset=dataset)

    if isinstance(held_out, float):
        documents = load(data, labeled=True)
        train, test = split_documents(documents.dataset, held_out, settings.seed, stratified=not objective.several)
        return train, test, documents.notes
    documents, others = load(data, labeled=False), load(held_out, labeled=True)
    return documents.dataset, others.dataset, [*documents.notes, *(f"test: {note}" for note in others.notes)]


def prepare_texts(
    train: Dataset, test: Dataset, encoder: DocumentEncoder, settings: AdaptSettings, screen: Screen
) -> Texts:
    """Split texts for validation from those to learn from, and tokenize all three parts."""
    train, test = (with_text(part, encoder, screen.say) for part in (train, test))
    validated = min(VALIDATED, max(LEAST_TEXTS, len(train) // 10))
    train, validation = split_documents(train, min(0.5, validated / len(train)), settings.seed)
    for part, name in ((train, "for training"), (validation, "for validation"), (test, "for the test")):
        if len(part) < LEAST_TEXTS:
            raise InputError(f"{settings.data}: leaves {len(part)} texts {name}; at least {LEAST_TEXTS} are needed")
    texts, draws = len(train) + len(validation) + len(test), np.random.default_rng(settings.seed)
    test = test.select(np.sort(draws.permutation(len(test))[:TESTED]))
    windows = [tokenize_documents(part, encoder) for part in (train, validation, test)]
    tokens, max_length = np.asarray(windows[0]["num_tokens"][:]), encoder.max_length
    screen.say(
        f"{format_count(len(train))} training texts, {format_count(len(validation))} for validation, "
        f"{format_count(len(test))} for the test; tokens per text: median {format_count(np.median(tokens))}, "
        f"{format_percent(float((tokens > max_length).mean()))} longer than --max-length {max_length:,} and truncated"
    )
    for question in ask_of_lines(texts, tokens):
        screen.say(question)
    mixed = mix_lengths(windows[0], encoder.marks[1], settings.seed)
    return Texts(mixed, Part(windows[1], validation), Part(windows[2], test))


def mix_lengths(windows: Dataset, after: list[int], seed: int) -> Dataset:
    """``windows``, a quarter of them cut to a length drawn log-uniformly; ``after`` ends each text.

    What stands before a text is not cut: special tokens and the prompt.
    """

    def cut(ids: list[int], text_from: int, number: int) -> dict[str, object]:
        draws, shortest = np.random.default_rng([seed, number]), max(SHORTEST, text_from + 1 + len(after))
        if draws.random() < CUT and len(ids) > shortest:
            length = int(np.exp(draws.uniform(np.log(shortest), np.log(len(ids) + 1))))
            ids = ids[: length - len(after)] + after
        return {"input_ids": ids, "length": len(ids)}

    with quiet():
        return windows.map(
            cut,
            input_columns=["input_ids", "text_from"],
            with_indices=True,
            remove_columns=["num_tokens", "text_from"],
            new_fingerprint=Hasher.hash([windows._fingerprint, after, seed, CUT, SHORTEST]),
        )


class Adaptation:
    """A student (the original, made linear as ``settings`` say), its teacher, and the texts that both read.

    Raises:
        InputError: the settings do not fit the original, or there are too few texts.
    """

    def __init__(
        self,
        original: PretrainedEncoder,
        train: Dataset,
        test: Dataset,
        settings: AdaptSettings,
        screen: TrainingScreen,
        student: LinearEncoder | None = None,
    ) -> None:
        self.original, self.settings, self.screen = original, settings, screen
        self.batch_size = settings.batch_size or BATCH
        self.device = resolve_device(settings.device)
        self.precision = resolve_precision(settings.precision, self.device)
        self.objective = original.objective
        self.warnings = find_overlap({"training": train, "test": test}).warnings
        for warning in self.warnings:
            screen.say(warning)
        max_length = settings.max_length or max(LONG, original.usual_length)
        set_seed(settings.seed)
        encoder = DocumentEncoder(original.tokenizer, max_length, prompt=original.settings.prompt())
        before, after = map(len, encoder.marks)
        self.student = self._linear(max_length, before, after) if student is None else student
        self.options: LinearOptions = self.student.config.linear_options
        if settings.slots_only:
            slots, others = split_slot_parameters(self.student)
            if not (slots and self.options.uses_slots):
                raise InputError(
                    "--slots-only: no text is long enough for slots, or there are none that can be trained"
                )
            for parameter in others:
                parameter.requires_grad_(False)
        self.student.config.pooling = self.objective.pooling
        self.texts = processes.on_main(lambda: prepare_texts(train, test, encoder, settings, screen))
        longest, exact = max(self.texts.train["length"][:]), self.options.longest_exact
        if student is None and longest <= exact:
            raise InputError(
                f"the longest text has {longest:,} tokens, and texts of up to {exact:,} get full attention, as in the "
                "original: there is nothing to adapt; take longer texts, a larger --max-length, or --exact-below 0"
            )
        positions = Positions.said_by(self.student.config)
        # Where positions are learned, those of the student repeat as in windows that are read one after the other.
        # Else they overlap, so that every token has a quarter of a window on either side.
        shared = 0.0 if positions.tables else 0.5
        longest = min(positions.usual, max_length)
        self.teacher = Teacher(original.model, longest, before + encoder.prompt_tokens, after, shared)
        for module in (self.student, self.teacher.model):
            cast(nn.Module, module).to(self.device)
        if settings.compile:
            compile_backbone(self.teacher.model, self.device)
            screen.say(compile_backbone(self.student, self.device, training=True))
        screen.say(
            f"{original.path}: {format_count(self.student.num_parameters())} parameters, reads {positions.usual:,} "
            f"tokens, --task {self.objective.name}; the student {max_length:,}, with "
            f"{attention_of(self.student.config)}; {self.device}, {self.precision}"
        )
        self._compare_first()

    def _linear(self, max_length: int, before: int, after: int) -> LinearEncoder:
        """The original with slots; the special tokens around a text are seen exactly."""
        try:
            student: Any = linearize(
                self.original.model,
                self.settings.k,
                self.settings.window,
                max_length=max_length,
                usual_length=self.original.usual_length,
                exact_first=before,
                exact_last=after,
                exact_below=self.settings.exact_below,
            )
        except ValueError as error:
            raise InputError(str(error)) from None
        return cast(LinearEncoder, student)

    def _compare_first(self) -> None:
        """Score the student before any training, on as many texts as ``--minutes`` has time for."""
        parts, minutes = [self.texts.validation, self.texts.test], self.settings.minutes
        a_text = self._seconds_a_text()
        if minutes is not None:
            parts = [
                part.sample(max(LEAST_TEXTS, int(share * 60 * minutes / a_text)))
                for part, share in zip(parts, (VALIDATING, COMPARING), strict=True)
            ]
        self.validation, self.test = map(self._comparison, parts)
        number = len(self.test.windows)
        self.screen.say(f"reading {number} test texts before any training: about {format_duration(number * a_text)}")
        self.test.wanted  # noqa: B018 - what the teacher makes of them, which takes a time of its own
        began = time.monotonic()
        self.start = self.test.scores(self.student)
        # What the student takes again, with its slots and perhaps without.
        self.has_both = self.options.window is not None and self.options.k != 0  # slots to take out, something left
        self.seconds_to_compare = (time.monotonic() - began) * (1 + self.has_both)
        self.screen.say(f"before any training: {score_line(self.objective.titles, self.start, number)}")

    def _comparison(self, part: Part) -> TeacherComparison:
        return TeacherComparison(self.teacher, self.objective, *part, self.batch_size, self.precision)

    def _seconds_a_text(self) -> float:
        """What teacher and student take to read one, by the clock of the main process."""
        sample = self.texts.test.sample(TIMED)
        if self.settings.compile:
            self._comparison(sample).scores(self.student)  # which waits for the compiler
        began = time.monotonic()
        self._comparison(sample).scores(self.student)
        return processes.on_main(lambda: time.monotonic() - began) / TIMED

    def distil(self, output: Path, checkpoint: Path | None = None) -> Spent:
        """Train the student, with checkpoints in ``output``; it ends with its best weights.

        Without a ``batch_size`` the time decides it, once: a checkpoint knows it.
        """
        self.trainer = self._trainer(output)
        token, minutes = token_cost(self.trainer), self.settings.minutes
        if minutes is not None and self.settings.batch_size is None:
            self.batch_size = processes.on_main(lambda: self._batch_for(minutes, token, checkpoint))
            self.trainer = self._trainer(output)
        self.validation.before_batch = self.trainer.heed_signals
        base: Any = self.teacher.model.config
        step = fit_micro_batches(self.trainer, token, held=4 * base.num_hidden_layers * base.hidden_size)
        self.screen.say(step.describe())
        if minutes is not None:
            if few := few_steps(minutes, step.seconds, step.texts, processes.count(), self.trainer.args.max_steps):
                self.screen.say(few)
            after = [f"comparing, about {format_duration(self.seconds_to_compare)}"]
            if self.settings.probe:
                measuring = max(LEAST_SECONDS, MEASURING * 60 * minutes)
                after += [f"measuring, at most {format_duration(measuring)} (--no-probe)"]
            self.screen.say(f"--minutes {minutes:g} is for the distillation; after it come {' and '.join(after)}")
        return fit(self.trainer, output, checkpoint, self.screen)

    def _batch_for(self, minutes: float, token: TokenCost, checkpoint: Path | None) -> int:
        """Texts of a step; fewer than usual where these would make few steps."""
        if checkpoint is not None:
            return int(TrainerState.load_from_json(str(checkpoint / "trainer_state.json")).train_batch_size or BATCH)
        lengths = self.texts.train["length"][:]
        seconds, text_seconds = 60 * minutes, token.seconds * sum(lengths) / len(lengths)
        usual, steps = BATCH // processes.count(), min(ENOUGH_STEPS, self.settings.steps or ENOUGH_STEPS)
        texts = texts_for(seconds, text_seconds, usual, steps)
        if texts < usual:
            made = min(self.settings.steps or math.inf, seconds / (texts * text_seconds))
            self.screen.say(
                f"batches of {texts * processes.count()} {'texts' if texts > 1 else 'text'} and not {BATCH}, so that "
                f"{minutes:g} minutes make {made:,.0f} steps (--batch-size)"
            )
        return texts * processes.count()

    def _trainer(self, output: Path) -> DistillationTrainer:
        settings = self.settings
        passes = MOST_PASSES * -(-len(self.texts.train) // self.batch_size)
        steps = settings.steps or (passes if settings.minutes else STEPS)
        arguments = run_arguments(
            output,
            steps=steps,
            batch_size=self.batch_size,
            learning_rate=settings.learning_rate or LEARNING_RATE,
            seed=settings.seed,
            device=self.device,
            precision=self.precision,
            evaluations=max(EVALUATIONS, steps // MOST_STEPS_UNSCORED),
            best=self.objective.best,
            larger_is_better=self.objective.larger_is_better,
            weight_decay=0.0,
        )
        # A pooler's, and those of slots where all texts of a batch are read exactly.
        arguments.ddp_find_unused_parameters = True
        return DistillationTrainer(
            teacher=self.teacher,
            objective=self.objective,
            compare=self.validation.scores,
            model=self.student,
            args=arguments,
            train_dataset=self.texts.train,
            eval_dataset=self.texts.validation.windows,
            processing_class=self.original.tokenizer,
            minutes=settings.minutes,
            slot_learning_rate=settings.slot_learning_rate or SLOT_LEARNING_RATE[settings.slots_only],
            fsdp=settings.fsdp,
        )

    def outcome(self, spent: Spent, command: str) -> Adapted:
        """Compare and measure the trained student."""
        self.screen.say(f"comparing it with the original: about {format_duration(self.seconds_to_compare)}")
        end = self.test.read(self.student)
        alone = without = None
        if self.has_both:
            alone = with_options(self.student, replace(self.options, k=0))
            outputs = self.test.read(alone)
            without = WithoutSlots(self.test.scores_of(outputs), self.test.gains(end, outputs))
        costs: dict[int, Pair] = {}
        if self.settings.probe:
            costs, of_alone = processes.on_main(lambda: self._costs(alone, spent.seconds))
            longest = max(costs)
            without = without and replace(without, cost=of_alone, cost_with_slots=costs[longest][0])
        return Adapted(
            source=self.original,
            settings=replace(self.settings, batch_size=self.batch_size),
            command=command,
            model=self.student,
            original=self.test.of_the_original(),
            start=self.start,
            end=self.test.scores_of(end),
            alone=without,
            history=self.trainer.state.log_history,
            costs=costs,
            texts=(len(self.texts.train), len(self.test.windows)),
            warnings=self.warnings,
            spent=spent,
            device=self.device,
            precision=self.precision,
        )

    def _costs(self, alone: LinearEncoder | None, seconds: float) -> tuple[dict[int, Pair], Cost | None]:
        """What forward passes take, of the student and of the same model with full attention, by tokens of a text.

        Longest first: all that is read at once, and the median of the test texts; and that of the student without
        slots, of the longest. What is not over within a share of the distillation's time has failed.
        """
        usual = sorted(self.texts.test.windows["length"][:])
        longest, seconds = self.options.max_length, max(LEAST_SECONDS, MEASURING * seconds)
        lengths = list(dict.fromkeys((longest, usual[len(usual) // 2])))
        self.screen.say(
            f"measuring a text of {' and '.join(map(format_count, lengths))} tokens compared with full attention: at "
            f"most {format_duration(seconds)} (--no-probe leaves it out)"
        )

        def step_of(model: LinearEncoder, length: int) -> ModelStep:
            return ModelStep(LINEAR, model.config.to_dict(), 1, length, self.device, self.precision, training=False)

        costs, of_alone = dict[int, Pair](), None
        for length in lengths:
            ours = step_of(self.student, length)
            steps = [ours, with_full_attention(ours)]
            if alone is not None and length == longest:
                steps.append(step_of(alone, length))
            linear, full, *others = measure_steps(steps, seconds / len(lengths))
            costs[length] = linear, full
            of_alone = others[0] if others else of_alone
        return costs, of_alone

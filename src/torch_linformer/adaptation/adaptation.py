"""An adaptation: a student, its teacher and their texts, compared before and after the distillation."""

import math
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from datasets import Dataset
from torch import nn
from transformers import TrainerState, set_seed

from torch_linformer.adaptation.adapt_settings import BATCH, STEPS, AdaptSettings
from torch_linformer.adaptation.adaptation_costs import ForwardCosts, measure_forward, measuring_seconds
from torch_linformer.adaptation.adaptation_report import (
    Adapted,
    Tradeoff,
    score_line,
)
from torch_linformer.adaptation.comparison import TeacherComparison, WithoutSlots
from torch_linformer.adaptation.distillation import DistillationTrainer, split_slot_parameters
from torch_linformer.adaptation.objectives import Outputs
from torch_linformer.adaptation.pretrained_encoder import PretrainedEncoder
from torch_linformer.adaptation.teacher_and_student import SHARED, Marks, Teacher, build_student
from torch_linformer.adaptation.texts import LEAST_TEXTS, Part, prepare_texts
from torch_linformer.data.parts import find_overlap
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.distributed import processes
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.linearize import with_options
from torch_linformer.encoders.options import LinearOptions
from torch_linformer.encoders.positions import Positions
from torch_linformer.errors import InputError
from torch_linformer.opening.devices import compile_backbone, resolve_device, resolve_precision
from torch_linformer.opening.folder import Spent
from torch_linformer.opening.summary import attention_of
from torch_linformer.reporting.tables import format_count, format_duration
from torch_linformer.training.fitting import fit
from torch_linformer.training.micro_batches import (
    ENOUGH_STEPS,
    TokenCost,
    few_steps,
    fit_micro_batches,
    texts_for,
    token_cost,
)
from torch_linformer.training.step_costs import LINEAR, ModelStep
from torch_linformer.training.trainer import run_arguments
from torch_linformer.training.training_screen import TrainingScreen

EVALUATIONS = 10  # on the validation texts, in the whole distillation
LEARNING_RATE, SLOT_LEARNING_RATE = 7e-5, {False: 6e-3, True: 0.02}  # the latter by --slots-only
MOST_PASSES = 10  # over the texts, where only --minutes ends the distillation
MOST_STEPS_UNSCORED = 100  # and without a checkpoint
# Shares of --minutes, so that they are kept: teacher and student read a text once for the first scores, the student
# again for later ones.
VALIDATING, COMPARING = 0.2, 0.1
TIMED = 4  # texts


class Adaptation:
    """A student, its teacher, and the texts that both read.

    Args:
        original: what is adapted.
        train: texts to learn from, and for validation.
        test: texts held out, perhaps with labels.
        settings: the options.
        screen: where progress is shown.
        student: what learns; by default the original, made linear as ``settings`` say.

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
        max_length = settings.max_length or original.usual_length
        set_seed(settings.seed)
        encoder = DocumentEncoder(original.tokenizer, max_length, prompt=original.settings.prompt())
        marks = Marks(*map(len, encoder.marks))
        if student is None:
            student = build_student(original.model, settings, max_length, marks, original.usual_length)
        self.student = student
        if settings.slots_only:
            self._keep_weights()
        self.student.config.pooling = self.objective.pooling
        self.texts = processes.on_main(lambda: prepare_texts(train, test, encoder, settings, screen))
        around = replace(marks, before=marks.before + encoder.prompt_tokens)  # of each of the teacher's windows
        positions = Positions.said_by(self.student.config)
        shared = 0.0 if positions.tables else SHARED
        self.teacher = Teacher(original.model, min(positions.usual, max_length), around, shared)
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

    def _keep_weights(self) -> None:
        """Let only slots be trained, of which there have to be some that are used."""
        slots, others = split_slot_parameters(self.student)
        if not (slots and self.options.uses_slots):
            raise InputError("--slots-only: no text is long enough for slots, or there are none that can be trained")
        for parameter in others:
            parameter.requires_grad_(False)

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
        self.seconds_to_compare = time.monotonic() - began
        start = score_line(self.objective.titles, self.start, len(self.test.windows))
        self.screen.say(f"before any training: {start}")

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
        of_teacher = 4 * base.num_hidden_layers * base.hidden_size
        step = fit_micro_batches(self.trainer, token, held=of_teacher)
        self.screen.say(step.describe())
        if minutes is not None:
            if few := few_steps(minutes, step.seconds, step.texts, processes.count(), self.trainer.args.max_steps):
                self.screen.say(few)
            after = [f"comparing, about {format_duration(self._seconds_of_comparing)}"]
            if self.settings.probe:
                after += [f"measuring, at most {format_duration(measuring_seconds(60 * minutes))} (--no-probe)"]
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

    @property
    def _seconds_of_comparing(self) -> float:
        """What the student takes again, with its slots and perhaps without."""
        return self.seconds_to_compare * (1 + self._has_alone)

    def outcome(self, spent: Spent, command: str) -> Adapted:
        """Compare and measure the trained student."""
        self.screen.say(f"comparing it with the original: about {format_duration(self._seconds_of_comparing)}")
        end = self.test.read(self.student)
        alone = self._alone()
        without = None if alone is None else self.test.read(alone)
        others = self._with_other_k()
        scores_by_k = {k: self.validation.scores(other) for k, other in others.items()}
        costs = processes.on_main(lambda: self._costs(alone, others, spent.seconds))
        return Adapted(
            source=self.original,
            settings=replace(self.settings, batch_size=self.batch_size),
            command=command,
            model=self.student,
            original=self.test.of_the_original(),
            start=self.start,
            end=self.test.scores_of(end),
            alone=None if without is None else self._without_slots(end, without, costs),
            tradeoff=[Tradeoff(k, scores, costs.by_k.get(k)) for k, scores in scores_by_k.items()],
            history=self.trainer.state.log_history,
            costs=costs.by_length,
            texts=(len(self.texts.train), len(self.test.windows)),
            warnings=self.warnings,
            spent=spent,
            device=self.device,
            precision=self.precision,
        )

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

    @property
    def options(self) -> LinearOptions:
        """Those of the student."""
        options: LinearOptions = self.student.config.linear_options
        return options

    @property
    def _has_alone(self) -> bool:
        """Whether slots can be taken out of the student, with something left, which is worth a comparison."""
        return self.options.window is not None and self.options.k != 0

    def _alone(self) -> LinearEncoder | None:
        """The student with its slots taken out; None where they are all that it has, or where it has none."""
        return with_options(self.student, replace(self.options, k=0)) if self._has_alone else None

    def _without_slots(self, end: Outputs, without: Outputs, costs: ForwardCosts) -> WithoutSlots:
        scores, gains = self.test.scores_of(without), self.test.gains(end, without)
        return WithoutSlots(scores, gains, costs.alone, costs.longest)

    def _with_other_k(self) -> dict[int, LinearEncoder]:
        """The trained weights with other K, which means allow: they have no weights that depend on it."""
        options = self.options
        if options.projection != "mean" or options.k == 0:
            return {}
        length, k = options.max_length, options.k
        self.screen.say("comparing the same weights with other K, on the texts for validation")
        return {
            slots: with_options(self.student, replace(options, k=slots))
            for slots in (k // 4, k // 2, k, 2 * k, 4 * k)
            if 1 <= slots <= length
        }

    def _costs(self, alone: LinearEncoder | None, by_k: dict[int, LinearEncoder], seconds: float) -> ForwardCosts:
        """What a forward pass takes; nothing without ``--probe``."""
        if not self.settings.probe:
            return ForwardCosts()
        lengths = sorted(self.texts.test.windows["length"][:])
        return measure_forward(
            self._forward_of,
            self.student,
            lengths[len(lengths) // 2],
            alone=alone,
            by_k=by_k,
            seconds=measuring_seconds(seconds),
            screen=self.screen,
        )

    def _forward_of(self, model: LinearEncoder, length: int) -> ModelStep:
        """A forward pass of an encoder with enough positions over one text."""
        options = model.config.linear_options
        longer = replace(options, max_length=max(length, options.max_length))
        config = model.config.with_options(longer).to_dict()
        return ModelStep(LINEAR, config, 1, length, self.device, self.precision, training=False)

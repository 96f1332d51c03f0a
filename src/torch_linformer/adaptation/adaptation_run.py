"""An adaptation, from a pretrained encoder and texts to a linear encoder with its report."""

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import transformers
from datasets import Dataset
from torch import nn
from transformers import PreTrainedModel, set_seed

from torch_linformer.adaptation.adapt_settings import STEPS, AdaptSettings
from torch_linformer.adaptation.adaptation_report import (
    RESULT,
    Adapted,
    Tradeoff,
    WithoutSlots,
    score_line,
    show_adapted,
    write_adapted,
)
from torch_linformer.adaptation.comparison import TeacherComparison
from torch_linformer.adaptation.distillation import DistillationTrainer
from torch_linformer.adaptation.pretrained_encoder import PretrainedEncoder, load_encoder
from torch_linformer.adaptation.student import build_student
from torch_linformer.adaptation.teacher import Marks, Teacher
from torch_linformer.adaptation.texts import prepare_texts, read_documents
from torch_linformer.data.digest import content_digest
from torch_linformer.data.overlap import find_overlap
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.linearize import with_options
from torch_linformer.encoders.options import LinearOptions
from torch_linformer.encoders.positions import Positions
from torch_linformer.opening import processes
from torch_linformer.opening.checkpoints import Spent
from torch_linformer.opening.compiling import compile_backbone, require_compiler
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.run_folder import begin_run, identity, shared_run
from torch_linformer.opening.summary import attention_of
from torch_linformer.reporting.tables import format_count
from torch_linformer.training.fitting import fit
from torch_linformer.training.step_costs import (
    LINEAR,
    ModelStep,
    StepCost,
    measure_beside_full_attention,
    measure_steps,
)
from torch_linformer.training.trainer import run_arguments
from torch_linformer.training.training_screen import TrainingScreen

EVALUATIONS = 10  # on the validation texts, in the whole distillation
MOST_PASSES = 10  # over the texts, where only --minutes ends the distillation
MOST_STEPS_UNSCORED = 100  # and without a checkpoint
COST_LENGTHS = (128, 512, 2048, 4096, 8192)


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
    processes.join(device, settings.batch_size, fsdp=settings.fsdp, command="adapt")
    screen = screen or TrainingScreen()
    output = Path(settings.output or Path("runs") / f"{Path(source).absolute().name}-linformer")
    run = {**identity(settings), "source": source}
    with shared_run(output, run, resume, screen, RESULT) as (checkpoint, finished):
        if finished:
            screen.say(f"{output} holds this adaptation already, and it is finished; remove the folder to run it again")
        else:
            cast(Any, transformers.logging).set_verbosity_error()
            cast(Any, transformers.logging).disable_progress_bar()
            original = load_encoder(source, settings.task, settings.seed, settings.trust_remote_code)
            train, test, notes = processes.on_main(lambda: read_documents(original.objective, settings))
            for note in notes:
                screen.say(note)
            digest = processes.on_main(lambda: content_digest({"training": train, "test": test}))
            processes.on_main(lambda: begin_run(output, run, digest, checkpoint))
            adaptation = Adaptation(original, train, test, settings, screen)
            outcome = adaptation.outcome(adaptation.distil(output, checkpoint), command)
            if processes.is_main():
                write_adapted(outcome, output)
                show_adapted(outcome, output, screen)
    return output


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
        self.student = build_student(original.model, settings, max_length, marks) if student is None else student
        self.student.config.pooling = self.objective.pooling
        self.texts = processes.on_main(lambda: prepare_texts(train, test, encoder, settings, screen))
        around = replace(marks, before=marks.before + encoder.prompt_tokens)  # of each of the teacher's windows
        self.teacher = Teacher(original.model, min(original.longest, max_length), around)
        for module in (self.student, self.teacher.model):
            cast(nn.Module, module).to(self.device)
        if settings.compile:
            compile_backbone(self.teacher.model, self.device)
            screen.say(compile_backbone(self.student, self.device, training=True))
        screen.say(
            f"{original.path}: {format_count(self.student.num_parameters())} parameters, reads {original.longest:,} "
            f"tokens, --task {self.objective.name}; the student {max_length:,}, with "
            f"{attention_of(self.student.config)}; {self.device}, {self.precision}"
        )
        self.validation, self.test = (
            TeacherComparison(self.teacher, self.objective, *part, settings.batch_size, self.precision)
            for part in (self.texts.validation, self.texts.test)
        )
        self._positions = Positions.of(cast(PreTrainedModel, self.student.base_model))
        self.start = self.test.scores(self.student)
        start = score_line(self.objective.titles, self.start, len(self.texts.test.windows))
        screen.say(f"before any training: {start}")

    def distil(self, output: Path, checkpoint: Path | None = None) -> Spent:
        """Train the student, with checkpoints in ``output``; it ends with its best weights."""
        self.trainer = self._trainer(output)
        return fit(self.trainer, output, checkpoint, self.screen)

    def outcome(self, spent: Spent, command: str) -> Adapted:
        """Compare and measure the trained student."""
        self.screen.say("scoring the test texts")
        return Adapted(
            source=self.original,
            settings=self.settings,
            command=command,
            model=self.student,
            original=self.test.of_the_original(),
            start=self.start,
            end=self.test.scores(self.student),
            alone=self._without_slots(),
            tradeoff=self._tradeoff(),
            history=self.trainer.state.log_history,
            costs=processes.on_main(self._costs),
            texts=(len(self.texts.train), len(self.texts.test.windows)),
            warnings=self.warnings,
            spent=spent,
            device=self.device,
            precision=self.precision,
        )

    def _trainer(self, output: Path) -> DistillationTrainer:
        settings = self.settings
        passes = MOST_PASSES * -(-len(self.texts.train) // settings.batch_size)
        steps = settings.steps or (passes if settings.minutes else STEPS)
        arguments = run_arguments(
            output,
            steps=steps,
            batch_size=settings.batch_size,
            learning_rate=settings.learning_rate,
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
            slot_learning_rate=settings.slot_learning_rate,
            fsdp=settings.fsdp,
        )

    @property
    def options(self) -> LinearOptions:
        """Those of the student."""
        options: LinearOptions = self.student.config.linear_options
        return options

    def _without_slots(self) -> WithoutSlots | None:
        """The trained student with its slots taken out; None where they are all that it has, or where it has none."""
        options = self.options
        if options.window is None or options.k == 0:
            return None
        alone = with_options(self.student, replace(options, k=0))
        self.screen.say(f"scoring the model without its slots, on texts of up to {options.max_length:,} tokens")
        steps = [self._forward_of(model, options.max_length) for model in (alone, self.student)]
        costs = processes.on_main(lambda: measure_steps(steps))
        return WithoutSlots(self.test.scores(alone), *costs)

    def _tradeoff(self) -> list[Tradeoff]:
        """The trained weights with other K, which means allow: they have no weights that depend on it."""
        options = self.options
        if options.projection != "mean" or options.k == 0:
            return []
        length, k = options.max_length, options.k
        self.screen.say(f"scoring the same weights with other K, on the validation texts and at {length:,} tokens")
        by_k = {
            slots: with_options(self.student, replace(options, k=slots))
            for slots in (k // 4, k // 2, k, 2 * k, 4 * k)
            if 1 <= slots <= length
        }
        steps = [self._forward_of(other, length) for other in by_k.values()]
        costs = processes.on_main(lambda: measure_steps(steps))
        return [
            Tradeoff(slots, self.validation.scores(other), cost)
            for (slots, other), cost in zip(by_k.items(), costs, strict=True)
        ]

    def _costs(self) -> dict[int, tuple[StepCost | None, StepCost | None]]:
        """What a text of each length costs the student, and the same model with full attention."""
        costs = {}
        for length in COST_LENGTHS:
            self.screen.say(f"comparing the speed with full attention at {length:,} tokens")
            costs[length] = measure_beside_full_attention(self._forward_of(self.student, length))
        return costs

    def _forward_of(self, model: LinearEncoder, length: int) -> ModelStep:
        """A forward pass of an encoder with enough positions over one text."""
        options = model.config.linear_options
        longer = replace(options, max_length=max(length, options.max_length))
        config = model.config.with_options(longer, self._positions).to_dict()
        return ModelStep(LINEAR, config, 1, length, self.device, self.precision, training=False)

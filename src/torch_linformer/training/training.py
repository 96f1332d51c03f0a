"""A training run: its documents, its model and its Trainer, from the first word to what came out."""

import dataclasses
import math
import time
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, cast

import numpy as np

from torch_linformer.distributed import processes
from torch_linformer.distributed.context_parallel import check_takes_pieces
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForSequenceClassification, LinformerPreTrainedModel
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.devices import compile_backbone, resolve_device, resolve_precision
from torch_linformer.opening.folder import Spent
from torch_linformer.opening.named_encoders import is_installed
from torch_linformer.reporting.tables import format_count
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.tasks.whole_documents import WholeDocuments
from torch_linformer.training.describing import describe_model
from torch_linformer.training.document_parts import DocumentParts, Weighed
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.encoder_baselines import embedder_baselines
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.fitting import fit
from torch_linformer.training.frozen_search import FrozenSearch, learn_search
from torch_linformer.training.initial_model import build_model, has_new_head
from torch_linformer.training.micro_batches import few_steps, fit_micro_batches
from torch_linformer.training.model_settings import BEGIN_PRETRAINED, PRETRAINED
from torch_linformer.training.new_model import add_latent_semantics
from torch_linformer.training.prepared import EVALUATIONS, prepare
from torch_linformer.training.run_report import Outcome
from torch_linformer.training.search_parts import weigh_vectors
from torch_linformer.training.splits import Splits
from torch_linformer.training.step_costs import ModelStep, measure_beside_full_attention, step_of
from torch_linformer.training.task_trainers import RetrievalTrainer, trainer_for
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.trainer import run_arguments
from torch_linformer.training.training_screen import TrainingScreen
from torch_linformer.training.verdict import Weighing


class Training:
    """Documents read and tokenized, and the model that is to learn from them; :meth:`learn` trains it.

    Args:
        settings: the options.
        output: folder for checkpoints.
        read_splits: reads the documents, in the main process only.
        screen: where progress is shown.
        checkpoint: that the run goes on from.

    Attributes:
        settings: completed by the first model, if there is one.
        data: what it trains on and is scored on, with the task and the tokenizer.
        model: as it is before the first step, and after :meth:`learn` as it is at the end.

    Raises:
        InputError: for anything wrong with the settings or the data.
    """

    def __init__(
        self,
        settings: TrainSettings,
        output: Path,
        read_splits: Callable[[TrainSettings], Splits],
        screen: TrainingScreen,
        checkpoint: Path | None = None,
    ) -> None:
        self.output, self.screen, self.checkpoint = output, screen, checkpoint
        self.device = resolve_device(settings.device)
        self.precision = resolve_precision(settings.precision, self.device)
        self.first = FirstModel.of(settings)
        if self.first is not None:
            settings = self.first.complete(settings)
        if settings.context_parallel > 1 or settings.frozen:  # nobody makes a step alone, of whole rows
            settings = dataclasses.replace(settings, probe=False)
        self.settings = settings
        self.rows, self.spent, self.history = settings.batch_size, Spent(), list[dict[str, Any]]()
        self.data = processes.on_main(lambda: prepare(settings, self.first, read_splits(settings), checkpoint, screen))
        self.task = self.data.task
        self.model = build_model(settings, self.first, self.task, self.data.tokenizer, self.data.splits, screen.say)
        if settings.context_parallel > 1:
            try:
                check_takes_pieces(self.model)
            except ValueError as error:
                raise InputError(f"--context-parallel {settings.context_parallel}: {error}") from None
        describe_model(self.model, settings, self.device, self.precision, screen)
        if self.first is None and settings.task in BEGIN_PRETRAINED and not is_installed(PRETRAINED):
            screen.say(
                "no pretrained encoder beside the words, which is better on most sets (docs/choose.md): "
                f'pip install "torch-linformer[{PRETRAINED}]", or name one with --from'
            )

    @cached_property
    def trainer(self) -> DocumentTrainer:
        """The Trainer of the run."""
        settings, rows = self.settings, self.task.training_rows(self.data.train)
        arguments = run_arguments(
            self.output,
            steps=settings.steps(len(rows)),
            batch_size=settings.batch_size,
            learning_rate=settings.peak_rate,
            seed=settings.seed,
            device=self.device,
            precision=self.precision,
            evaluations=EVALUATIONS,
            best=self.task.best_metric,
            larger_is_better=self.task.larger_is_better,
            weight_decay=0.05,
            label_smoothing_factor=settings.label_smoothing,
            report_to=settings.report_to,
        )
        # Slots of an encoder that reads all rows of a batch exactly, and the pooler of one that makes vectors.
        of_encoder = isinstance(self.model, LinearEncoder) or isinstance(self.model.base_model, EncoderBackbone)
        arguments.ddp_find_unused_parameters = of_encoder
        return trainer_for(self.task, self.model)(
            model=self.model,
            args=arguments,
            task=self.task,
            train_dataset=rows,
            validation=self.data.validation,
            processing_class=self.data.tokenizer,
            minutes=settings.minutes,
            patience=settings.patience or None,
            fsdp=settings.fsdp,
        )

    def step(self, rows: int) -> ModelStep:
        """A step of so many of the longest rows, to be measured in a process of its own."""
        settings = self.settings
        return step_of(self.model, rows, settings.length, self.device, self.precision, training=not settings.frozen)

    def learn(self, command: str) -> Outcome | None:
        """Train the model, and score it on documents that it never saw; the main process returns what came out.

        Args:
            command: the command line, for the report.
        """
        self._begin()
        settings, weighed, lexical, search = self.settings, None, None, None
        if isinstance(self.task, Retrieval):
            self.task.vectors.to(self.device)
        if isinstance(self.task, WholeDocuments):
            weighed = self._learn_documents()
            scores = weighed.scores[weighed.shipped]
        elif isinstance(self.task, Retrieval) and settings.freeze:
            search = self._search()
            self.spent, lexical = search.spent, search.weighing
        else:
            self._fit()
            lexical = self._weigh_lexical_part()
        if weighed is None:
            scores = self.trainer.scores_of(self.data.test) if lexical is None else lexical.scores
        if not processes.is_main():
            return None
        settings = self.settings  # there may have been no time for a training
        measured = {"the baselines": settings.baseline, "the speed of a training step": settings.probe}
        if any(measured.values()):
            self.screen.say(f"measuring {' and '.join(name for name, is_wanted in measured.items() if is_wanted)}")
        baselines = self._baselines(search) if settings.baseline else {}
        self.task.finish(self.model)  # numbers are in the unit of the documents from here on
        return Outcome(
            settings=settings,
            command=command,
            splits=self.data.splits,
            model=self.model,
            tokenizer=self.data.tokenizer,
            task=self.task,
            scores=scores,
            weighed=weighed,
            lexical=lexical,
            baselines=baselines,
            variants=search.variants if search else {},
            hits=search.hits if search else [],
            costs=measure_beside_full_attention(self.step(self.rows)) if settings.probe else None,
            history=self.history,
            num_tokens=self.data.train.num_tokens,
            spent=self.spent,
            device=self.device,
            precision=self.precision,
        )

    def _learn_documents(self) -> Weighed:
        """Learn what documents as a whole are: by words and a reader, or a network that is trained."""
        settings, began = self.settings, time.monotonic()
        model = cast(LinformerForSequenceClassification, self.model)
        self.parts = DocumentParts(settings, self.data, model, self.device, self.precision, self.screen)
        if settings.frozen:
            weighed = self.parts.learned(None, reads=True)
            tokens = sum(int(np.sum(part.windows["length"][:])) for part in (self.data.train, self.data.validation))
            self.spent = Spent(time.monotonic() - began, tokens)
            return weighed

        reads = self._has_new_head and processes.count() == 1

        def train() -> DocumentTrainer | None:
            return self.trainer if self._fit(is_needed=not reads) else None

        return self.parts.learned(train, reads=reads)

    def _begin(self) -> None:
        """Give a new model its word embeddings, compile the model, and say what comes after the training."""
        settings = self.settings
        # A checkpoint has its embeddings, and other processes get theirs from the main one's when the training begins.
        if settings.begins_with_lsa and self.checkpoint is None and processes.is_main():
            own, rows = cast(LinformerPreTrainedModel, self.model), self.data.train.windows
            add_latent_semantics(own, rows, peak_rate=settings.peak_rate, seed=settings.seed)
        if settings.compile:
            self.screen.say(compile_backbone(self.model, self.device, training=True))
        if settings.minutes is not None:
            after = [f"scores of {format_count(len(self.data.splits.test))} test documents"]
            after += ["baselines (--no-baseline)"] * settings.baseline + ["speed test (--no-probe)"] * settings.probe
            self.screen.say(f"--minutes {settings.minutes:g} is for the training; then: {', '.join(after)}")

    def _fit(self, *, is_needed: bool = True) -> bool:
        """Train the weights that are not frozen; not where that is needless and the time is too short for it."""
        settings, trainer = self.settings, self.trainer
        if settings.context_parallel == 1 and not settings.fsdp:  # else nobody makes a step alone, of all weights
            size = fit_micro_batches(trainer)
            self.screen.say(size.describe())
            self.rows = size.texts_at_once
            most, number = trainer.args.max_steps, processes.count()
            if settings.minutes and (few := few_steps(settings.minutes, size.seconds, size.texts, number, most)):
                self.screen.say(few if is_needed else f"{few}; the encoder stays as it is")
                if not is_needed:  # then a step of the training is nothing to measure
                    self.settings = dataclasses.replace(settings, probe=False)
                    return False
        fitted = processes.count() == 1 and self._has_new_head
        self.spent = fit(trainer, self.output, self.checkpoint, self.screen, score_first=fitted)
        self.history = trainer.state.log_history
        return True

    def _search(self) -> FrozenSearch:
        """What is learned of documents that an encoder reads once."""
        settings, data = self.settings, self.data
        return learn_search(
            cast(RetrievalTrainer, self.trainer),
            data.train,
            data.validation,
            data.test,
            cast(FirstModel, self.first).source,
            self.screen,
            width=settings.lexical_width,
            words=settings.lexical,
            seconds=60 * (settings.minutes or math.inf),
            compared=settings.baseline,
        )

    @property
    def _has_new_head(self) -> bool:
        """Whether another model has become a classifier whose head knows nothing yet."""
        return self.first is not None and has_new_head(self.first.config, self.task, cast(Any, self.model.config))

    def _weigh_lexical_part(self) -> Weighing | None:
        """Keep what reads words in vectors where the validation documents are better for it."""
        settings, data, task = self.settings, self.data, self.task
        if not (settings.with_lexical_part and isinstance(task, Retrieval)):
            return None
        self.screen.say("fitting the lexical part of vectors and weighing it")
        trainer, parts = cast(RetrievalTrainer, self.trainer), (data.splits.train, data.validation, data.test)
        return weigh_vectors(
            trainer, *parts, settings.lexical_width, self.screen.say, always=settings.lexical == "always"
        )

    def _baselines(self, search: FrozenSearch | None) -> dict[str, dict[str, Any]]:
        """What the model must beat, which of an encoder is also what it was before."""
        splits, seed = self.data.splits, self.settings.seed
        baselines = self.task.baselines(splits.train, splits.validation, splits.test, seed)
        if search is not None and search.baselines:
            baselines |= search.baselines
        elif self.first is not None and isinstance(self.task, Retrieval):
            baselines |= embedder_baselines(self.first.source, splits.test, self.device, self.precision)
        if isinstance(self.task, WholeDocuments):
            baselines |= self.parts.baselines()
        return baselines

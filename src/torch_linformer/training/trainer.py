"""The Trainer of transformers with what a long, interruptible run needs in addition."""

import math
import signal
import time
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments

from torch_linformer.errors import InputError
from torch_linformer.opening.checkpoints import Spent, checkpoints, read_spent, seal
from torch_linformer.training.length_grouping import LengthGroupedSampler
from torch_linformer.training.training_screen import TrainingScreen

WARMUP = 0.1  # share of the training over which the learning rate rises
CHECKPOINTS = 10  # at least, over the time that --minutes allows; steps may take any time


class Interrupted(Exception):
    """The user pressed Ctrl-C and a checkpoint has been left."""


class RunTrainer(Trainer):
    """Trainer whose order is fixed by (seed, epoch), whose rate follows the clock too, and which counts tokens.

    It stops after ``minutes``, or after ``patience`` evaluations in a row that were no better than the best before;
    None means that it does not. Batches have an ``attention_mask``, and the documents a column ``length``. A run that
    diverges ends with an ``InputError`` before such weights are saved.
    """

    def __init__(self, *, minutes: float | None = None, patience: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.patience = patience
        self.seconds_allowed = None if minutes is None else minutes * 60
        self.before = Spent()  # by processes that trained this run earlier
        self.tokens = torch.zeros((), dtype=torch.long, device=self.args.device)
        self.started: float | None = None  # the clock runs from the first step on

    @property
    def seconds(self) -> float:
        """Time the training took so far."""
        return self.before.seconds + (0.0 if self.started is None else time.monotonic() - self.started)

    @property
    def spent(self) -> Spent:
        """Time and tokens the training took so far."""
        return Spent(self.seconds, self.before.tokens + int(self.tokens))

    @property
    def out_of_patience(self) -> bool:
        """Whether too many evaluations were no better; told by the history, which a checkpoint has too."""
        name = f"eval_{self.args.metric_for_best_model}"
        scores = [entry[name] for entry in self.state.log_history if name in entry]
        if self.patience is None or not scores:
            return False
        best = (max if self.args.greater_is_better else min)(scores)
        return len(scores) - 1 - scores.index(best) >= self.patience

    def progress(self, step: int) -> float:
        """Share of the training that is done, by steps or by the clock, whichever is further."""
        by_steps = step / max(1, self.state.max_steps)
        by_clock = 0.0 if self.seconds_allowed is None else self.seconds / self.seconds_allowed
        return min(1.0, max(by_steps, by_clock))

    def create_scheduler(self, num_training_steps: int, optimizer: Optimizer | None = None) -> LambdaLR:
        """Linear warm-up, then linear decay to 0 at the last step or at the end of the time."""

        def rate(step: int) -> float:
            done = self.progress(step)
            begun = max(done, (step + 1) / num_training_steps)  # the first step has a rate above 0
            return min(begun / WARMUP, (1 - done) / (1 - WARMUP), 1.0)

        optimizer = self.optimizer if optimizer is None else optimizer
        assert optimizer is not None
        scheduler = self.lr_scheduler = LambdaLR(optimizer, rate)
        return scheduler

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        self.tokens += inputs["attention_mask"].sum().to(self.tokens.device)
        loss = super().training_step(model, inputs, *args, **kwargs)
        # The loss of a batch with nothing to learn is NaN too, and harmless; fp16 skips steps of its own accord.
        if not self.args.fp16 and not loss.isfinite() and not _all_finite(p.grad for p in model.parameters()):
            raise self.diverged(f"the loss is {loss:g}", self.state.global_step + 1)
        return loss

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        loss, logits, labels = super().prediction_step(*args, **kwargs)
        trained = self.state.global_step > 0  # and not only scored
        if trained and loss is not None and not loss.isfinite() and not _all_finite(logits):
            raise self.diverged(f"the validation loss is {loss:g}", self.state.global_step)
        return loss, logits, labels

    def check_weights(self) -> None:
        """Raise ``InputError`` where a weight is not finite."""
        if not _all_finite(cast(nn.Module, self.model).parameters()):
            raise self.diverged("weights are no longer finite", self.state.global_step)

    def diverged(self, what: str, step: int) -> InputError:
        """The error that ends a run which diverged."""
        output = Path(str(self.args.output_dir))
        elsewhere = f" and name another --output: {output} keeps checkpoints of before" if checkpoints(output) else ""
        return InputError(
            f"the training diverged at step {step} of {self.state.max_steps}: {what}; "
            f"lower --learning-rate, now {self.args.learning_rate:g}{elsewhere}"
        )

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        return LengthGroupedSampler(dataset["length"][:], self.args.train_batch_size, self.args.seed)


def _all_finite(tensors: Any) -> bool:
    """Whether a tensor, or any number of them, has only finite numbers; None has."""
    if tensors is None or isinstance(tensors, Tensor):
        return tensors is None or bool(tensors.isfinite().all())
    return all(map(_all_finite, tensors))


def run_arguments(
    output: Path, *, steps: int, evaluations: int, best: str | None, larger_is_better: bool, **more: Any
) -> TrainingArguments:
    """Arguments of a run that is scored, and leaves a checkpoint, ``evaluations`` times; ``best`` picks among them.

    ``more`` are those of :func:`quiet_arguments`, among them ``learning_rate`` and ``seed``.
    """
    interval = max(1, -(-steps // evaluations))
    return quiet_arguments(
        output,
        max_steps=steps,
        eval_strategy="steps",
        eval_steps=interval,
        save_strategy="steps",
        save_steps=interval,
        save_total_limit=2,
        metric_for_best_model=best,
        greater_is_better=larger_is_better,
        logging_steps=max(1, interval // 5),
        **more,
    )


def quiet_arguments(output: Path, *, batch_size: int, device: str, precision: str, **more: Any) -> TrainingArguments:
    """Arguments of a Trainer that prints nothing and keeps all columns of its data."""
    return TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=device == "cpu",
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
        **more,
    )


def fit(trainer: RunTrainer, output: Path, checkpoint: Path | None, screen: TrainingScreen) -> Spent:
    """Train, or go on; the best weights are in the model afterwards. Returns what the training took."""
    callback = RunCallback(trainer, screen)
    trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    if checkpoint is not None:
        trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        trainer.before = read_spent(checkpoint)
    if checkpoint is None or (trainer.state.global_step < trainer.args.max_steps and not trainer.out_of_patience):
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


def precision_of(arguments: TrainingArguments) -> str:
    """The precision that a Trainer computes in."""
    return "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32"


class RunCallback(TrainerCallback):
    """Shows progress, seals checkpoints, ends the run with the time, and leaves a checkpoint on Ctrl-C."""

    def __init__(self, trainer: RunTrainer, screen: TrainingScreen) -> None:
        self.trainer, self.screen = trainer, screen
        self.interrupted = False
        self.loss: float | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.trainer.started = self.saved = time.monotonic()
        self.screen.start(state.global_step, state.max_steps)
        self.previous_handler = signal.signal(signal.SIGINT, self._interrupt)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        set_epoch = getattr(self.trainer.data_collator, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(int(state.epoch or 0))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step >= state.max_steps or self.trainer.progress(state.global_step) >= 1:
            control.should_evaluate = control.should_save = control.should_training_stop = True
        if self.interrupted or self._checkpoint_is_due():
            control.should_save = True
        if control.should_save:
            self.trainer.check_weights()
        if self.screen.is_due():
            spent, done = self.trainer.spent, self.trainer.progress(state.global_step)
            self.screen.step(state.global_step, done, self.loss, spent.tokens_per_second, spent.seconds)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        self.loss = (logs or {}).get("loss", self.loss)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        self.screen.evaluated(state.global_step, metrics or {})
        best = f"eval_{args.metric_for_best_model}"
        if math.isnan((metrics or {}).get(best, 0.0)):
            raise self.trainer.diverged(f"{best.removeprefix('eval_')} of the validation is nan", state.global_step)
        if self.trainer.out_of_patience and state.global_step < state.max_steps:
            control.should_training_stop = True
            self.screen.say(
                f"stopping at step {state.global_step} of {state.max_steps}: the last {self.trainer.patience} "
                "evaluations were no better (--patience)"
            )

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seal(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", self.trainer.spent)
        self.saved = time.monotonic()
        if self.interrupted:
            raise Interrupted

    def close(self) -> None:
        """Restore Ctrl-C and the screen, however the training ended."""
        if hasattr(self, "previous_handler"):
            signal.signal(signal.SIGINT, self.previous_handler)
        self.screen.stop()

    def _checkpoint_is_due(self) -> bool:
        allowed = self.trainer.seconds_allowed
        return allowed is not None and time.monotonic() - self.saved >= allowed / CHECKPOINTS

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.interrupted:
            raise KeyboardInterrupt
        self.interrupted = True
        self.screen.say("Ctrl-C: leaving a checkpoint after this step (Ctrl-C again to stop without one)")

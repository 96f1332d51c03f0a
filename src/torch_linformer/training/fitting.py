"""A run's training, from its first step or its last checkpoint to the best weights; interruptible."""

import math
import signal
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from safetensors.torch import load_model
from torch import nn
from transformers import PrinterCallback, TrainerCallback, TrainerState

from torch_linformer.distributed import processes
from torch_linformer.errors import Stopped
from torch_linformer.opening.folder import Spent, is_whole, read_spent, seal
from torch_linformer.training.trainer import Dropped, RunTrainer
from torch_linformer.training.training_screen import TrainingScreen

CHECKPOINTS = 10  # at least, over the time that --minutes allows; steps may take any time
EVALUATING = 0.1  # share of that time, at most, in which these are scored
UNSCORED = "unscored"  # a file of a checkpoint whose evaluation a signal has dropped
SAME_SIGNAL = 1.0  # seconds in which a second one is the first again: torchrun and timeout pass on what all get

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a cluster that ends a job, a closed terminal


class Interrupted(Exception):
    """The user pressed Ctrl-C, or another signal came, and a checkpoint has been left.

    Attributes:
        signum: the number of the signal.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(
            f"stopped by {signal.Signals(signum).name}; resume=True goes on from the checkpoint that is left"
        )
        self.signum = signum


def fit(
    trainer: RunTrainer, output: Path, checkpoint: Path | None, screen: TrainingScreen, *, score_first: bool = False
) -> Spent:
    """Train, or go on; the best weights are in the model afterwards. Returns what the training took.

    With ``score_first`` those after the first small step compete, as of a model that knows something before it.
    """
    callback = RunCallback(trainer, screen, score_first)
    trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    if checkpoint is not None:
        trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        trainer.before = read_spent(checkpoint)
        callback.lost = processes.on_main(lambda: _lost_best(trainer.state, output))
        if callback.lost is not None:
            screen.say(f"{callback.lost}, with the best weights so far, is damaged: the best from here on are kept")
            _forget_best(trainer.state)
    if not processes.is_main():
        torch.manual_seed(trainer.args.seed + processes.rank())  # other dropout than in other rows
    if processes.count() > 1:
        screen.say(f"{processes.count()} processes, each with {', '.join(_shares(trainer))}")
    if checkpoint is not None and processes.on_main(lambda: (checkpoint / UNSCORED).exists()):
        callback.make_up_evaluation(checkpoint)
    weights = checkpoint  # of a training that is over
    if checkpoint is None or (trainer.state.global_step < trainer.args.max_steps and not trainer.reason_to_stop):
        weights = None  # those that the model has
        try:
            trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        except Dropped:
            callback.leave_checkpoint()
        finally:
            callback.close()
        trainer.put_together()
        if signum := max(processes.gathered(trainer.stop_signal)):  # after the last checkpoint
            raise Interrupted(signum)
    spent = trainer.spent
    best = trainer.state.best_model_checkpoint
    weights = weights if best is None else output / Path(best).name
    if weights is not None:
        load_model(cast(nn.Module, trainer.model), weights / "model.safetensors")
    return spent


def _lost_best(state: TrainerState, output: Path) -> Path | None:
    """The checkpoint with the best weights of a training that goes on, if it is no longer whole."""
    best = output / Path(state.best_model_checkpoint).name if state.best_model_checkpoint else None
    return None if best is None or is_whole(best) else best


def _forget_best(state: TrainerState) -> None:
    state.best_model_checkpoint = state.best_metric = state.best_global_step = None


def _shares(trainer: RunTrainer) -> list[str]:
    """What each of several processes has of a training."""
    rows, pieces = trainer.args.train_batch_size, processes.pieces()
    parts = processes.count() // pieces
    shares = [f"{rows // parts} of the {rows} rows of a batch"] if parts > 1 else []
    shares += [f"1/{pieces} of every row"] if pieces > 1 else []
    return shares + ([f"1/{processes.count()} of every weight"] if trainer.fsdp else [])


class RunCallback(TrainerCallback):
    """Shows progress, seals checkpoints, ends the run with the time, and leaves a checkpoint on a signal."""

    def __init__(self, trainer: RunTrainer, screen: TrainingScreen, score_first: bool = False) -> None:
        self.trainer, self.screen, self.score_first = trainer, screen, score_first
        self.former_handlers: dict[signal.Signals, Any] = {}
        self.loss: float | None = None
        self.lost: Path | None = None  # the damaged checkpoint that the state which is gone on from calls the best
        self.stepped = 0.0  # when the last step was over
        self.stopped = 0.0  # when the first signal came
        self.random_states: list[torch.Tensor] = []  # after the last step, or before the first one of an epoch
        self.epoch_begins = False
        self.score_again = 0.0  # the time of the training at which that takes no more than its share again

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.lost is not None:
            _forget_best(state)
        self.trainer.started = time.monotonic()
        self.saved = self.trainer.seconds
        self.screen.start(state.global_step, state.max_steps)
        heeded = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup
        if threading.current_thread() is not threading.main_thread():  # where Python takes no signals
            heeded = []
        self.former_handlers = {number: signal.signal(number, self._interrupt) for number in heeded}

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        set_epoch = getattr(self.trainer.data_collator, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(int(state.epoch or 0))
        self.random_states, self.epoch_begins = _random_states(args.device), True

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.epoch_begins:  # else the order of its batches is drawn already
            self.random_states = _random_states(args.device)
        self.epoch_begins = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.stepped = time.monotonic()
        if state.global_step >= state.max_steps or self.trainer.progress(state.global_step) >= 1:
            control.should_evaluate = control.should_save = control.should_training_stop = True
        if self.score_first and state.global_step == 1:
            control.should_evaluate = control.should_save = True
        if self._checkpoint_is_due():
            control.should_save = True
            control.should_evaluate = control.should_evaluate or self.trainer.seconds >= self.score_again
        if self.trainer.stopping:
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
        took = processes.on_main(lambda: time.monotonic() - self.stepped)
        self.score_again = self.trainer.seconds + took / EVALUATING
        best = f"eval_{args.metric_for_best_model}"
        if math.isnan((metrics or {}).get(best, 0.0)):
            raise self.trainer.diverged(f"{best.removeprefix('eval_')} of the validation is nan", state.global_step)
        reason = self.trainer.reason_to_stop
        if reason and state.global_step < state.max_steps:
            control.should_training_stop = True
            self.screen.say(f"stopping at step {state.global_step} of {state.max_steps}: {reason}")

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        processes.wait()  # each has files of its own there
        if processes.is_main():
            seal(Path(str(args.output_dir)) / f"checkpoint-{state.global_step}", self.trainer.spent)
        processes.wait()
        self.saved = self.trainer.seconds
        if self.trainer.stopping:
            raise Interrupted(self.trainer.stop_signal or signal.SIGTERM)  # another process got it

    def leave_checkpoint(self) -> None:
        """Leave one of the last step, where a signal has dropped the next one, or the evaluation after it."""
        trainer, unscored = self.trainer, self.trainer.control.should_evaluate
        checkpoint = Path(str(trainer.args.output_dir)) / f"checkpoint-{trainer.state.global_step}"
        if not processes.on_main(lambda: is_whole(checkpoint)):
            if not unscored:
                torch.set_rng_state(self.random_states[0])
                for state in self.random_states[1:]:
                    torch.cuda.set_rng_state(state, trainer.args.device)
            trainer._save_checkpoint(cast(nn.Module, trainer.model), trial=None)
            if unscored:
                (checkpoint / UNSCORED).touch()
            self.on_save(trainer.args, trainer.state, trainer.control)
        raise Interrupted(max(processes.gathered(trainer.stop_signal)))

    def make_up_evaluation(self, checkpoint: Path) -> None:
        """Score what a checkpoint has, as if no signal had come, before the training goes on from it."""
        trainer, state = self.trainer, self.trainer.state
        load_model(cast(nn.Module, trainer.model), checkpoint / "model.safetensors")
        self.stepped = time.monotonic()
        if trainer._determine_best_metric(trainer.evaluate(), trial=None):
            state.best_model_checkpoint = str(checkpoint)
        if processes.is_main():
            (checkpoint / UNSCORED).unlink()
            state.save_to_json(str(checkpoint / "trainer_state.json"))
            seal(checkpoint, trainer.before)
        processes.wait()

    def close(self) -> None:
        """Restore what signals do, and the screen, however the training ended."""
        for number, handler in self.former_handlers.items():
            signal.signal(number, handler)
        self.screen.stop()

    def _checkpoint_is_due(self) -> bool:
        allowed = self.trainer.seconds_allowed
        return allowed is not None and self.trainer.seconds - self.saved >= allowed / CHECKPOINTS

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.trainer.stop_signal:
            if time.monotonic() - self.stopped < SAME_SIGNAL:
                return
            raise Stopped(signum)
        self.trainer.stop_signal, self.stopped = signum, time.monotonic()
        if signum == signal.SIGHUP:
            self.screen.hang_up()
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        self.screen.say(f"{name}: leaving a checkpoint of the last step ({name} again ends at once, without it)")


def _random_states(device: torch.device) -> list[torch.Tensor]:
    """That of the CPU, and that of a CUDA device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]

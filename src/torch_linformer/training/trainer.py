"""The Trainer of transformers with what a long, interruptible run needs in addition.

:func:`fit` trains from the first step or the last checkpoint to the best weights.
"""

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, cast

import torch
from safetensors.torch import load_model
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainerState, TrainingArguments

from torch_linformer.distributed import processes
from torch_linformer.errors import InputError, Stopped
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.folder import Spent, checkpoints, is_whole, read_spent, seal
from torch_linformer.training.batches import LengthGroupedSampler
from torch_linformer.training.sharding import gather, shard, share_state, whole_state
from torch_linformer.training.training_screen import TrainingScreen

WARMUP = 0.1  # share of the training over which the learning rate rises
CHECKPOINTS = 10  # at least, over the time that --minutes allows; steps may take any time
EVALUATING = 0.1  # share of that time, at most, in which these are scored
UNSCORED = "unscored"  # a file of a checkpoint whose evaluation a signal has dropped
STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a cluster that ends a job, a closed terminal
SAME_SIGNAL = 1.0  # seconds in which a second one is the first again: torchrun and timeout pass on what all get


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


class Dropped(BaseException):
    """A signal has ended a step or an evaluation between two of its parts."""


class RunTrainer(Trainer):
    """Trainer whose order is fixed by (seed, epoch), whose rate follows the clock too, and which counts tokens.

    It stops after ``minutes``, or after ``patience`` evaluations in a row that were no better than the best before;
    None means that it does not. Batches have an ``attention_mask``, and the documents a column ``length``. A run that
    diverges ends with an ``InputError`` before such weights are saved.

    Several processes share each batch, and go by what they know alike: the clock of the main one, and the tokens,
    failures and signals of all. With ``fsdp`` they share the weights too while they train: ``pieces`` learns, and
    ``model`` waits on the CPU, gets the weights for each checkpoint, and has them when the training is over.

    Attributes:
        tokens_at_once: more of a batch, padding included, are computed in parts, with the gradients of the whole.
    """

    most_at_once = sys.maxsize  # the most ``tokens_at_once``, whatever the memory

    def __init__(
        self, *, minutes: float | None = None, patience: int | None = None, fsdp: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.fsdp = fsdp
        self.pieces: nn.Module | None = None
        self.tokens_at_once = self.most_at_once
        self.patience = patience
        self.seconds_allowed = None if minutes is None else minutes * 60
        self.before = Spent()  # by processes that trained this run earlier
        self.tokens = torch.zeros((), dtype=torch.long, device=self.args.device)
        self.started: float | None = None  # the clock runs from the first step on
        self.stop_signal = 0  # the number of the one that this process got, such as that of Ctrl-C
        # Of several processes: the main one's clock, and whether any got a signal, as of the last step.
        self.synced: tuple[float, bool] | None = None

    @property
    def clock(self) -> float:
        """Seconds the training took so far, as this process counts them."""
        return self.before.seconds + (0.0 if self.started is None else time.monotonic() - self.started)

    @property
    def seconds(self) -> float:
        """Those that all processes go by."""
        return self.clock if self.synced is None else self.synced[0]

    @property
    def stopping(self) -> bool:
        """Whether the training ends at the next checkpoint, because of a signal."""
        return bool(self.stop_signal) if self.synced is None else self.synced[1]

    @property
    def spent(self) -> Spent:
        return Spent(self.seconds, self.before.tokens + int(self.tokens), self.before.head_seconds)

    @property
    def reason_to_stop(self) -> str:
        """Why more training is of no use, if it is not; told by the history, which a checkpoint has too."""
        name = f"eval_{self.args.metric_for_best_model}"
        scores = [entry[name] for entry in self.state.log_history if name in entry]
        if self.patience is None or not scores:
            return ""
        best = (max if self.args.greater_is_better else min)(scores)
        tired = len(scores) - 1 - scores.index(best) >= self.patience
        return f"the last {self.patience} evaluations were no better (--patience)" if tired else ""

    def progress(self, step: int) -> float:
        """Share of the training that is done, by steps or by the clock, whichever is further."""
        done = step / max(1, self.state.max_steps)
        if self.seconds_allowed is not None:
            left = self.seconds_allowed - self.before.head_seconds
            done = max(done, self.seconds / left if left > 0 else 1.0)
        return min(1.0, done)

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

    def create_optimizer(self, model: nn.Module | None = None) -> Optimizer:
        if not self.fsdp:
            return self.optimizer_of(model)
        pieces = shard(cast(LinformerPreTrainedModel, self.model), self.args.device)
        self.pieces = self.accelerator.prepare_model(pieces, device_placement=False, evaluation_mode=True)
        optimizer = self.optimizer_of(self.pieces)
        optimizer.register_load_state_dict_pre_hook(share_state)
        return optimizer

    def optimizer_of(self, model: nn.Module | None) -> Optimizer:
        """A new optimizer of a model's weights; without one, of those of ``model``."""
        return super().create_optimizer(model)

    def _wrap_model(self, model: nn.Module, *args: Any, **kwargs: Any) -> nn.Module:
        return super()._wrap_model(model, *args, **kwargs) if self.pieces is None else self.pieces

    def save_model(self, *args: Any, **kwargs: Any) -> None:
        if self.pieces is not None:
            gather(self.pieces, cast(nn.Module, self.model))
        super().save_model(*args, **kwargs)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self.pieces is None:
            super()._save_optimizer_and_scheduler(output_dir)
            return
        optimizer: Optimizer = cast(Any, self.optimizer).optimizer
        state = whole_state(optimizer.state_dict())
        whole = optimizer.register_state_dict_post_hook(lambda *_: state)  # the main process alone asks for it
        super()._save_optimizer_and_scheduler(output_dir)
        whole.remove()

    @contextmanager
    def whole(self) -> Iterator[LinformerPreTrainedModel]:
        """``model`` with the weights learnt so far, where it computes; there, only meanwhile, if they are in pieces."""
        model = cast(LinformerPreTrainedModel, self.model)
        if self.pieces is not None:
            gather(self.pieces, model)
            cast(nn.Module, model).to(self.args.device)
        yield model
        if self.pieces is not None:
            model.cpu()

    def put_together(self) -> None:
        """Let ``model`` have the weights that were learnt in pieces, and these go."""
        if self.pieces is not None:
            gather(self.pieces, cast(nn.Module, self.model))
            self.pieces = self.optimizer = None
            self.model = self.model_wrapped = self.accelerator.prepare_model(self.model, evaluation_mode=True)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        tokens = inputs["attention_mask"].sum().to(self.tokens.device)
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.share_gradients()
        finite = bool(loss.isfinite())
        if processes.count() > 1:
            clock = self.clock if processes.is_main() else 0.0
            read = float(tokens) if processes.rank() % processes.pieces() == 0 else 0.0
            own = [clock, float(self.stop_signal), read, float(not finite)]
            seconds, stop, read, broken = processes.total(tokens.new_tensor(own, dtype=torch.float64)).tolist()
            self.synced, tokens, finite = (seconds, stop > 0), tokens.new_tensor(int(read)), broken == 0
        self.tokens += tokens
        # The loss of a batch with nothing to learn is NaN too, and harmless; fp16 skips steps of its own accord.
        if not self.args.fp16 and not finite and not self.finite_in_all(p.grad for p in model.parameters()):
            raise self.diverged(f"the loss is {loss:g}", self.state.global_step + 1)
        return loss

    def sum_in_turn(self, losses: Iterable[Callable[[], Tensor]]) -> Tensor:
        """The sum of the losses of a batch's parts, of which one at a time holds what its backward pass needs.

        The gradients of all but the last are there already; the Trainer computes those of what is returned.
        """
        total: Tensor | None = None
        for loss_of_part in losses:
            if total is not None:
                self.accelerator.backward(total)
            self.heed_signals(together=total is not None)
            loss = loss_of_part()
            total = loss if total is None else total.detach() + loss
        assert total is not None
        return total

    def heed_signals(self, *, together: bool = False) -> None:
        """Raise ``Dropped`` after a signal; one of several processes only where all ask ``together``."""
        if (together or processes.count() == 1) and max(processes.gathered(self.stop_signal)):
            raise Dropped

    def share_gradients(self) -> None:
        """Put the gradients of all processes together, where the backward pass has not done so."""

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        self.heed_signals()
        loss, logits, labels = super().prediction_step(*args, **kwargs)
        trained = self.state.global_step > 0  # and not only scored
        if trained and loss is not None and not self.finite_in_all(None if loss.isfinite() else logits):
            raise self.diverged(f"the validation loss is {loss:g}", self.state.global_step)
        return loss, logits, labels

    def finite_in_all(self, tensors: Any) -> bool:
        """Whether all processes have only finite numbers."""
        return not processes.total(torch.tensor(float(not _all_finite(tensors)), device=self.args.device))

    def diverged(self, what: str, step: int) -> InputError:
        """The error that ends a run which diverged."""
        output = Path(str(self.args.output_dir))
        elsewhere = f" and name another --output: {output} keeps checkpoints of before" if checkpoints(output) else ""
        return InputError(
            f"the training diverged at step {step} of {self.state.max_steps}: {what}; "
            f"lower --learning-rate, now {self.args.learning_rate:g}{elsewhere}"
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        loader: Any = super().get_train_dataloader()
        if (pieces := processes.pieces()) > 1:  # accelerate would give each process other rows
            share, parts = loader.batch_sampler, processes.count() // pieces
            share.num_processes, share.process_index, share.split_batches = parts, processes.rank() // pieces, parts > 1
        return cast("DataLoader[Any]", loader)

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int]:
        dataset: Any = self.train_dataset if train_dataset is None else train_dataset
        return LengthGroupedSampler(dataset["length"][:], self.args.train_batch_size, self.args.seed)


def _all_finite(tensors: Any) -> bool:
    """Whether a tensor, or any number of them, has only finite numbers; None has."""
    if isinstance(tensors, Tensor):
        own_part = tensors.to_local() if isinstance(tensors, DTensor) else tensors
        return bool(own_part.isfinite().all())
    return tensors is None or all(map(_all_finite, tensors))


def fit(
    trainer: RunTrainer, output: Path, checkpoint: Path | None, screen: TrainingScreen, *, score_first: bool = False
) -> Spent:
    """Train, or go on; the best weights are in the model afterwards. Returns what the training took.

    With ``score_first`` those after the first small step compete, as of a model that knows something before it.
    """

    def best_weights() -> Path | None:
        best = trainer.state.best_model_checkpoint
        return None if best is None else output / Path(best).name

    callback = RunCallback(trainer, screen, score_first)
    trainer.add_callback(callback)
    trainer.remove_callback(PrinterCallback)
    if checkpoint is not None:
        trainer.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        trainer.before = read_spent(checkpoint)
        best = best_weights()
        callback.lost_best = processes.on_main(lambda: best is not None and not is_whole(best))
        if callback.lost_best:
            screen.say(f"{best}, with the best weights so far, is damaged: the best from here on are kept")
            callback.forget_best(trainer.state)
    if not processes.is_main():
        torch.manual_seed(trainer.args.seed + processes.rank())  # other dropout than in other rows
    if (count := processes.count()) > 1:
        rows, pieces = trainer.args.train_batch_size, processes.pieces()
        shares = [f"{rows * pieces // count} of the {rows} rows of a batch"] * (count > pieces)
        shares += [f"1/{pieces} of every row"] * (pieces > 1) + [f"1/{count} of every weight"] * trainer.fsdp
        screen.say(f"{count} processes, each with {', '.join(shares)}")
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
    if weights := best_weights() or weights:
        load_model(cast(nn.Module, trainer.model), weights / "model.safetensors")
    return spent


class RunCallback(TrainerCallback):
    """Shows progress, seals checkpoints, ends the run with the time, and leaves a checkpoint on a signal."""

    def __init__(self, trainer: RunTrainer, screen: TrainingScreen, score_first: bool = False) -> None:
        self.trainer, self.screen, self.score_first = trainer, screen, score_first
        self.former_handlers: dict[signal.Signals, Any] = {}
        self.loss: float | None = None
        self.lost_best = False  # whether what the state that is gone on from calls the best is damaged
        self.stepped = 0.0  # when the last step was over
        self.stopped = 0.0  # when the first signal came
        self.random_states: list[torch.Tensor] = []  # after the last step, or before the first one of an epoch
        self.epoch_begins = False
        self.score_again = 0.0  # the time of the training at which that takes no more than its share again

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.lost_best:
            self.forget_best(state)
        self.trainer.started = time.monotonic()
        self.saved = self.trainer.seconds
        self.screen.start(state.global_step, state.max_steps)
        if threading.current_thread() is threading.main_thread():  # elsewhere Python takes no signals
            heeded = [number for number in STOPPING if signal.getsignal(number) is not signal.SIG_IGN]  # as by nohup
            self.former_handlers = {number: signal.signal(number, self._interrupt) for number in heeded}

    @staticmethod
    def forget_best(state: TrainerState) -> None:
        state.best_model_checkpoint = state.best_metric = state.best_global_step = None

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
        trainer, self.stepped = self.trainer, time.monotonic()
        done, allowed = trainer.progress(state.global_step), trainer.seconds_allowed
        over = state.global_step >= state.max_steps or done >= 1
        scored = over or (self.score_first and state.global_step == 1)
        by_clock = allowed is not None and trainer.seconds - self.saved >= allowed / CHECKPOINTS
        control.should_training_stop |= over
        control.should_evaluate |= scored or (by_clock and trainer.seconds >= self.score_again)
        control.should_save |= scored or by_clock or trainer.stopping
        weights = cast(nn.Module, trainer.pieces or trainer.model).parameters()
        if control.should_save and not trainer.finite_in_all(weights):
            raise trainer.diverged("weights are no longer finite", state.global_step)
        if self.screen.is_due():
            spent = trainer.spent
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

    def _interrupt(self, signum: int, frame: FrameType | None) -> None:
        if self.trainer.stop_signal and time.monotonic() - self.stopped < SAME_SIGNAL:
            return
        if self.trainer.stop_signal:
            raise Stopped(signum)
        self.trainer.stop_signal, self.stopped = signum, time.monotonic()
        if signum == signal.SIGHUP:
            self.screen.hang_up()
        name = "Ctrl-C" if signum == signal.SIGINT else signal.Signals(signum).name
        self.screen.say(f"{name}: leaving a checkpoint of the last step ({name} again ends at once, without it)")


def _random_states(device: torch.device) -> list[torch.Tensor]:
    """That of the CPU, and that of a CUDA device."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])]


def run_arguments(
    output: Path, *, steps: int, evaluations: int, best: str | None, larger_is_better: bool, **more: Any
) -> TrainingArguments:
    """Arguments of a run that is scored, and leaves a checkpoint, ``evaluations`` times; ``best`` picks among them.

    ``more`` are those of :func:`quiet_arguments`, among them ``learning_rate`` and ``seed``.
    """
    interval = max(1, -(-steps // evaluations))
    return quiet_arguments(
        output,
        run_name=output.name,
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


def quiet_arguments(
    output: Path, *, batch_size: int, device: str, precision: str, report_to: str | None = None, **more: Any
) -> TrainingArguments:
    """Arguments of a Trainer that prints nothing, keeps all columns of its data, and logs to a tracker, if any."""
    return TrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=device == "cpu",
        # Each process takes its share of a batch; where they share rows too, `get_train_dataloader` says which.
        accelerator_config={"split_batches": True} if processes.count() > 1 and processes.pieces() == 1 else None,
        ddp_find_unused_parameters=False,  # there are none
        disable_tqdm=True,
        report_to=report_to or "none",
        remove_unused_columns=False,
        **more,
    )


def precision_of(arguments: TrainingArguments) -> str:
    """The precision that a Trainer computes in."""
    return "bf16" if arguments.bf16 else "fp16" if arguments.fp16 else "fp32"

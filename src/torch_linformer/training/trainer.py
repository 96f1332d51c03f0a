"""The Trainer of transformers with what a long, interruptible run needs in addition."""

import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import DataLoader, Sampler
from transformers import Trainer, TrainingArguments

from torch_linformer.distributed import processes
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.folder import Spent, checkpoints
from torch_linformer.training.batches import LengthGroupedSampler
from torch_linformer.training.sharding import gather, own_part, shard, share_state, whole_state

WARMUP = 0.1  # share of the training over which the learning rate rises


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
        self.told: tuple[float, bool] | None = None  # the main process's clock, and any signal, as of the last step

    @property
    def seconds(self) -> float:
        """Time the training took so far."""
        if self.told is not None:
            return self.told[0]
        return self._clock

    @property
    def stopping(self) -> bool:
        """Whether the training ends at the next checkpoint, because of a signal."""
        return bool(self.stop_signal) if self.told is None else self.told[1]

    @property
    def _clock(self) -> float:
        return self.before.seconds + (0.0 if self.started is None else time.monotonic() - self.started)

    @property
    def spent(self) -> Spent:
        """Time and tokens the training took so far."""
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
        by_steps = step / max(1, self.state.max_steps)
        return min(1.0, max(by_steps, self._progress_by_clock))

    @property
    def _progress_by_clock(self) -> float:
        if self.seconds_allowed is None:
            return 0.0
        left = self.seconds_allowed - self.before.head_seconds
        return self.seconds / left if left > 0 else 1.0

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
        finite = self._agree(tokens, loss)
        # The loss of a batch with nothing to learn is NaN too, and harmless; fp16 skips steps of its own accord.
        if not self.args.fp16 and not finite and not self._finite_in_all(p.grad for p in model.parameters()):
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

    def _agree(self, tokens: Tensor, loss: Tensor) -> bool:
        """Count the tokens of a step and learn what all processes go by; returns whether the loss is finite in all."""
        if processes.count() == 1:
            self.tokens += tokens
            return bool(loss.isfinite())
        clock = self._clock if processes.is_main() else 0.0
        read = float(tokens) if processes.rank() % processes.pieces() == 0 else 0.0
        own = [clock, float(self.stop_signal), read, float(not loss.isfinite())]
        seconds, stop, read, broken = processes.total(tokens.new_tensor(own, dtype=torch.float64)).tolist()
        self.told = seconds, stop > 0
        self.tokens += int(read)
        return bool(broken == 0)

    def prediction_step(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        self.heed_signals()
        loss, logits, labels = super().prediction_step(*args, **kwargs)
        trained = self.state.global_step > 0  # and not only scored
        if trained and loss is not None:
            broken = not loss.isfinite() and not _all_finite(logits)
            if processes.total(torch.tensor(float(broken), device=loss.device)):
                raise self.diverged(f"the validation loss is {loss:g}", self.state.global_step)
        return loss, logits, labels

    def check_weights(self) -> None:
        """Raise ``InputError`` where a weight is not finite."""
        if not self._finite_in_all(cast(nn.Module, self.pieces or self.model).parameters()):
            raise self.diverged("weights are no longer finite", self.state.global_step)

    def _finite_in_all(self, tensors: Any) -> bool:
        """Whether all processes have only finite numbers."""
        broken = torch.tensor(float(not _all_finite(tensors)), device=self.args.device)
        return not processes.total(broken)

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
    if tensors is None or isinstance(tensors, Tensor):
        return tensors is None or bool(own_part(tensors).isfinite().all())
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

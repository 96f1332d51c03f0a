"""The options of a training run."""

import dataclasses
import math
from dataclasses import dataclass
from importlib.util import find_spec

from torch_linformer.errors import InputError, flag
from torch_linformer.training.model_settings import ModelSettings, sharing_for
from torch_linformer.training.run_options import (
    MOST_VECTORS,
    NO_WINDOWS,
    OF_LINFORMER,
    OF_NEW_MODELS,
    OF_SLOTS,
    OF_STEPS,
    OF_TASKS,
    OF_TEXT,
    OF_WORDS,
    PUSH_HELP,
    TASKS,
    TRACKERS,
    check_fsdp,
    check_options,
    option,
)
from torch_linformer.training.sizes import SIZES

EPOCHS = 5.0
FINE_TUNING = 0.2  # of the learning rate that suits a new model of the size
STDLIB_STEPS = 1150  # about 8 passes over the files of Python 3.11


@dataclass(frozen=True, kw_only=True)
class TrainSettings(ModelSettings):
    """Everything that decides how a run goes. The help texts are those of ``linformer train --help``.

    What reads documents asks for ``DataSettings``, and what builds a model for ``ModelSettings``: they see no more.
    """

    label_smoothing: float = option(
        0.0, "seq2seq: probability mass of a target token that is spread over the vocabulary"
    )
    epochs: float | None = option(None, "passes over the training documents  [5; --data stdlib: 1,150 steps]")
    max_steps: int | None = option(None, "stop after N steps, instead of --epochs")
    minutes: float | None = option(None, "stop training after N minutes")
    patience: int = option(5, "early stopping after N evaluations (of 10) without improvement; 0: never")
    batch_size: int = option(8, "documents per step")
    learning_rate: float | None = option(None, "peak learning rate  [depends on --size; a fifth of it with --from]")
    context_parallel: int = option(1, "under torchrun: number of processes that share each document")
    fsdp: bool = option(False, "under torchrun: shard the weights over the processes (FSDP2)")
    compile: bool = option(
        False, "use torch.compile: the first batches are slow, and it was slower on every CPU measured"
    )
    precision: str = option("auto", "auto: bf16 where the device is faster with it", ("auto", "fp32", "bf16", "fp16"))
    baseline: bool = option(True, "also score the baselines, such as TF-IDF")
    probe: bool = option(True, "also compare the speed of a training step with full attention")
    report_to: str | None = option(None, "also log losses, learning rate and scores by step to a tracker", TRACKERS)
    device: str = option("auto", "auto: a GPU if there is one", ("auto", "cpu", "cuda", "mps"))
    output: str | None = option(None, "folder of the run and of the model  [runs/NAME-OF-THE-DATA]")
    push_to_hub: str | None = option(None, PUSH_HELP)

    def __post_init__(self) -> None:
        lengths = ("max_length", "max_target_length", "max_answer_length", "chunk_size", "batch_size", "lexical_width")
        least = {"context_parallel": 1, "max_length": 4, "max_target_length": 4}
        least |= dict.fromkeys(("stride", "max_errors", "patience", "freeze_layers", "window"), 0)
        least |= dict.fromkeys(("exact_first", "exact_last"), 0)
        least |= {"vectors": 1, "read_window": 16 if self.read_window else 0}
        check_options(self, (*lengths, "epochs", "max_steps", "minutes", "learning_rate"), least)
        if self.report_to is not None and find_spec(self.report_to) is None:
            raise InputError(
                f"--report-to {self.report_to}: the package is not installed: pip install {self.report_to}"
            )
        if self.exact_first + self.exact_last > self.length:
            raise InputError(
                f"--exact-first {self.exact_first} and --exact-last {self.exact_last} are more than the "
                f"{self.length:,} tokens read at once"
            )
        if self.vectors > MOST_VECTORS:
            raise InputError(f"--vectors must be at most {MOST_VECTORS}, got {self.vectors}")
        if not 0 <= self.label_smoothing < 1:
            raise InputError(f"--label-smoothing must be at least 0 and below 1, got {self.label_smoothing}")
        for item in dataclasses.fields(self):
            value = getattr(self, item.name)
            without_effect = [("lexical", "none"), ("sharing", sharing_for(self.projection))]  # said, and true anyway
            if value != item.default and (item.name, value) not in without_effect:
                self._check_effect(item.name)
        if self.from_model and self.k is not None and not self.k.isdecimal():
            raise InputError(f"--k must be one number for an encoder of --from, got {self.k!r}")
        for name in ("freeze", "freeze_layers", "train_encoder"):
            if getattr(self, name) and self.from_model is None:
                raise InputError(f"{flag(name)} keeps the weights of another model: name one with --from")
        if self.context_parallel > 1 and self.task == "mlm" and self.packing:
            raise InputError("--context-parallel reads one document a row: give --no-packing too")
        check_fsdp(self)
        if self.compile:
            self._check_compiled()
        # Each raises InputError for options that it cannot be made of.
        _ = self.names, self.slots, self.reading

    def _check_effect(self, name: str) -> None:
        """Raise ``InputError`` for an option that was given and would have no effect."""
        if self.task not in OF_TASKS.get(name, TASKS):
            raise InputError(f"{flag(name)} goes with --task {', '.join(OF_TASKS[name])}, not {self.task}")
        if self.from_model and name in OF_NEW_MODELS:
            raise InputError(
                f"{flag(name)} is for a new model; --from {self.from_model} has its own; --from none begins a new one"
            )
        if self.frozen and name in (*OF_STEPS, *["minutes", "batch_size"] * (self.task in OF_WORDS)):
            of_labels = self.task in OF_WORDS
            how = "without --train-encoder" if of_labels else "with --freeze"
            instead = "take --from none for a new model" if of_labels else "give --no-freeze"
            raise InputError(
                f"{flag(name)} has no effect {how}, as no weight of the encoder is trained: leave it out, or {instead}"
            )
        if name == "overflow" and self.task in NO_WINDOWS:
            raise InputError(f"--overflow windows is not for --task {self.task}, {NO_WINDOWS[self.task]}")
        if name == "lexical" and self.lexical == "always" and self.task in OF_WORDS:
            raise InputError("--lexical always is for --task embed: words of labels are weighed, and stay")
        if name == "read_window" and self.task in OF_WORDS and self.from_model is None:
            raise InputError(f"--read-window {self.read_window} is for an encoder of --from: leave it out")
        if name == "overflow" and self.with_lexical_part and self.task in OF_WORDS:
            raise InputError(
                "--overflow windows reads parts of documents one by one, and words are read of whole ones: give "
                "--lexical none too"
            )
        if name == "overflow" and self.frozen:
            raise InputError("--overflow windows has no effect here: an encoder reads all of a document: leave it out")
        if self.attention == "full" and name in OF_LINFORMER:
            raise InputError(f"{flag(name)} has no effect with --attention full: leave it out")
        if (
            name == "read_window"
            and self.task == "embed"
            and self.read_window
            and self.vectors == 1
            and not self.freeze
        ):
            raise InputError(f"--read-window {self.read_window} goes with --vectors or --freeze: leave it out")
        if name == "lexical_width" and self.lexical == "none":
            raise InputError(f"--lexical-width {self.lexical_width} has no effect with --lexical none: leave one out")
        if name in OF_SLOTS and self.k == "0":
            raise InputError(f"{flag(name)} has no effect with --k 0, which leaves only the window: leave it out")
        if name == "sharing" and self.projection in ("mean", "max"):
            raise InputError(
                f"--sharing {self.sharing} has no effect with --projection {self.projection}, which has nothing to "
                "share: leave it out, or take --projection linear, random, conv or dynamic"
            )
        if name == "slot_mass" and self.projection in ("linear", "random"):
            raise InputError(
                f"--slot-mass {self.slot_mass} has no effect with --projection {self.projection}, whose slots stand "
                "for no number of tokens: leave it out, or take --projection conv, mean, max or dynamic"
            )

    def _check_compiled(self) -> None:
        """Raise ``InputError`` for what a compiled model cannot do."""
        if self.context_parallel > 1:
            raise InputError("--compile is for a single process: leave out --context-parallel")
        if self.task in OF_TEXT and self.packing:
            raise InputError("--compile reads one document a row: give --no-packing too")

    def steps(self, documents: int) -> int:
        """Steps of a training on this many documents."""
        if self.max_steps is not None:
            return self.max_steps
        if self.epochs is None and self.data == "stdlib":
            return STDLIB_STEPS  # the same on every Python, however many files it carries
        return max(1, round((self.epochs or EPOCHS) * math.ceil(documents / self.batch_size)))

    @property
    def peak_rate(self) -> float:
        """The highest learning rate of the training."""
        return self.learning_rate or SIZES[self.size].learning_rate

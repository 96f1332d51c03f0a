"""The options of a training run."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Self

from torch_linformer.data.overflow import OVERFLOW
from torch_linformer.errors import InputError, flag
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.training.data_settings import DataSettings
from torch_linformer.training.run_options import (
    MOST_VECTORS,
    NO_WINDOWS,
    OF_LINFORMER,
    OF_NEW_MODELS,
    OF_SLOTS,
    OF_STEPS,
    OF_TASKS,
    OF_TEXT,
    TASKS,
    check_fsdp,
    check_options,
    option,
)
from torch_linformer.training.sizes import SIZES, numbers_of_slots, suggested_k

PROJECTIONS = ("linear", "random", "conv", "mean", "max", "dynamic")
SHARINGS = ("none", "kv_per_head", "headwise", "kv", "layerwise")
SLOT_MASSES = ("none", "fixed", "learned")
ACTIVATION_MEMORY = ("none", "checkpoint", "reversible")
MAX_LENGTH = 2048
MAX_TARGET_LENGTH = 256
DECODER_SLOTS = 16  # of the target so far, in addition to its window
EPOCHS = 5.0
WINDOW = 64  # tokens of the local window of a new causal model
FINE_TUNING = 0.2  # of the learning rate that suits a new model of the size
STDLIB_STEPS = 1150  # about 8 passes over the files of Python 3.11


@dataclass(frozen=True, kw_only=True)
class TrainSettings(DataSettings):
    """Everything that decides how a run goes. The help texts are those of ``linformer train --help``."""

    task: str = option("classify", "what to learn", TASKS)
    from_model: str | None = option(
        None,
        "model to start from: a folder of train or adapt, or any encoder (folder, hub name, minilm), made linear",
    )
    freeze: bool = option(
        False, "freeze all weights of --from and fit only a head, in one pass over the documents: much faster on a CPU"
    )
    freeze_layers: int = option(0, "freeze the embeddings and the lowest N layers of --from: faster steps")
    tokenizer: str = option(
        "bpe:8192", "tokenizer: PATH, bytes, or bpe:SIZE, which is trained on the training documents"
    )
    max_length: int | None = option(None, "maximum input length in tokens  [2048; with --from that of the model]")
    max_target_length: int | None = option(
        None, "seq2seq: maximum output length in tokens  [256; with --from that of the model]"
    )
    max_answer_length: int | None = option(
        None, "qa: maximum answer length in tokens  [that of the longest training answer]"
    )
    overflow: str = option(
        "cut", "documents longer than --max-length: truncate them, or read them as overlapping windows", OVERFLOW
    )
    stride: int | None = option(None, "overlap of neighboring windows in tokens  [max-length/4]")
    packing: bool = option(True, "mlm, clm: pack several short documents into one row, where they attend to each other")
    whole_words: bool = option(False, "mlm: mask whole words")
    k: str | None = option(
        None,
        "number of slots K: one number, or one per layer, comma-separated; 0 for the window only; @spectrum.json or "
        "@spectrum.json:99 for what linformer spectrum suggests  [min(256, max-length/4); clm: 64]",
    )
    window: int | None = option(
        None,
        "width of the local window in tokens; clm: the last N tokens, 0 for none  "
        "[none; clm: 64; an encoder of --from: 128]",
    )
    exact_first: int = option(0, "leading tokens (such as [CLS]) that every token attends to exactly")
    exact_last: int = option(0, "trailing tokens (such as [SEP]) that every token attends to exactly")
    sharing: str | None = option(
        None, "how keys, values, heads and layers share a projection  [headwise; dynamic: kv_per_head]", SHARINGS
    )
    # Segment means generalize best from a few thousand documents (docs/log.md).
    projection: str = option(
        "mean", "how positions become slots: linear and conv are learned, dynamic depends on the input", PROJECTIONS
    )
    slot_mass: str = option(
        "none", "bias a slot's score by log(tokens it stands for); not with linear or random", SLOT_MASSES
    )
    attention: str = option("linformer", "full: the same model with standard attention", ("linformer", "full"))
    activation_memory: str = option(
        "none",
        "activations kept for the backward pass: all, only layer inputs, or none (reversible layers)",
        ACTIVATION_MEMORY,
    )
    chunk_size: int | None = option(None, "tokens that the layers process at once in inference  [all]")
    embeddings: str = option(
        "lsa",
        "initial word embeddings of a document task: lsa takes an SVD of the training documents",
        ("lsa", "random"),
    )
    lexical: str = option(
        "auto", "add a TF-IDF head to the model; auto: where it helps on the validation set", ("auto", "always", "none")
    )
    lexical_width: int = option(4096, "embed: dimensions of the word sketch that is appended to a vector")
    vectors: int = option(1, "embed: vectors of a document at most, of which the one nearest to a query counts")
    read_window: int | None = option(
        None, "embed: tokens that the encoder reads at once, window by window, for --vectors or --freeze  [all]"
    )
    size: str = option("tiny", "size of a new model; base has the dimensions of RoBERTa-base", tuple(SIZES))
    class_weights: str = option(
        "none", "balanced: weight labels in the loss by inverse frequency", ("none", "balanced")
    )
    label_smoothing: float = option(
        0.0, "seq2seq: probability mass of a target token that is spread over the vocabulary"
    )
    epochs: float | None = option(None, "passes over the training documents  [5; --data stdlib: 1,150 steps]")
    max_steps: int | None = option(None, "stop after N steps, instead of --epochs")
    minutes: float | None = option(None, "stop training after N minutes")
    patience: int = option(
        5, "early stopping after N evaluations (of 10) without improvement, or far behind the words alone; 0: never"
    )
    batch_size: int = option(8, "documents per step")
    learning_rate: float | None = option(None, "peak learning rate  [depends on --size; a fifth of it with --from]")
    seed: int = option(0, "seed of the split, the initial weights, the order and the dropout")
    context_parallel: int = option(1, "under torchrun: number of processes that share each document")
    fsdp: bool = option(False, "under torchrun: shard the weights over the processes (FSDP2)")
    compile: bool = option(
        False, "use torch.compile: the first batches are slow, and it was slower on every CPU measured"
    )
    precision: str = option("auto", "auto: bf16 where the device is faster with it", ("auto", "fp32", "bf16", "fp16"))
    baseline: bool = option(True, "also score the baselines, such as TF-IDF")
    probe: bool = option(True, "also compare the speed of a training step with full attention")
    device: str = option("auto", "auto: a GPU if there is one", ("auto", "cpu", "cuda", "mps"))
    output: str | None = option(None, "folder of the run and of the model  [runs/NAME-OF-THE-DATA]")

    def __post_init__(self) -> None:
        lengths = ("max_length", "max_target_length", "max_answer_length", "chunk_size", "batch_size", "lexical_width")
        least = {"context_parallel": 1, "max_length": 4, "max_target_length": 4}
        least |= dict.fromkeys(("stride", "max_errors", "patience", "freeze_layers", "window"), 0)
        least |= dict.fromkeys(("exact_first", "exact_last"), 0)
        least |= {"vectors": 1, "read_window": 16}
        check_options(self, (*lengths, "epochs", "max_steps", "minutes", "learning_rate"), least)
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
        for name in ("freeze", "freeze_layers"):
            if getattr(self, name) and self.from_model is None:
                raise InputError(f"{flag(name)} keeps the weights of another model: name one with --from")
        if self.context_parallel > 1 and self.task == "mlm" and self.packing:
            raise InputError("--context-parallel reads one document a row: give --no-packing too")
        check_fsdp(self)
        if self.compile:
            self._check_compiled()
        # Each raises InputError for options that it cannot be made of.
        _ = self.names, self.slots, self.reading

    @classmethod
    def of(cls, **options: Any) -> Self:
        """K becomes the numbers and not the file: a run resumes as what it is, even if the file has changed by then."""
        if options.get("from_model") is not None:
            options["from_model"] = encoder_folder(options["from_model"])
        k = options.get("k")
        if isinstance(k, str) and k.startswith("@") and not options.get("from_model"):
            others = cls(**{**options, "k": None})
            if others.attention != "full":
                options["k"] = suggested_k(k, others.length, others.size, SIZES[others.size].layers)
        return cls(**options)

    def _check_effect(self, name: str) -> None:
        """Raise ``InputError`` for an option that was given and would have no effect."""
        if self.task not in OF_TASKS.get(name, TASKS):
            raise InputError(f"{flag(name)} goes with --task {', '.join(OF_TASKS[name])}, not {self.task}")
        if self.from_model and name in OF_NEW_MODELS:
            raise InputError(f"{flag(name)} is for a new model; --from {self.from_model} has its own")
        if self.freeze and name in OF_STEPS:
            raise InputError(f"{flag(name)} has no effect with --freeze, which fits a head in one go: leave it out")
        if self.attention == "full" and name in OF_LINFORMER:
            raise InputError(f"{flag(name)} has no effect with --attention full: leave it out")
        if name == "read_window" and self.vectors == 1 and not self.freeze:
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
        if name == "overflow" and self.task in NO_WINDOWS:
            raise InputError(f"--overflow windows is not for --task {self.task}, {NO_WINDOWS[self.task]}")

    def _check_compiled(self) -> None:
        """Raise ``InputError`` for what a compiled model cannot do."""
        if self.context_parallel > 1:
            raise InputError("--compile is for a single process: leave out --context-parallel")
        if self.task in OF_TEXT and self.packing:
            raise InputError("--compile reads one document a row: give --no-packing too")

    def applies(self, name: str) -> bool:
        """Whether an option has an effect for this task, and for a model that begins as this one does."""
        new = self.from_model is None or name not in OF_NEW_MODELS
        slots = self.attention == "linformer" or name not in OF_LINFORMER
        steps = not (self.freeze and name in OF_STEPS)
        return new and slots and steps and self.task in OF_TASKS.get(name, TASKS)

    def steps(self, documents: int) -> int:
        """Steps of a training on this many documents."""
        if self.max_steps is not None:
            return self.max_steps
        if self.epochs is None and self.data == "stdlib":
            return STDLIB_STEPS  # the same on every Python, however many files it carries
        return max(1, round((self.epochs or EPOCHS) * math.ceil(documents / self.batch_size)))

    @property
    def length(self) -> int:
        """Tokens that a new model reads at once."""
        return self.max_length or MAX_LENGTH

    @property
    def target_length(self) -> int:
        """Tokens that a new encoder-decoder writes at most."""
        return self.max_target_length or MAX_TARGET_LENGTH

    @property
    def positions(self) -> str:
        """The position embedding of a new model; tagging, answering and seq2seq cannot do without one."""
        if self.task == "clm":
            return "rotary"
        needed = self.task in ("token-classify", "qa", "seq2seq")
        return "learned" if needed else SIZES[self.size].position_embedding

    @property
    def peak_rate(self) -> float:
        """The highest learning rate of the training."""
        return self.learning_rate or SIZES[self.size].learning_rate

    @property
    def begins_with_lsa(self) -> bool:
        """Whether the word embeddings begin as latent semantics of the documents."""
        return self.applies("embeddings") and self.embeddings == "lsa"

    @property
    def with_lexical_part(self) -> bool:
        """Whether a lexical head, or the lexical part of vectors, is fitted, to be kept where it helps."""
        return self.applies("lexical") and self.lexical != "none"

    @property
    def local_window(self) -> int | None:
        """The local window of a new model; None for none."""
        if not self.applies("window"):
            return None
        if self.window is None:
            return WINDOW if self.task == "clm" else None
        return self.window or None

    @property
    def map_sharing(self) -> str:
        """Who shares a projection of a new model."""
        return self.sharing or sharing_for(self.projection)

    @property
    def slots(self) -> int | list[int]:
        """K of the model: one number, or one a layer."""
        # A decoder reads what an encoder wrote through slots.
        least = 0 if self.local_window and self.task != "seq2seq" else 1
        if self.k is None or self.attention == "full" or self.from_model:
            return min(64 if self.task == "clm" else 256, self.length // 4)
        numbers = numbers_of_slots(self.k, SIZES[self.size].layers, self.size)
        if least == 1 and 0 in numbers and self.task == "clm":
            raise InputError("--k 0 leaves only the window, and --window 0 removes it: give one of them a number")
        for number in numbers:
            if not least <= number <= self.length:
                raise InputError(f"--k must lie between {least} and --max-length {self.length}, got {number}")
        if len(numbers) > 1 and self.sharing == "layerwise":
            raise InputError("--sharing layerwise has one projection for all layers: --k must be one number")
        return numbers if len(numbers) > 1 else numbers[0]


def sharing_for(projection: str) -> str:
    """Who shares a projection where nobody said: two P, for keys and for values, learn slowly (docs/slots.md)."""
    return "kv_per_head" if projection == "dynamic" else "headwise"

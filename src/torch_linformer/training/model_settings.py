"""The options of a training run that decide which model learns."""

from dataclasses import dataclass, fields
from typing import Any, Self, get_args

from torch_linformer.choices import ActivationMemory, AttentionKind, Projection, Sharing, SlotMass
from torch_linformer.data.overflow import OVERFLOW
from torch_linformer.errors import InputError
from torch_linformer.opening.named_encoders import encoder_folder, is_installed
from torch_linformer.training.data_settings import DataSettings
from torch_linformer.training.run_options import (
    OF_ENCODERS,
    OF_LINFORMER,
    OF_NEW_MODELS,
    OF_STEPS,
    OF_TASKS,
    OF_WORDS,
    TASKS,
    option,
)
from torch_linformer.training.sizes import SIZES, numbers_of_slots, suggested_k

MAX_LENGTH = 2048
MAX_TARGET_LENGTH = 256
DECODER_SLOTS = 16  # of the target so far, in addition to its window
WINDOW = 64  # tokens of the local window of a new causal model
PRETRAINED, NEW = "minilm", "none"  # what --from is where nobody says, and what it is for no model
BEGIN_PRETRAINED = (*OF_WORDS, "embed")  # tasks where nobody has to say it
READ_WINDOW = 256  # tokens: more of a document find it better, and more at once do not (docs/documents.md)
READ_LENGTH = 32_768  # tokens of a document that is read in windows


@dataclass(frozen=True, kw_only=True)
class ModelSettings(DataSettings):
    """The model of a run: a new one or another to start from, what it reads at once, and its attention."""

    from_model: str | None = option(
        None,
        "model to start from: a folder of train or adapt, or any encoder (folder, hub name, minilm); none: a new one  "
        "[labels, numbers, embed: minilm where it is installed]",
    )
    freeze: bool | None = option(
        None,
        "freeze all weights of --from and fit only a head, in one pass over the documents: much faster on a CPU  "
        "[embed: yes]",
    )
    train_encoder: bool = option(
        False, "labels, numbers: also train the weights of --from, and keep that where it is better on validation"
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
        None,
        "how keys, values, heads and layers share a projection  [headwise; dynamic: kv_per_head]",
        get_args(Sharing),
    )
    # Segment means generalize best from a few thousand documents (docs/log.md).
    projection: str = option(
        "mean",
        "how positions become slots: linear and conv are learned, dynamic depends on the input",
        get_args(Projection),
    )
    slot_mass: str = option(
        "none", "bias a slot's score by log(tokens it stands for); not with linear or random", get_args(SlotMass)
    )
    attention: str = option("linformer", "full: the same model with standard attention", get_args(AttentionKind))
    activation_memory: str = option(
        "none",
        "activations kept for the backward pass: all, only layer inputs, or none (reversible layers)",
        get_args(ActivationMemory),
    )
    chunk_size: int | None = option(None, "tokens that the layers process at once in inference  [all]")
    embeddings: str = option(
        "lsa",
        "initial word embeddings of a document task: lsa takes an SVD of the training documents",
        ("lsa", "random"),
    )
    lexical: str = option(
        "auto", "read words too; embed: auto keeps them where validation is better", ("auto", "always", "none")
    )
    lexical_width: int = option(8192, "embed: dimensions of the word sketch that is appended to a vector")
    vectors: int = option(1, "embed: vectors of a document at most, of which the one nearest to a query counts")
    read_window: int | None = option(
        None,
        "tokens that an encoder reads at once, window by window; labels, numbers: of --from as it is  [256]; embed: 0 "
        "for all  [with --freeze 256]",
    )
    size: str = option("tiny", "size of a new model; base has the dimensions of RoBERTa-base", tuple(SIZES))
    class_weights: str = option(
        "none", "balanced: weight labels in the loss by inverse frequency", ("none", "balanced")
    )

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Labels, numbers and searches begin with a pretrained encoder, unless an option shapes a new model.

        K becomes the numbers and not the file: a run resumes as what it is, even if the file has changed by then.
        """
        source, usual = options.get("from_model"), {item.name: item.default for item in fields(cls)}
        task = options.get("task", usual["task"])
        shapes_a_new_one = any(options.get(name, usual[name]) != usual[name] for name in (*OF_NEW_MODELS, *OF_ENCODERS))
        if source is None and task in BEGIN_PRETRAINED and not shapes_a_new_one and is_installed(PRETRAINED):
            source = PRETRAINED
        options["from_model"] = None if source in (None, NEW) else encoder_folder(source)
        if task == "embed" and options["from_model"] is not None:
            options.setdefault("freeze", True)
        if task == "embed" and options.get("freeze"):
            options.setdefault("read_window", READ_WINDOW)
        k = options.get("k")
        if isinstance(k, str) and k.startswith("@") and not options.get("from_model"):
            others = cls(**{**options, "k": None})
            if others.attention != "full":
                options["k"] = suggested_k(k, others.length, others.size, SIZES[others.size].layers)
        return cls(**options)

    def applies(self, name: str) -> bool:
        """Whether an option has an effect for this task, and for a model that begins as this one does."""
        new = self.from_model is None or name not in OF_NEW_MODELS
        slots = self.attention == "linformer" or name not in OF_LINFORMER
        steps = not (self.frozen and name in OF_STEPS)
        return new and slots and steps and self.task in OF_TASKS.get(name, TASKS)

    @property
    def frozen(self) -> bool:
        """Whether the weights of ``--from`` stay as they are, and only what stands on them is fitted."""
        if self.task in OF_WORDS:
            return self.from_model is not None and not self.train_encoder
        return bool(self.freeze)

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

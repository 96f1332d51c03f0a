"""The options of a training run: its documents, its model and its training."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from importlib.util import find_spec
from typing import Any, Self

from torch_linformer.data.reading.data_options import HELP, OVERFLOW
from torch_linformer.errors import InputError, flag
from torch_linformer.opening.named_encoders import encoder_folder, is_installed
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.training.run_options import RunOptions, option
from torch_linformer.training.sizes import SIZES, numbers_of_slots, suggested_k

TASKS = tuple(HEADLINES)
OF_WORDS = ("classify", "multilabel", "regress")  # tasks of a document as a whole, learned by words and a reader
OF_TEXT = ("mlm", "clm")  # tasks that learn from plain text, all of it
BEGIN_PRETRAINED = (*OF_WORDS, "embed")  # tasks that begin with a pretrained encoder where nobody says otherwise
PRETRAINED, NEW = "minilm", "none"  # what --from is then, and what it is for a new model
TRACKERS = ("tensorboard", "wandb", "mlflow")  # by the names of their packages, which are those of transformers
MAX_LENGTH, MAX_TARGET_LENGTH = 2048, 256  # tokens
READ_WINDOW = 256  # tokens: more of a document find it better, and more at once do not (docs/documents.md)
READ_LENGTH = 32_768  # tokens of a document that is read in windows
WINDOW = 64  # tokens of the local window of a new causal model
DECODER_SLOTS = 16  # of the target so far, in addition to its window
LEXICAL_WIDTH = 8192  # numbers of the sketch of words that is appended to a vector
MOST_VECTORS = 32  # of a document
EPOCHS = 5.0
FINE_TUNING = 0.2  # of the learning rate that suits a new model of the size
STDLIB_STEPS = 1150  # about 8 passes over the files of Python 3.11
_READS_ALL = "which reads all of every document anyway"
NO_WINDOWS = {
    **dict.fromkeys(OF_TEXT, _READS_ALL),
    "seq2seq": "which writes one target for a document",
    "embed": "which makes one vector of what it reads of a document",
}
_NOT_SEQ2SEQ = tuple(task for task in TASKS if task != "seq2seq")


@dataclass(frozen=True, kw_only=True)
class TrainSettings(RunOptions):
    """Everything that decides how a run goes. The help texts are those of ``linformer train --help``."""

    data: str = option(
        "stdlib", "CSV, TSV, JSON (lines, SQuAD), CoNLL or Parquet file, folder, or name of a dataset on the hub"
    )
    text_column: str | None = option(
        None, "column with the text, the words, or the context of a question", tasks=_NOT_SEQ2SEQ
    )
    label_column: str | None = option(
        None,
        "column with the label, number, tags or answers; multilabel: or one column per label, comma-separated",
        tasks=_NOT_SEQ2SEQ,
    )
    label_names: str | None = option(
        None,
        "A,B,…: names of the labels 0, 1, …; multilabel: of the positions in lists of 0 and 1",
        tasks=("classify", "multilabel", "token-classify"),
    )
    question_column: str | None = option(None, "column with the question", tasks=("qa",))
    source_column: str | None = option(None, "seq2seq: column with the source text", tasks=("seq2seq",))
    target_column: str | None = option(None, "seq2seq: column with the target text", tasks=("seq2seq",))
    group_column: str | None = option(None, HELP["group_column"])
    max_errors: int = option(0, "skip up to N unreadable rows", least=0)
    documents: str | None = option(
        None, "embed: table of the documents by id; --data then holds queries and document ids", tasks=("embed",)
    )
    query_column: str | None = option(None, "embed: column with the query", tasks=("embed",))
    document_column: str | None = option(
        None,
        "embed: column with the document; with --documents, column with its id in both tables",
        tasks=("embed",),
    )
    validation: str = option(
        "0.1", "validation set, which selects the checkpoint: PATH, or fraction of the training documents"
    )
    test: str = option("0.2", "test set, scored once at the end: PATH, or fraction of the documents")
    task: str = option("classify", "what to learn", TASKS)
    seed: int = option(0, "seed of the split, the initial weights, the order and the dropout")

    from_model: str | None = option(
        None,
        "model to start from: a folder of train or adapt, or any encoder (folder, hub name, minilm); none: a new one  "
        "[labels, numbers, embed: minilm, if it is installed]",
    )
    freeze: bool | None = option(
        None,
        "train only a head on the encoder of --from, which reads each document once; --no-freeze also trains the "
        "encoder (labels and numbers keep that only if it is better on validation)  [yes]",
        tasks=BEGIN_PRETRAINED,
    )
    freeze_layers: int = option(
        0,
        "freeze the embeddings and the lowest N layers of --from: faster steps",
        # Language modeling reads words off the embeddings, too.
        tasks=tuple(task for task in _NOT_SEQ2SEQ if task not in OF_TEXT),
        least=0,
        of_steps=True,
    )
    tokenizer: str = option(
        "bpe:8192", "tokenizer: PATH, bytes, or bpe:SIZE, which is trained on the training documents", of_new=True
    )
    size: str = option(
        "tiny", "size of a new model; base has the dimensions of RoBERTa-base", tuple(SIZES), of_new=True
    )
    model: Mapping[str, Any] | None = option(
        None,
        "any other field of a new model's LinformerConfig, such as projection=linear or attention=full; "
        "may be repeated",
        of_new=True,
    )
    max_length: int | None = option(
        None, "maximum input length in tokens  [2048; with --from that of the model]", least=4
    )
    max_target_length: int | None = option(
        None,
        "seq2seq: maximum output length in tokens  [256; with --from that of the model]",
        tasks=("seq2seq",),
        least=4,
    )
    overflow: str = option(
        "cut", "documents longer than --max-length: truncate them, or read them as overlapping windows", OVERFLOW
    )
    stride: int | None = option(None, "overlap of neighboring windows in tokens  [max-length/4]", least=0)
    packing: bool = option(
        True, "mlm, clm: pack several short documents into one row, where they attend to each other", tasks=OF_TEXT
    )
    whole_words: bool = option(False, "mlm: mask whole words", tasks=("mlm",))
    k: str | None = option(
        None,
        "number of slots K: one number, or one per layer, comma-separated; 0 for the window only; @spectrum.json or "
        "@spectrum.json:99 for what linformer spectrum suggests  [min(256, max-length/4); clm: 64]",
    )
    window: int | None = option(
        None,
        "width of the local window in tokens; clm: the last N tokens, 0 for none  "
        "[none; clm: 64; an encoder of --from: 128]",
        least=0,
    )
    lexical: str = option(
        "auto",
        "also count words, as TF-IDF does; embed: auto keeps them if they help on validation",
        ("auto", "always", "none"),
        tasks=BEGIN_PRETRAINED,
    )
    vectors: int = option(
        1,
        "embed: maximum number of vectors per document; the one nearest to a query counts",
        tasks=("embed",),
        least=1,
    )
    read_window: int | None = option(
        None,
        "read documents in windows of N tokens; labels, numbers: if --from is not linear  [256]; embed: 0 reads all at "
        "once  [with --freeze 256]",
        tasks=BEGIN_PRETRAINED,
    )
    class_weights: str = option(
        "none", "balanced: weight labels in the loss by inverse frequency", ("none", "balanced"), tasks=("classify",)
    )

    epochs: float | None = option(
        None, "passes over the training documents  [5; --data stdlib: 1,150 steps]", positive=True, of_steps=True
    )
    max_steps: int | None = option(None, "stop after N steps, instead of --epochs", positive=True, of_steps=True)
    minutes: float | None = option(None, "stop training after N minutes", positive=True)
    patience: int = option(
        5, "early stopping after N evaluations (of 10) without improvement; 0: never", least=0, of_steps=True
    )
    batch_size: int = option(8, "documents per step", positive=True)
    learning_rate: float | None = option(
        None, "peak learning rate  [depends on --size; a fifth of it with --from]", positive=True, of_steps=True
    )
    context_parallel: int = option(
        1,
        "under torchrun: number of processes that share each document",
        tasks=("classify", "multilabel", "regress", "token-classify", "mlm"),
        least=1,
        of_steps=True,
    )
    compile: bool = option(
        False,
        "use torch.compile: the first batches are slow, and it was slower on every CPU measured",
        # The others call the model once a step, and each time for whole documents.
        tasks=tuple(task for task in TASKS if task not in ("embed", "seq2seq")),
        of_steps=True,
    )
    baseline: bool = option(True, "also score the baselines, such as TF-IDF")
    probe: bool = option(True, "also compare the speed of a training step with full attention")
    report_to: str | None = option(
        None, "also log losses, learning rate and scores by step to a tracker", TRACKERS, of_steps=True
    )
    output: str | None = option(None, "folder of the run and of the model  [runs/NAME-OF-THE-DATA]")

    @classmethod
    def of(cls, **options: Any) -> Self:
        """Labels, numbers and searches begin with a pretrained encoder, unless an option shapes a new model.

        K becomes the numbers and not the file: a run resumes as what it is, even if the file has changed by then.
        """
        given = {item.name: options.get(item.name, item.default) for item in fields(cls)}
        shapes = [item for item in fields(cls) if item.metadata["of_new"] or item.name in ("k", "window")]
        source, of_embed = given["from_model"], given["task"] == "embed"
        is_usual = all(given[item.name] == item.default for item in shapes)
        if source is None and given["task"] in BEGIN_PRETRAINED and is_usual and is_installed(PRETRAINED):
            source = PRETRAINED
        options["from_model"] = None if source in (None, NEW) else encoder_folder(source)
        if of_embed and options["from_model"] and given["freeze"] is not False and given["read_window"] is None:
            options["read_window"] = READ_WINDOW
        k = given["k"]
        if isinstance(k, str) and k.startswith("@") and not options["from_model"]:
            others = cls(**{**options, "k": None})
            if not others.has_full_attention:
                options["k"] = suggested_k(k, others.length, others.size, others.layers)
        return cls(**options)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.read_window and self.read_window < 16:
            raise InputError(f"--read-window must be at least 16, got {self.read_window}")
        if self.report_to is not None and find_spec(self.report_to) is None:
            raise InputError(
                f"--report-to {self.report_to}: the package is not installed: pip install {self.report_to}"
            )
        if self.vectors > MOST_VECTORS:
            raise InputError(f"--vectors must be at most {MOST_VECTORS}, got {self.vectors}")
        for item in fields(self):
            is_default = getattr(self, item.name) in (item.default, *["none"] * (item.name == "lexical"))
            if not is_default and (reason := self._without_effect(item.name)):
                raise InputError(reason)
        if self.lexical == "always" and self.task in OF_WORDS:
            raise InputError("--lexical always is for --task embed: words of labels are weighed, and stay")
        if self.overflow == "windows" and self.with_lexical_part:
            raise InputError(
                "--overflow windows reads parts of documents one by one, and words are read of whole ones: give "
                "--lexical none too"
            )
        if self.from_model and self.k is not None and not self.k.isdecimal():
            raise InputError(f"--k must be one number for an encoder of --from, got {self.k!r}")
        for name in ("freeze", "freeze_layers"):
            if getattr(self, name) and self.from_model is None:
                raise InputError(f"{flag(name)} keeps the weights of another model: name one with --from")
        if self.context_parallel > 1 and self.task == "mlm" and self.packing:
            raise InputError("--context-parallel reads one document a row: give --no-packing too")
        if self.compile and self.context_parallel > 1:
            raise InputError("--compile is for a single process: leave out --context-parallel")
        if self.compile and self.task in OF_TEXT and self.packing:
            raise InputError("--compile reads one document a row: give --no-packing too")
        # Each raises InputError for options that it cannot be made of.
        _ = self.names, self.slots

    def applies(self, name: str) -> bool:
        """Whether an option has an effect for this task, and for a model that begins as this one does."""
        return not self._without_effect(name)

    def _without_effect(self, name: str) -> str:
        """Why an option has no effect, as an error says it; empty where it has one."""
        rules, source = type(self).__dataclass_fields__[name].metadata, self.from_model
        of_labels, of_embed = self.task in OF_WORDS, self.task == "embed"
        if name == "epochs" and self.max_steps is not None:
            return "--epochs and --max-steps both say when to stop: give one of them"
        if self.task not in (rules["tasks"] or TASKS):
            return f"{flag(name)} goes with --task {', '.join(rules['tasks'])}, not {self.task}"
        if source and rules["of_new"]:
            return f"{flag(name)} is for a new model; --from {source} has its own; --from none begins a new one"
        if self.frozen and (rules["of_steps"] or (of_labels and name in ("minutes", "batch_size"))):
            return (
                f"{flag(name)} has no effect, as no weight of the encoder is trained: leave it out, or give "
                "--no-freeze, or --from none for a new model"
            )
        if self.has_full_attention and name in ("window", "context_parallel"):
            return f"{flag(name)} has no effect with --model attention=full: leave it out"
        if name == "overflow" and self.task in NO_WINDOWS:
            return f"--overflow windows is not for --task {self.task}, {NO_WINDOWS[self.task]}"
        if name == "overflow" and self.frozen:
            return "--overflow windows has no effect here: an encoder reads all of a document: leave it out"
        if name == "stride" and self.overflow != "windows":
            return f"--stride {self.stride} goes with --overflow windows: leave it out, or give that too"
        if name == "read_window" and of_labels and source is None:
            return f"--read-window {self.read_window} is for an encoder of --from: leave it out"
        if name == "read_window" and of_embed and self.read_window and self.vectors == 1 and not self.frozen:
            return f"--read-window {self.read_window} goes with --vectors or --freeze: leave it out"
        return ""

    @property
    def names(self) -> list[str]:
        """The names that the user gives to labels, in the order of the numbers that stand for them."""
        if self.label_names is None:
            return []
        names = [name.strip() for name in self.label_names.split(",")]
        if len(set(names)) < max(2, len(names)) or not all(names) or any(map(str.isdecimal, names)):
            raise InputError(
                f"--label-names must be two or more different names with commas between them, and no numbers, got "
                f"{self.label_names!r}"
            )
        return names

    @property
    def frozen(self) -> bool:
        """Whether the weights of ``--from`` stay as they are, and only what stands on them is fitted."""
        return self.from_model is not None and self.task in BEGIN_PRETRAINED and self.freeze is not False

    @property
    def has_full_attention(self) -> bool:
        """Whether a new model has ordinary attention."""
        return self.from_model is None and self.own_fields.get("attention") == "full"

    @property
    def own_fields(self) -> Mapping[str, Any]:
        """The fields of a new model's configuration that the user gives."""
        return self.model or {}

    @property
    def length(self) -> int:
        """Tokens that a new model reads at once."""
        return self.max_length or MAX_LENGTH

    @property
    def target_length(self) -> int:
        """Tokens that a new encoder-decoder writes at most."""
        return self.max_target_length or MAX_TARGET_LENGTH

    @property
    def layers(self) -> int:
        """Layers of a new model."""
        return int(self.own_fields.get("num_hidden_layers", SIZES[self.size].layers))

    @property
    def with_lexical_part(self) -> bool:
        """Whether words are read too: by a lexical head, or the lexical part of vectors."""
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
    def slots(self) -> int | list[int]:
        """K of the model: one number, or one a layer."""
        # A decoder reads what an encoder wrote through slots.
        least = 0 if self.local_window and self.task != "seq2seq" else 1
        if self.k is None or self.has_full_attention or self.from_model:
            return min(64 if self.task == "clm" else 256, self.length // 4)
        numbers = numbers_of_slots(self.k, self.layers, self.size)
        if least == 1 and 0 in numbers and self.task == "clm":
            raise InputError("--k 0 leaves only the window, and --window 0 removes it: give one of them a number")
        for number in numbers:
            if not least <= number <= self.length:
                raise InputError(f"--k must lie between {least} and --max-length {self.length}, got {number}")
        return numbers if len(numbers) > 1 else numbers[0]

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

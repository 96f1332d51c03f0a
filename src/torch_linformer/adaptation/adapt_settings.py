"""The options of an adaptation."""

from dataclasses import dataclass

from torch_linformer.data.reading.data_options import HELP, QUOTING
from torch_linformer.errors import InputError, flag
from torch_linformer.training.option_fields import check_fsdp, check_options, option

STEPS = 1000
PROJECTIONS = ("dynamic", "mean")


@dataclass(frozen=True, kw_only=True)
class AdaptSettings:
    """Everything that decides how an adaptation goes. The help texts are those of ``linformer adapt --help``."""

    data: str | None = option(
        None, "texts, without labels: CSV, TSV, JSON lines, Parquet, a folder, or a dataset's name"
    )
    task: str | None = option(None, "what it is for  [that of its head]", ("embed", "mlm", "classify"))
    text_column: str | None = option(None, "column that holds the text")
    label_column: str | None = option(None, "classify: column of the texts held out that holds the label")
    encoding: str | None = option(None, HELP["encoding"])
    delimiter: str | None = option(None, HELP["delimiter"])
    quoting: str = option("auto", HELP["quoting"], QUOTING)
    header: bool | None = option(None, HELP["header"])
    text_folder: str | None = option(None, HELP["text_folder"])
    test: str = option("0.1", "PATH, or the fraction of the texts held out for the final comparison")
    trust_remote_code: bool = option(False, "run the code in the source's folder, where its model needs it")
    max_length: int | None = option(None, "tokens read at once, more than the original's too  [the original's]")
    k: int | None = option(None, "slots K; 0 for only the window  [min(256, max-length/4)]")
    window: int = option(64, "also attend to the tokens this near; 0 for only slots")
    exact_first: int | None = option(
        None, "first tokens that all others see themselves  [the tokenizer's special ones]"
    )
    exact_last: int | None = option(None, "last tokens likewise  [the tokenizer's special ones]")
    # What came closest to the original in the same time (docs/slots.md).
    projection: str = option("dynamic", "how positions become slots: chosen by the input, or means", PROJECTIONS)
    exact_below: int | None = option(
        None, "texts of at most this many tokens are read exactly, as by the original  [2 K + window]"
    )
    steps: int | None = option(None, "steps of the distillation  [1000, or as many as --minutes allows]")
    minutes: float | None = option(None, "stop distilling after this many minutes")
    batch_size: int = option(16, "texts a step")
    learning_rate: float = option(7e-5, "peak learning rate")
    slot_learning_rate: float = option(6e-3, "peak learning rate of what chooses the slots, and of their mass")
    seed: int = option(0, "seed of the split and of the order")
    fsdp: bool = option(False, "under torchrun: each process keeps a part of every weight of the student (FSDP2)")
    compile: bool = option(
        False, "torch.compile, which the first batches wait for; slower on a CPU, where it was measured"
    )
    precision: str = option("auto", "auto is bf16 where the device is faster in it", ("auto", "fp32", "bf16", "fp16"))
    probe: bool = option(True, "also measure a forward pass, compared with full attention")
    device: str = option("auto", "auto takes a GPU if there is one", ("auto", "cpu", "cuda", "mps"))
    output: str | None = option(None, "folder of the run and of the model  [runs/SOURCE-linformer]")

    def __post_init__(self) -> None:
        check_options(
            self, positive=("max_length", "steps", "minutes", "batch_size", "learning_rate", "slot_learning_rate")
        )
        if not self.data:
            raise InputError("--data is missing: name texts such as those that the model is to read")
        if self.label_column and self.task not in (None, "classify"):
            raise InputError("--label-column is for --task classify: nothing else has labels")
        if self.window < 0:
            raise InputError(f"--window must be at least 0, got {self.window}")
        if self.k == 0 and not self.window:
            raise InputError("--k 0 leaves only the window, and --window 0 leaves nothing to attend to")
        for name in ("k", "exact_first", "exact_last", "exact_below"):
            if (getattr(self, name) or 0) < 0:
                raise InputError(f"{flag(name)} must be at least 0, got {getattr(self, name)}")
        check_fsdp(self)
        if self.max_length is not None and self.max_length < 8:
            raise InputError(f"--max-length must be at least 8, got {self.max_length}")

"""The options of an adaptation."""

from dataclasses import dataclass

from torch_linformer.errors import InputError
from torch_linformer.training.run_options import RunOptions, option

STEPS = 1000
BATCH = 16  # texts


@dataclass(frozen=True, kw_only=True)
class AdaptSettings(RunOptions):
    """Everything that decides how an adaptation goes. The help texts are those of ``linformer adapt --help``."""

    data: str | None = option(
        None, "texts without labels: CSV, TSV, JSON lines or Parquet file, folder, or name of a dataset on the hub"
    )
    task: str | None = option(
        None, "what the encoder is used for  [what its head is for]", ("embed", "mlm", "classify")
    )
    text_column: str | None = option(None, "column with the text")
    label_column: str | None = option(None, "classify: column of the test set with the label")
    test: str = option("0.1", "test set of the final comparison: PATH, or fraction of the texts")
    trust_remote_code: bool = option(False, "run code from the source folder, if the model needs it")
    max_length: int | None = option(
        None,
        "maximum input length in tokens; may exceed that of the original  [8192, or its own if larger]",
        least=8,
    )
    k: int | None = option(None, "number of slots K; 0 for the window only  [min(256, max-length/4)]", least=0)
    window: int | None = option(
        None,
        "width of the local window in tokens; 0 for slots only  [128; if the original is used with fewer tokens than "
        "it could read, that many, at most 512]",
        least=0,
    )
    exact_below: int | None = option(
        None,
        "texts of at most N tokens attend to all tokens, as in the original  [2 K + window + 640, about where "
        "slots begin to be faster, and no more than the original is used with]",
        least=0,
    )
    steps: int | None = option(None, "distillation steps  [1000, or as many as --minutes allows]", positive=True)
    minutes: float | None = option(None, "stop distilling after N minutes", positive=True)
    batch_size: int | None = option(
        None, "texts per step  [16, or as few as make 60 steps in --minutes]", positive=True
    )
    slots_only: bool = option(
        False, "train only the slots; the weights of the original, and its output for short texts, do not change"
    )
    learning_rate: float | None = option(None, "peak learning rate  [7e-5]", positive=True)
    slot_learning_rate: float | None = option(
        None, "peak learning rate of the slot parameters  [6e-3, with --slots-only 0.02]", positive=True
    )
    probe: bool = option(True, "measure a forward pass, compared with full attention")
    output: str | None = option(None, "folder of the run and of the model  [runs/SOURCE-linformer]")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.data:
            raise InputError("--data is missing: name texts such as those that the model is to read")
        if self.label_column and self.task not in (None, "classify"):
            raise InputError("--label-column is for --task classify: nothing else has labels")
        if self.k == 0 and self.window == 0:
            raise InputError("--k 0 leaves only the window, and --window 0 leaves nothing to attend to")
        if self.slots_only and self.k == 0:
            raise InputError("--slots-only trains slots, and --k 0 has no slots")
        if self.slots_only and self.learning_rate is not None:
            raise InputError("--learning-rate is that of the original's weights, which --slots-only keeps as they are")

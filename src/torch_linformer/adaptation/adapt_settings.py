"""The options of an adaptation."""

from dataclasses import dataclass

from torch_linformer.errors import InputError
from torch_linformer.training.option_fields import check_options, option

STEPS = 1000
PROJECTIONS = ("mean", "linear")
# Of a configuration; 0 in a student, whose hidden states would otherwise be compared with noise in them.
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout")


@dataclass(frozen=True, kw_only=True)
class AdaptSettings:
    """Everything that decides how an adaptation goes. The help texts are those of ``linformer adapt --help``."""

    data: str | None = option(
        None, "texts, without labels: CSV, TSV, JSON lines, Parquet, a folder, or a dataset's name"
    )
    task: str | None = option(None, "what it is for  [that of its head]", ("embed", "mlm", "classify"))
    text_column: str | None = option(None, "column that holds the text")
    label_column: str | None = option(None, "classify: column of the texts held out that holds the label")
    test: str = option("0.1", "PATH, or the fraction of the texts held out for the final comparison")
    trust_remote_code: bool = option(False, "run the code in the source's folder, where its model needs it")
    max_length: int | None = option(None, "tokens read at once, more than the original's too  [the original's]")
    k: int | None = option(None, "slots K  [min(256, max-length/4)]")
    window: int = option(64, "also attend to the tokens this near; 0 for only slots")
    # Means leave padding out exactly and need no training; learned maps ended slightly closer (docs/log.md).
    projection: str = option("mean", "how positions become slots; linear is learned, beginning with means", PROJECTIONS)
    sharing: str = option("headwise", "linear: who shares a projection", ("none", "headwise", "kv", "layerwise"))
    steps: int | None = option(None, "steps of the distillation  [1000, or as many as --minutes allows]")
    minutes: float | None = option(None, "stop distilling after this many minutes")
    batch_size: int = option(16, "texts a step")
    learning_rate: float = option(1.5e-4, "peak learning rate")
    seed: int = option(0, "seed of the split and of the order")
    precision: str = option("auto", "auto is bf16 where the device is faster in it", ("auto", "fp32", "bf16", "fp16"))
    device: str = option("auto", "auto takes a GPU if there is one", ("auto", "cpu", "cuda", "mps"))
    output: str | None = option(None, "folder of the run and of the model  [runs/SOURCE-linformer]")

    def __post_init__(self) -> None:
        check_options(self, positive=("max_length", "k", "steps", "minutes", "batch_size", "learning_rate"))
        if not self.data:
            raise InputError("--data is missing: name texts such as those that the model is to read")
        if self.label_column and self.task not in (None, "classify"):
            raise InputError("--label-column is for --task classify: nothing else has labels")
        if self.window < 0:
            raise InputError(f"--window must be at least 0, got {self.window}")
        if self.projection != "linear" and self.sharing != "headwise":
            raise InputError("--sharing is for --projection linear: means of segments have nothing to share")
        if self.max_length is not None and self.max_length < 8:
            raise InputError(f"--max-length must be at least 8, got {self.max_length}")

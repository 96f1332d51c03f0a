"""The options of a training run that say what its documents are."""

from dataclasses import dataclass

from torch_linformer.data.reading.data_options import HELP, QUOTING, DataOptions
from torch_linformer.errors import InputError
from torch_linformer.training.option_fields import option


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """Where the documents of a run lie, how they are read, and which are held out."""

    data: str = option("stdlib", "CSV, TSV, JSON (lines, SQuAD), CoNLL, Parquet, a folder, or a dataset's name")
    text_column: str | None = option(None, "column that holds the text, the words, or the context of a question")
    label_column: str | None = option(None, "column of the label, number, tags or answers; multilabel: or one a label")
    label_names: str | None = option(
        None, "A,B,… for labels that are numbers: the names of 0, 1, …; multilabel: or of positions in lists of 0 and 1"
    )
    question_column: str | None = option(None, "column that holds the question")
    source_column: str | None = option(None, "seq2seq: column that holds the source")
    target_column: str | None = option(None, "seq2seq: column that holds the target")
    group_column: str | None = option(None, HELP["group_column"])
    encoding: str | None = option(None, HELP["encoding"])
    delimiter: str | None = option(None, HELP["delimiter"])
    quoting: str = option("auto", HELP["quoting"], QUOTING)
    header: bool | None = option(None, HELP["header"])
    text_folder: str | None = option(None, HELP["text_folder"])
    max_errors: int = option(0, "leave out so many rows that cannot be read")
    documents: str | None = option(None, "embed: table of the documents by name; --data then has queries and names")
    query_column: str | None = option(None, "embed: column that holds the query")
    document_column: str | None = option(None, "embed: column of its document; with --documents of its name, in both")
    validation: str = option("0.1", "PATH, or the fraction of the training documents that picks the checkpoint")
    test: str = option("0.2", "PATH, or the fraction of the documents held out for the final score")

    @property
    def reading(self) -> DataOptions:
        """What the user says of how the documents are read."""
        return DataOptions.of(self)

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

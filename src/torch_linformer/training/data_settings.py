"""The options of a training run that say what its documents are, and what is learned of them."""

from dataclasses import dataclass

from torch_linformer.data.reading.data_options import HELP, QUOTING, DataOptions
from torch_linformer.errors import InputError
from torch_linformer.training.run_options import TASKS, RunOptions, option


@dataclass(frozen=True, kw_only=True)
class DataSettings(RunOptions):
    """Where the documents of a run lie, how they are read, which are held out, and what is learned of them."""

    data: str = option(
        "stdlib", "CSV, TSV, JSON (lines, SQuAD), CoNLL or Parquet file, folder, or name of a dataset on the hub"
    )
    text_column: str | None = option(None, "column with the text, the words, or the context of a question")
    label_column: str | None = option(
        None, "column with the label, number, tags or answers; multilabel: or one column per label, comma-separated"
    )
    label_names: str | None = option(
        None, "A,B,…: names of the labels 0, 1, …; multilabel: of the positions in lists of 0 and 1"
    )
    question_column: str | None = option(None, "column with the question")
    source_column: str | None = option(None, "seq2seq: column with the source text")
    target_column: str | None = option(None, "seq2seq: column with the target text")
    group_column: str | None = option(None, HELP["group_column"])
    encoding: str | None = option(None, HELP["encoding"])
    delimiter: str | None = option(None, HELP["delimiter"])
    quoting: str = option("auto", HELP["quoting"], QUOTING)
    header: bool | None = option(None, HELP["header"])
    text_folder: str | None = option(None, HELP["text_folder"])
    max_errors: int = option(0, "skip up to N unreadable rows")
    documents: str | None = option(
        None, "embed: table of the documents by id; --data then holds queries and document ids"
    )
    query_column: str | None = option(None, "embed: column with the query")
    document_column: str | None = option(
        None, "embed: column with the document; with --documents, column with its id in both tables"
    )
    validation: str = option(
        "0.1", "validation set, which selects the checkpoint: PATH, or fraction of the training documents"
    )
    test: str = option("0.2", "test set, scored once at the end: PATH, or fraction of the documents")
    task: str = option("classify", "what to learn", TASKS)
    seed: int = option(0, "seed of the split, the initial weights, the order and the dropout")

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

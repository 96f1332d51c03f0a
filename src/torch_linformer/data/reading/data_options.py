"""What a user says of data beside where they lie: which columns hold what, and how their files are written."""

import dataclasses
from typing import Any, Self

from torch_linformer.errors import InputError

# The last is a character that no table holds: each line is one cell.
DELIMITERS = {"comma": ",", "tab": "\t", "semicolon": ";", "bar": "|", "none": "\x1f"}
QUOTING = ("auto", "quotes", "none")
OVERFLOW = ("cut", "windows")  # of a document that is too long the end is left out, or windows of it are read
# What the commands say of these options.
HELP = {
    "id_column": "column with an id of each document, which the output keeps  [id, if there is one]",
    "group_column": "column by which documents are kept together in one split: author, patient, thread",
    "encoding": "encoding of text files  [UTF-8, that of a byte order mark, or one that is detected and printed]",
    "delimiter": f"delimiter of a text table: one character, or {', '.join(DELIMITERS)}  [detected]",
    "quoting": "whether quotes enclose cells of a text table",
    "header": "whether the first row of a text table holds the column names  [detected]",
    "text_folder": "folder of the text files that the text column names  [the folder of the table]",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataOptions:
    """The options of the commands that read data, by their names there; None leaves it to the files.

    Attributes:
        text_column: column of the texts, the words, or the context of a question; the label and so on likewise.
        id_column: column of a name of each document, which answers and vectors keep.
        group_column: column of what must stay in one part: an author, a patient, a thread.
        encoding: of files of text; UTF-8, a byte order mark, or what `charset_normalizer` detects.
        delimiter: between the cells of a table: a character, or comma, tab, semicolon, bar, none.
        quoting: whether a quote at the beginning of a cell holds the cell together ("quotes") or is text ("none").
        header: whether the first row of a table names its columns; without it they are called 1, 2, and so on.
        text_folder: folder of the texts of which a table names the files.
        trained: the columns that a model was trained with, by what they hold, which stand in for those not named.
    """

    text_column: str | None = None
    label_column: str | None = None
    question_column: str | None = None
    source_column: str | None = None
    target_column: str | None = None
    query_column: str | None = None
    document_column: str | None = None
    id_column: str | None = None
    group_column: str | None = None
    encoding: str | None = None
    delimiter: str | None = None
    quoting: str = "auto"
    header: bool | None = None
    text_folder: str | None = None
    trained: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        try:
            "".encode(self.encoding or "utf-8")  # unlike `codecs.lookup`, no codec of bytes
        except LookupError:
            raise InputError(f"--encoding {self.encoding}: there is no such encoding; try utf-8 or cp1252") from None
        if self.delimiter is not None and len(self.separator or "") != 1:
            raise InputError(f"--delimiter must be one character or {', '.join(DELIMITERS)}, got {self.delimiter!r}")
        if self.quoting not in QUOTING:
            raise InputError(f"--quoting must be one of {', '.join(QUOTING)}, got {self.quoting!r}")

    @classmethod
    def of(cls, settings: Any) -> Self:
        """Those of them that the settings of a command have."""
        names = [item.name for item in dataclasses.fields(cls) if hasattr(settings, item.name)]
        return cls(**{name: getattr(settings, name) for name in names})

    @property
    def separator(self) -> str | None:
        """The delimiter as a character."""
        return DELIMITERS.get(self.delimiter or "", self.delimiter)

    def column(self, what: str) -> str | None:
        """The column that is named for a "text", a "label" and so on."""
        column: str | None = getattr(self, f"{what}_column")
        return column


NO_OPTIONS = DataOptions()

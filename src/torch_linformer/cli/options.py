"""Options that several commands share."""

from typing import Annotated

import typer

from torch_linformer.data.reading.data_options import HELP, QUOTING

Model = Annotated[str, typer.Argument(metavar="MODEL", help="folder of a trained model")]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="column that holds the text")]
QuestionColumn = Annotated[str | None, typer.Option("--question-column", help="column that holds the question")]
SourceColumn = Annotated[str | None, typer.Option("--source-column", help="seq2seq: column that holds the source")]
TargetColumn = Annotated[str | None, typer.Option("--target-column", help="seq2seq: column that holds the target")]
Documents = Annotated[str | None, typer.Option("--documents", help="embed: table of the documents by name")]
QueryColumn = Annotated[str | None, typer.Option("--query-column", help="embed: column that holds the query")]
DocumentColumn = Annotated[str | None, typer.Option("--document-column", help="embed: column of its document")]
Overflow = Annotated[str, typer.Option("--overflow", help="longer documents: cut | windows")]
Stride = Annotated[int | None, typer.Option("--stride", min=0, help="tokens windows share  [a quarter]")]
IdColumn = Annotated[str | None, typer.Option("--id-column", help=HELP["id_column"])]
Encoding = Annotated[str | None, typer.Option("--encoding", help=HELP["encoding"])]
Delimiter = Annotated[str | None, typer.Option("--delimiter", help=HELP["delimiter"])]
Quoting = Annotated[str, typer.Option("--quoting", help=f"{HELP['quoting']}: {' | '.join(QUOTING)}")]
Header = Annotated[bool | None, typer.Option("--header/--no-header", help=HELP["header"])]
TextFolder = Annotated[str | None, typer.Option("--text-folder", help=HELP["text_folder"])]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="column that holds the label")]
Files = Annotated[
    list[str],
    typer.Argument(metavar="FILE...", help="text, JSON lines, CSV, Parquet; folders, 'patterns*'; - is stdin"),
]
Resume = Annotated[bool, typer.Option("--resume", help="go on with an interrupted run")]
MaxErrors = Annotated[
    int, typer.Option("--max-errors", help="leave out so many records that cannot be read: OUTPUT.errors.jsonl")
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="processes, which share the threads")]
EngineName = Annotated[str, typer.Option("--engine", help="local | ray")]
RayAddress = Annotated[str | None, typer.Option("--ray-address", help="a cluster of Ray  [this machine]")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="documents computed at once")]
Device = Annotated[str, typer.Option("--device", help="auto | cpu | cuda | mps")]
Precision = Annotated[str, typer.Option("--precision", help="auto | fp32 | bf16 | fp16")]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="torch.compile; the first batches wait; slower on a CPU, where it was measured"),
]
Debug = Annotated[bool, typer.Option("--debug", help="show a traceback when something goes wrong")]


def positive_numbers(option: str, text: str, example: str = "512,1024") -> tuple[int, ...]:
    """The numbers of a list such as ``512,1024``; an empty text gives none."""
    parts = [part.strip() for part in text.split(",")] if text else []
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise ValueError(f"{option} {text}: {part!r} is no positive whole number; write {option} {example}")
    return tuple(dict.fromkeys(map(int, parts)))

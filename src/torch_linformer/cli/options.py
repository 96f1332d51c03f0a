"""Options that several commands share."""

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer

from torch_linformer.data.reading.data_options import HELP, QUOTING

Model = Annotated[str, typer.Argument(metavar="MODEL", help="folder of a trained model")]
Encoder = Annotated[
    str, typer.Argument(metavar="MODEL", help="any encoder: folder of a model, name on the hub, or minilm")
]
TextColumn = Annotated[str | None, typer.Option("--text-column", help="column with the text")]
QuestionColumn = Annotated[str | None, typer.Option("--question-column", help="column with the question")]
SourceColumn = Annotated[str | None, typer.Option("--source-column", help="seq2seq: column with the source text")]
Overflow = Annotated[str, typer.Option("--overflow", help="documents longer than the model reads: cut | windows")]
EncoderOverflow = Annotated[
    str | None,
    typer.Option(
        "--overflow",
        help="documents longer than the model reads: cut | windows  [cut; windows, for an encoder that is not linear]",
    ),
]
Stride = Annotated[
    int | None, typer.Option("--stride", min=0, help="overlap of neighboring windows in tokens  [a quarter]")
]
IdColumn = Annotated[str | None, typer.Option("--id-column", help=HELP["id_column"])]
Encoding = Annotated[str | None, typer.Option("--encoding", help=HELP["encoding"])]
Delimiter = Annotated[str | None, typer.Option("--delimiter", help=HELP["delimiter"])]
Quoting = Annotated[str, typer.Option("--quoting", help=f"{HELP['quoting']}: {' | '.join(QUOTING)}")]
Header = Annotated[bool | None, typer.Option("--header/--no-header", help=HELP["header"])]
TextFolder = Annotated[str | None, typer.Option("--text-folder", help=HELP["text_folder"])]
Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE...", help="text, JSON lines, CSV or Parquet files, folders, 'patterns*'; - for standard input"
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="resume an interrupted run")]
MaxErrors = Annotated[
    int, typer.Option("--max-errors", help="skip up to N unreadable records; they are listed in OUTPUT.errors.jsonl")
]
Workers = Annotated[int, typer.Option("--workers", min=1, help="number of processes, which share the CPU threads")]
EngineName = Annotated[str, typer.Option("--engine", help="local | ray")]
RayAddress = Annotated[str | None, typer.Option("--ray-address", help="address of a Ray cluster  [this machine]")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="documents per batch")]
Device = Annotated[str, typer.Option("--device", help="auto | cpu | cuda | mps")]
Precision = Annotated[str, typer.Option("--precision", help="auto | fp32 | bf16 | fp16")]
Compile = Annotated[
    bool,
    typer.Option("--compile", help="use torch.compile: the first batches are slow; slower on every CPU measured"),
]
Debug = Annotated[bool, typer.Option("--debug", help="show the traceback of an error")]

# What several commands hand on as it is, by its name in `DataOptions`: the option, and its default.
READING: dict[str, tuple[Any, Any]] = {
    "text_column": (TextColumn, None),
    "encoding": (Encoding, None),
    "delimiter": (Delimiter, None),
    "quoting": (Quoting, "auto"),
    "header": (Header, None),
    "text_folder": (TextFolder, None),
}


def showing(shared: Mapping[str, tuple[Any, Any]]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Show these options as the last keywords of a command that takes any."""

    def show(command: Callable[..., None]) -> Callable[..., None]:
        signature = inspect.signature(command)
        *named, _ = signature.parameters.values()
        named += [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
            for name, (annotation, default) in shared.items()
        ]
        vars(command)["__signature__"] = signature.replace(parameters=named)
        return command

    return show


def positive_numbers(option: str, text: str, example: str = "512,1024") -> tuple[int, ...]:
    """The numbers of a list such as ``512,1024``; an empty text gives none."""
    parts = [part.strip() for part in text.split(",")] if text else []
    for part in parts:
        if not part.isdecimal() or int(part) < 1:
            raise ValueError(f"{option} {text}: {part!r} is no positive whole number; write {option} {example}")
    return tuple(dict.fromkeys(map(int, parts)))

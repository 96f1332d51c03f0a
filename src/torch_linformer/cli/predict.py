"""``linformer predict``."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import BatchSize, Debug, Device, Model, Precision, TextColumn


def predict(
    model: Model,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="text, JSON lines, CSV, Parquet; - is stdin")],
    text_column: TextColumn = None,
    output: Annotated[
        Path | None, typer.Option("--output", help="file for the lines  [standard output]", show_default=False)
    ] = None,
    batch_size: BatchSize = 16,
    device: Device = "auto",
    precision: Precision = "auto",
    debug: Debug = False,
) -> None:
    """Label documents: a JSON line each, with label, probabilities, tokens and whether it was cut."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from torch_linformer.training.devices import resolve_device, resolve_precision
    from torch_linformer.training.errors import InputError
    from torch_linformer.training.folder import load_model, load_tokenizer
    from torch_linformer.training.predict import Classifier, Skipped, documents, open_output
    from torch_linformer.training.readers import ReadReport, iter_rows, iter_stream

    device = resolve_device(device)
    classifier = Classifier(
        load_model(model),
        load_tokenizer(model),
        device=device,
        precision=resolve_precision(precision, device),
        batch_size=batch_size,
    )
    report, skipped = ReadReport(), Skipped()

    def everything() -> Iterator[tuple[str, str]]:
        for file in files:
            rows = iter_stream(sys.stdin.buffer, report) if file == "-" else iter_rows(file, report)
            yield from documents(rows, file, text_column, skipped)

    for file in files:
        if file != "-" and not Path(file).exists():
            raise InputError(f"{file}: no such file or folder")
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.completed:,} documents"), TimeElapsedColumn())
    written = cut = 0
    with (
        open_output(output) if output else nullcontext(sys.stdout) as stream,
        Progress(*columns, console=console, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task("", total=None)
        for record in classifier.predict(everything()):
            # A file's name may hold what is no text (a lone surrogate): JSON has an escape for it.
            line = json.dumps(record, ensure_ascii=False).encode("utf-8", "backslashreplace").decode()
            stream.write(line + "\n")
            progress.advance(task)
            written, cut = written + 1, cut + record["cut"]
        if not written:
            raise InputError(f"{', '.join(files)}: no document with any text")
        stream.flush()
    counts = (
        (f"cut at {classifier.encode.max_length:,} tokens", cut),
        ("skipped, without text", skipped.empty),
        ("with bytes that are not UTF-8", report.replaced),
    )
    notes = "".join(f", {number:,} {what}" for what, number in counts if number)
    console.print(f"{written:,} documents labelled{notes}", highlight=False)

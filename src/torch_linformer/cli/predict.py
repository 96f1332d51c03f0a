"""``linformer predict``."""

from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli import options
from torch_linformer.cli.document_count import counting_documents
from torch_linformer.cli.missing_paths import check_files, check_model
from torch_linformer.cli.resumable import saying_how_to_go_on
from torch_linformer.cli.streams import check_standard_output


def predict(
    model: options.Model,
    files: options.Files,
    text_column: options.TextColumn = None,
    id_column: options.IdColumn = None,
    encoding: options.Encoding = None,
    delimiter: options.Delimiter = None,
    quoting: options.Quoting = "auto",
    header: options.Header = None,
    text_folder: options.TextFolder = None,
    question_column: options.QuestionColumn = None,
    source_column: options.SourceColumn = None,
    question: Annotated[str | None, typer.Option(help="qa: the question, asked of every document")] = None,
    overflow: options.Overflow = "cut",
    stride: options.Stride = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="one label: none below this probability; several: those above it  [as trained]"),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="report only the N highest probabilities  [all]")] = None,
    output: Annotated[Path | None, typer.Option(help="output file, or folder for parts  [standard output]")] = None,
    batch_size: options.BatchSize = 16,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    compiled: options.Compile = False,
    resume: options.Resume = False,
    max_errors: options.MaxErrors = 0,
    workers: options.Workers = 1,
    engine: options.EngineName = "local",
    ray_address: options.RayAddress = None,
    debug: options.Debug = False,
) -> None:
    """Predict the answer of the model's task for documents.

    One JSON line a document: the answer, the number of the document's tokens, and whether it was cut.
    """
    check_files(files)
    check_model(model)
    from rich.console import Console

    from torch_linformer.inference.answer_files import PredictSettings, answer_files
    from torch_linformer.inference.engines import Engine
    from torch_linformer.reporting.screen import Screen

    if output is None:
        check_standard_output()
    settings = PredictSettings(
        model=model,
        files=tuple(files),
        text_column=text_column,
        id_column=id_column,
        encoding=encoding,
        delimiter=delimiter,
        quoting=quoting,
        header=header,
        text_folder=text_folder,
        question_column=question_column,
        source_column=source_column,
        question=question,
        threshold=threshold,
        top_k=top_k,
        overflow=overflow,
        stride=stride,
        precision=precision,
    )
    screen = Screen(Console(stderr=True))
    with saying_how_to_go_on(resume) if output else nullcontext(), counting_documents(screen.console) as show:
        sentence = answer_files(
            settings,
            output,
            resume=resume,
            max_errors=max_errors,
            device=device,
            batch_size=batch_size,
            engine=Engine(name=engine, workers=workers, ray_address=ray_address),
            compile=compiled,
            on_document=show,
            say=screen.say,
        )
    screen.say(sentence)

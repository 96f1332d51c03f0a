"""``linformer embed``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli import options
from torch_linformer.cli.document_count import counting_documents
from torch_linformer.cli.missing_paths import check_files, check_model
from torch_linformer.cli.resumable import saying_how_to_go_on


def embed(
    model: options.Model,
    files: options.Files,
    output: Annotated[
        Path, typer.Option(help="NAME.parquet or NAME.npy for the vectors, or a folder for parts of them")
    ],
    text_column: options.TextColumn = None,
    id_column: options.IdColumn = None,
    encoding: options.Encoding = None,
    delimiter: options.Delimiter = None,
    quoting: options.Quoting = "auto",
    header: options.Header = None,
    text_folder: options.TextFolder = None,
    overflow: options.Overflow = "cut",
    stride: options.Stride = None,
    normalize: Annotated[bool, typer.Option(help="scale vectors to length 1")] = True,
    prompt_name: Annotated[
        str | None,
        typer.Option(help="prompt of the model folder to put before the texts, such as query  [the default prompt]"),
    ] = None,
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
    """Compute a vector for each document.

    It is pooled from the hidden states of any model: an embedding model, a classifier, or another one.
    """
    check_files(files)
    check_model(model)
    from rich.console import Console

    from torch_linformer.inference.answer_files import EmbedSettings, answer_files
    from torch_linformer.inference.engines import Engine
    from torch_linformer.reporting.screen import Screen

    settings = EmbedSettings(
        model=model,
        files=tuple(files),
        text_column=text_column,
        id_column=id_column,
        encoding=encoding,
        delimiter=delimiter,
        quoting=quoting,
        header=header,
        text_folder=text_folder,
        overflow=overflow,
        stride=stride,
        normalize=normalize,
        prompt_name=prompt_name,
        precision=precision,
    )
    screen = Screen(Console(stderr=True))
    with saying_how_to_go_on(resume), counting_documents(screen.console) as show:
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

"""``linformer predict`` and ``linformer embed``: a model over files."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torch_linformer.cli import options
from torch_linformer.cli.missing_paths import check_files, check_model
from torch_linformer.cli.resumable import saying_how_to_go_on
from torch_linformer.cli.streams import check_standard_output

if TYPE_CHECKING:
    from rich.console import Console

    from torch_linformer.inference.answer_files import FilesSettings

_READING = {  # by their names in FilesSettings
    "id_column": (options.IdColumn, None),
    **options.READING,
    "overflow": (options.Overflow, None),
    "stride": (options.Stride, None),
    "precision": (options.Precision, "auto"),
}
_COMPUTING = {
    "batch_size": (options.BatchSize, 16),
    "device": (options.Device, "auto"),
    "compiled": (options.Compile, False),
    "resume": (options.Resume, False),
    "max_errors": (options.MaxErrors, 0),
    "workers": (options.Workers, 1),
    "engine": (options.EngineName, "local"),
    "ray_address": (options.RayAddress, None),
    "debug": (options.Debug, False),
}


@options.showing(_READING | _COMPUTING)
def predict(
    model: options.Model,
    files: options.Files,
    question_column: options.QuestionColumn = None,
    source_column: options.SourceColumn = None,
    question: Annotated[str | None, typer.Option(help="qa: the question, asked of every document")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="one label: none below this probability; several: those above it  [as trained]"),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="report only the N highest probabilities  [all]")] = None,
    output: Annotated[
        Path | None, typer.Option(help="NAME.jsonl for the lines, or a folder for parts of them  [standard output]")
    ] = None,
    **shared: Any,
) -> None:
    """Predict the answer of the model's task for documents.

    One JSON line a document: the answer, the number of the document's tokens, and whether it was cut.
    """
    check_files(files)
    check_model(model)
    from torch_linformer.inference.answer_files import PredictSettings

    if output is None:
        check_standard_output()
    settings = PredictSettings(
        model=model,
        files=tuple(files),
        question_column=question_column,
        source_column=source_column,
        question=question,
        threshold=threshold,
        top_k=top_k,
        **{name: shared[name] for name in _READING},
    )
    _answer(settings, output, **{name: shared[name] for name in _COMPUTING})


@options.showing(_READING | _COMPUTING)
def embed(
    model: options.Encoder,
    files: options.Files,
    output: Annotated[
        Path, typer.Option(help="NAME.parquet or NAME.npy for the vectors, or a folder for parts of them")
    ],
    normalize: Annotated[bool, typer.Option(help="scale vectors to length 1")] = True,
    prompt_name: Annotated[
        str | None,
        typer.Option(help="prompt of the model folder to put before the texts, such as query  [the default prompt]"),
    ] = None,
    **shared: Any,
) -> None:
    """Compute a vector for each document.

    It is pooled from the hidden states of any model: an embedding model, a classifier, or another one. An encoder that
    is not linear reads documents in windows.
    """
    check_files(files)
    check_model(model)
    from torch_linformer.inference.answer_files import EmbedSettings

    settings = EmbedSettings(
        model=model,
        files=tuple(files),
        normalize=normalize,
        prompt_name=prompt_name,
        **{name: shared[name] for name in _READING},
    )
    _answer(settings, output, **{name: shared[name] for name in _COMPUTING})


def _answer(
    settings: "FilesSettings",
    output: Path | None,
    *,
    compiled: bool,
    resume: bool,
    engine: str,
    workers: int,
    ray_address: str | None,
    debug: bool,
    **computing: Any,
) -> None:
    from rich.console import Console

    from torch_linformer.inference.answer_files import answer_files
    from torch_linformer.inference.engines import Engine
    from torch_linformer.reporting.screen import Screen

    screen = Screen(Console(stderr=True))
    with saying_how_to_go_on(resume) if output else nullcontext(), _counting(screen.console) as show:
        sentence = answer_files(
            settings,
            output,
            resume=resume,
            engine=Engine(name=engine, workers=workers, ray_address=ray_address),
            compile=compiled,
            on_document=show,
            say=screen.say,
            **computing,
        )
    screen.say(sentence)


@contextmanager
def _counting(console: "Console") -> Iterator[Callable[[int], None]]:
    """A function that shows how many documents are done, on a terminal."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} documents"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda number: progress.update(task, completed=number)

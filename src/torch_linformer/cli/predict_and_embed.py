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

_SHARED = {
    "id_column": (options.IdColumn, None),
    **options.READING,
    "stride": (options.Stride, None),
    "precision": (options.Precision, "auto"),
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


@options.showing(_SHARED)
def predict(
    model: options.Model,
    files: options.Files,
    question_column: options.QuestionColumn = None,
    source_column: options.SourceColumn = None,
    question: Annotated[str | None, typer.Option(help="qa: the question, asked of every document")] = None,
    threshold: Annotated[
        float | None,
        typer.Option(help="one label: no label below this probability; several: all above it  [as trained]"),
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="report only the N highest probabilities  [all]")] = None,
    overflow: options.Overflow = "cut",
    output: Annotated[
        Path | None, typer.Option(help="NAME.jsonl for the lines, or a folder for parts of them  [standard output]")
    ] = None,
    **shared: Any,
) -> None:
    """Predict the answer of the model's task for documents.

    One JSON line per document: the answer, the number of the document's tokens, and whether it was cut.
    """
    check_files(files)
    check_model(model)
    from torch_linformer.inference.answer_files import PredictSettings

    if output is None:
        check_standard_output()
    own: dict[str, Any] = {"question_column": question_column, "source_column": source_column, "question": question}
    own |= {"threshold": threshold, "top_k": top_k, "overflow": overflow}
    _answer(PredictSettings, output, model=model, files=tuple(files), **own, **shared)


@options.showing(_SHARED)
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
    overflow: options.EncoderOverflow = None,
    **shared: Any,
) -> None:
    """Compute a vector for each document.

    It is pooled from the hidden states of any model: an embedding model, a classifier, or another one. An encoder that
    is not linear reads documents in windows.
    """
    check_files(files)
    check_model(model)
    from torch_linformer.inference.answer_files import EmbedSettings

    own: dict[str, Any] = {"normalize": normalize, "prompt_name": prompt_name, "overflow": overflow}
    _answer(EmbedSettings, output, model=model, files=tuple(files), **own, **shared)


def _answer(
    kind: "type[FilesSettings]",
    output: Path | None,
    *,
    compiled: bool,
    resume: bool,
    engine: str,
    workers: int,
    ray_address: str | None,
    max_errors: int,
    device: str,
    batch_size: int,
    debug: bool,
    **settings: Any,
) -> None:
    from rich.console import Console

    from torch_linformer.inference.answer_files import answer_files
    from torch_linformer.inference.engines import Engine
    from torch_linformer.reporting.screen import Screen

    screen = Screen(Console(stderr=True))
    with saying_how_to_go_on(resume) if output else nullcontext(), _counting(screen.console) as show:
        sentence = answer_files(
            kind(**settings),
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


@contextmanager
def _counting(console: "Console") -> Iterator[Callable[[int], None]]:
    """A function that shows how many documents are done, on a terminal."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.completed:,} documents"), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        yield lambda number: progress.update(task, completed=number)

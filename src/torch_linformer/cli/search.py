"""``linformer search``."""

import sys
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from torch_linformer.cli import options
from torch_linformer.cli.missing_paths import check_files, check_model
from torch_linformer.cli.streams import check_standard_output
from torch_linformer.errors import InputError

if TYPE_CHECKING:
    from torch_linformer.inference.search import Hit

_PROMPT = "query> "


@options.showing({"id_column": (options.IdColumn, None), **options.READING})
def search(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_FOLDER",
            help="any encoder: folder of a model, name on the hub, or minilm; or a folder that a search has written",
        ),
    ],
    query: Annotated[
        list[str] | None, typer.Argument(metavar="[QUERY]...", help="what to look for  [asked for, on a terminal]")
    ] = None,
    documents: Annotated[
        str | None,
        typer.Option(help="documents to read, as for linformer embed: a file, folder or 'pattern*'  [those of FOLDER]"),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="folder that keeps what was read  [DOCUMENTS.search, beside them]")
    ] = None,
    vectors: Annotated[
        int | None,
        typer.Option(min=1, help="maximum number of vectors per document; fewer find less  [one per window]"),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="file with a query on each line, or a table of them; - for standard input")
    ] = None,
    top_k: Annotated[int, typer.Option(min=1, help="documents for each query")] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="one line of JSON for each query")] = False,
    batch_size: options.BatchSize = 16,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    debug: options.Debug = False,
    **reading: Any,
) -> None:
    """Find the passages of documents that answer a query.

    The documents need no preparation, and the model no training. What was read is kept in a folder: the next search
    reads only what is new.
    """
    if query and queries is not None:
        raise ValueError("--queries takes the place of queries as arguments: give one of both")
    asks = not query and queries is None
    if asks and not sys.stdin.isatty():
        raise ValueError("no query: give one as an argument, or many with --queries (- for standard input)")
    if documents == "-" and (str(queries) == "-" or asks):
        raise ValueError("--documents -: standard input has the documents; give the queries as arguments")
    check_files([documents] if documents else [])
    check_model(model)
    check_standard_output()
    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, SpinnerColumn, TimeElapsedColumn, TimeRemainingColumn

    from torch_linformer.inference.search import Searcher
    from torch_linformer.reporting.screen import Screen

    screen = Screen(Console(stderr=True))
    wanted = list(query or []) if queries is None else _queries(queries)
    columns = (SpinnerColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=screen.console, disable=not screen.console.is_terminal) as progress:
        task = progress.add_task("", total=None)
        searcher = Searcher(
            model,
            documents,
            output=output,
            vectors=vectors,
            batch_size=batch_size,
            device=device,
            precision=precision,
            say=screen.say,
            on_document=lambda number, total: progress.update(task, completed=number, total=total),
            **reading,
        )
    if asks:
        for asked in _asked():
            try:
                _show([asked], searcher.search([asked], top_k), as_json)
            except InputError as error:  # of this query
                screen.say(str(error))
    else:
        _show(wanted, searcher.search(wanted, top_k), as_json)


def _queries(path: Path) -> list[str]:
    """The queries of a table, or of the lines of a text."""
    from torch_linformer.data.reading.data_options import NO_OPTIONS
    from torch_linformer.data.reading.formats import TABLE_SUFFIXES, file_suffix
    from torch_linformer.data.reading.records import QUERIES
    from torch_linformer.data.reading.rows import ReadReport
    from torch_linformer.data.reading.streamed import documents_of

    check_files([str(path)])
    if file_suffix(path) in TABLE_SUFFIXES:
        return [row.text for row in documents_of([str(path)], QUERIES, NO_OPTIONS, ReadReport())]
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"{path}: queries must be UTF-8, and these are not") from None
    return [line.strip() for line in text.splitlines() if line.strip()]


def _asked() -> Iterator[str]:
    """What is typed, up to an empty line or Ctrl-D."""
    import readline  # noqa: F401 - gives input() a history and keys to edit with

    while True:
        try:
            line = input(_PROMPT).strip()
        except EOFError:
            print()
            return
        if not line:
            return
        yield line


def _show(queries: Sequence[str], hits: Sequence[Sequence["Hit"]], as_json: bool) -> None:
    from dataclasses import asdict

    from torch_linformer.inference.answer_files import json_line
    from torch_linformer.reporting.tables import printable

    for query, found in zip(queries, hits, strict=True):
        if as_json:
            print(json_line({"query": query, "hits": [asdict(hit) for hit in found]}), end="")
            continue
        if len(queries) > 1:
            print(printable(query))
        for hit in found:
            passage = textwrap.indent(textwrap.dedent(printable(hit.passage)), " " * 6)
            print(f"{hit.score:5.2f} {printable(hit.id)}\n{passage}")
    sys.stdout.flush()

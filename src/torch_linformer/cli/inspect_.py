"""``linformer inspect``."""

import re
from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.missing_paths import check_model
from torch_linformer.cli.options import Debug, Device, Model


def inspect_(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT|FILE", help="a document, or its file; - for standard input")],
    output: Annotated[Path, typer.Option(help="HTML file to write")] = Path("inspect.html"),
    layers: Annotated[
        str | None, typer.Option(help="layers to show, such as 0,5; fewer layers have finer detail  [all]")
    ] = None,
    cut: Annotated[bool, typer.Option("--cut", help="truncate a text that is too long")] = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Look inside a model while it reads a document.

    Writes one page, which opens without a network: what the slots of each layer and head read, how much each token
    attends to every other one, and the document with the tokens on which the answer depends.
    """
    check_model(model)
    from rich.console import Console

    from torch_linformer.analysis.page import inspect_folder
    from torch_linformer.reporting.tables import printable

    chosen = _numbers(layers)
    with Console(stderr=True, highlight=False).status("reading the document") as status:
        sentence = inspect_folder(
            model, text, output, layers=chosen, cut=cut, device=device, on_progress=lambda doing: status.update(doing)
        )
    print(printable(sentence))


def _numbers(layers: str | None) -> list[int] | None:
    from torch_linformer.errors import InputError

    if layers is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", layers):
        raise InputError(f"--layers {layers}: write numbers with commas between them, such as 0,5")
    return [int(number) for number in layers.split(",")]

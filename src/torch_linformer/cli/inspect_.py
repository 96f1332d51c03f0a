"""``linformer inspect``."""

import re
import sys
from itertools import islice
from pathlib import Path
from typing import Annotated, cast

import typer

from torch_linformer.cli.options import Debug, Device, Model

# One word with a suffix or a folder in it is meant as the name of a file.
_LIKE_A_FILE = re.compile(r"(\S*[/\\]\S*|\S+\.\w{1,7})")


def inspect_(
    model: Model,
    text: Annotated[str, typer.Argument(metavar="TEXT|FILE", help="a document, or the file it is in; - is stdin")],
    output: Annotated[Path, typer.Option("--output", help="the page to write")] = Path("inspect.html"),
    layers: Annotated[
        str | None, typer.Option("--layers", help="such as 0,5: fewer show finer detail  [all]", show_default=False)
    ] = None,
    cut: Annotated[bool, typer.Option("--cut", help="read the beginning of a text that is too long")] = False,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Look inside a model while it reads a document.

    Writes one page, which opens without a network: what the slots of each layer and head read, what each token takes
    from each other one, and the document with the tokens that the answer draws on.
    """
    from rich.console import Console
    from torch import nn

    from torch_linformer.analysis.inspection.inspect_text import inspect_text
    from torch_linformer.analysis.inspection.page import check_bokeh, write_inspection
    from torch_linformer.opening.devices import resolve_device
    from torch_linformer.opening.model_folder import load_model, load_tokenizer

    check_bokeh()
    chosen = _numbers(layers)
    device = resolve_device(device)
    document, source = _read(text)
    loaded, tokenizer = load_model(model), load_tokenizer(model)
    cast(nn.Module, loaded).to(device)
    console = Console(stderr=True, highlight=False)
    with console.status("reading the document") as status:
        inspection = inspect_text(
            loaded, tokenizer, document, layers=chosen, cut=cut, on_progress=lambda doing: status.update(doing)
        )
        status.update("writing the page")
        size = write_inspection(output, inspection, model=Path(model).resolve().name, source=source)
    tokens = f"{len(inspection.tokens):,} tokens"
    if inspection.num_tokens > len(inspection.tokens):
        tokens = f"the first {len(inspection.tokens):,} of {inspection.num_tokens:,} tokens"
    print(f"{output}: {tokens} of {source}, {size / 1e6:.1f} MB")


def _numbers(layers: str | None) -> list[int] | None:
    from torch_linformer.errors import InputError

    if layers is None:
        return None
    if not re.fullmatch(r"\d+(,\d+)*", layers):
        raise InputError(f"--layers {layers}: write numbers with commas between them, such as 0,5")
    return [int(number) for number in layers.split(",")]


def _read(given: str) -> tuple[str, str]:
    """The document, and where it came from."""
    from torch_linformer.data.reading.columns import NOT_NAMED
    from torch_linformer.data.reading.readers import iter_rows, iter_stream
    from torch_linformer.data.reading.records import TEXT
    from torch_linformer.errors import InputError
    from torch_linformer.inference.predict import Skipped, documents

    if given != "-" and not _exists(given):
        if _LIKE_A_FILE.fullmatch(given):
            raise InputError(f"{given}: no such file; a text of one word like this goes through standard input, as -")
        return given, "the text that was given"
    name = "standard input" if given == "-" else Path(given).name
    rows = iter_stream(sys.stdin.buffer) if given == "-" else iter_rows(given)
    found = list(islice(documents(rows, name, TEXT, NOT_NAMED, Skipped()), 2))
    if len(found) != 1:
        raise InputError(
            f"{name}: {'holds more than one document' if found else 'no document with any text'}; give one"
        )
    return found[0].text, name


def _exists(given: str) -> bool:
    try:
        return given != "" and Path(given).exists()  # the path without a name is this folder
    except (OSError, ValueError):  # too long for a name, or with a NUL in it
        return False

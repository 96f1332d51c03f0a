"""``linformer export``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import Debug, Model


def export(
    model: Model,
    format: Annotated[str, typer.Option(help="onnx | torch")] = "onnx",
    output: Annotated[Path | None, typer.Option(help="output folder  [MODEL-FORMAT]")] = None,
    debug: Debug = False,
) -> None:
    """Write a model as one file for onnxruntime or torch.

    The file is kept only if its outputs agree with the model's. The tokenizer is written beside it.
    """
    from rich.console import Console

    from torch_linformer.api.commands import export as write
    from torch_linformer.reporting.screen import Screen
    from torch_linformer.reporting.tables import printable

    file, difference = write(model, output, format=format, screen=Screen(Console(stderr=True)))
    print(f"{printable(str(file))}: its scores differ from the model's by at most {difference:.0e} of the largest")

"""``linformer import``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import Debug


def import_(
    source: Annotated[str, typer.Argument(metavar="SOURCE", help="checkpoint file")],
    origin: Annotated[str, typer.Option("--from", help="lucidrains | linformer-pytorch | fairseq")],
    output: Annotated[Path, typer.Option(help="output folder")],
    heads: Annotated[
        int | None, typer.Option(help="lucidrains, fairseq: number of heads, if the file does not say")
    ] = None,
    activation: Annotated[str | None, typer.Option(help="linformer-pytorch: gelu | relu  [gelu]")] = None,
    debug: Debug = False,
) -> None:
    """Convert another package's weights into a model folder."""
    from torch_linformer.opening.load import import_model
    from torch_linformer.reporting.tables import printable

    model = import_model(source, origin, output, heads=heads, activation=activation)
    print(f"{printable(str(output))}: {type(model).__name__}, {model.num_parameters():,} parameters")

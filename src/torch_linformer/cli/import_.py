"""``linformer import``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import Debug


def import_(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="checkpoint file, or folder of a BERT, RoBERTa or their kin")
    ],
    origin: Annotated[
        str,
        typer.Option(
            "--from", help="lucidrains | linformer-pytorch | fairseq | bert | roberta | xlm-roberta | distilbert"
        ),
    ],
    output: Annotated[Path, typer.Option(help="folder to make")],
    heads: Annotated[int | None, typer.Option(help="lucidrains, fairseq: heads, where the file does not tell")] = None,
    activation: Annotated[str | None, typer.Option(help="linformer-pytorch: gelu | relu  [gelu]")] = None,
    k: Annotated[int | None, typer.Option(help="bert and kin: slots K  [min(256, max-length / 4)]")] = None,
    max_length: Annotated[int | None, typer.Option(help="bert and kin: tokens read  [the original's]")] = None,
    projection: Annotated[
        str | None, typer.Option(help="bert and kin: mean | linear (learned, begins as means)  [mean]")
    ] = None,
    debug: Debug = False,
) -> None:
    """Convert another package's weights into a model folder."""
    from torch_linformer.opening.importing import import_model
    from torch_linformer.reporting.screen import printable

    options = {"heads": heads, "activation": activation, "k": k, "max_length": max_length, "projection": projection}
    model = import_model(source, origin, output, **options)
    print(f"{printable(str(output))}: {type(model).__name__}, {model.num_parameters():,} parameters")

"""``linformer spectrum``."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import Debug, Device, TextColumn, positive_numbers


def spectrum(
    model: Annotated[
        str,
        typer.Argument(metavar="MODEL", help="folder or hub name of any transformers encoder or decoder, or minilm"),
    ],
    data: Annotated[str, typer.Option(help="documents, as for linformer train")],
    text_column: TextColumn = None,
    length: Annotated[str, typer.Option(help="document lengths N in tokens, such as 128,512")] = "512",
    documents: Annotated[int, typer.Option(min=1, help="number of documents of each length")] = 16,
    index: Annotated[
        int | None, typer.Option(min=1, help="index of the singular value at which heads are compared  [N/4]")
    ] = None,
    exact_up_to: Annotated[
        int, typer.Option(min=0, help="longest N for which all singular values are computed")
    ] = 4096,
    rank: Annotated[int, typer.Option(min=1, help="number of singular values computed for longer documents")] = 1024,
    seed: Annotated[int, typer.Option(min=0, help="random seed of the choice of documents")] = 0,
    output: Annotated[Path | None, typer.Option(help="output folder  [runs/spectrum-MODEL]")] = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Measure the rank of a model's attention, and suggest K.

    The paper's Figure 1 for your model and texts, and the number of slots K that they need: one that the loss of the
    output suggests, and for every layer those that keep 90, 95 and 99 % of the energy (the squares of the singular
    values). linformer train --k @FOLDER/spectrum.json takes them.
    """
    from torch_linformer.analysis.spectrum_report import run_spectrum

    run_spectrum(
        model,
        data,
        text_column=text_column,
        lengths=positive_numbers("--length", length),
        documents=documents,
        index=index,
        exact_up_to=exact_up_to,
        rank=rank,
        seed=seed,
        output=output or Path("runs") / f"spectrum-{Path(model).absolute().name}",
        device=device,
        command="linformer " + shlex.join(sys.argv[1:]),
    )

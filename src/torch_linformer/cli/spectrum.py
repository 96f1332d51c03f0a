"""``linformer spectrum``."""

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import Debug, Device, TextColumn, positive_numbers


def spectrum(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="folder of any transformers encoder or decoder")],
    data: Annotated[str, typer.Option("--data", help="documents, as for train")],
    text_column: TextColumn = None,
    length: Annotated[str, typer.Option("--length", help="tokens N of the documents, such as 128,512")] = "512",
    documents: Annotated[int, typer.Option("--documents", min=1, help="documents of each length")] = 16,
    index: Annotated[
        int | None,
        typer.Option("--index", min=1, help="singular value at which heads are compared  [N/4]", show_default=False),
    ] = None,
    exact_up_to: Annotated[
        int, typer.Option("--exact-up-to", min=0, help="longest N of which all singular values are computed")
    ] = 4096,
    rank: Annotated[int, typer.Option("--rank", min=1, help="how many are computed of a longer one")] = 1024,
    seed: Annotated[int, typer.Option("--seed", min=0, help="decides which documents are drawn")] = 0,
    output: Annotated[
        Path | None, typer.Option("--output", help="folder to make  [runs/spectrum-MODEL]", show_default=False)
    ] = None,
    device: Device = "auto",
    debug: Debug = False,
) -> None:
    """Show how low the rank of a model's attention is, and which K keeps it.

    The paper's Figure 1 for a model and texts of yours, and for every layer the K that keeps 90, 95 and 99 % of the
    energy, as linformer train --k @FOLDER/spectrum.json takes it.
    """
    from torch_linformer.analysis.spectra.several_lengths import measure_lengths
    from torch_linformer.analysis.spectra.spectrum_report import SpectrumRun, show_spectra, write_spectrum_report
    from torch_linformer.data.equal_lengths import beginnings
    from torch_linformer.data.reading.columns import NamedColumns
    from torch_linformer.data.reading.documents import load_documents
    from torch_linformer.data.reading.records import TEXT
    from torch_linformer.errors import InputError
    from torch_linformer.opening.devices import resolve_device
    from torch_linformer.opening.new_folder import check_free, new_folder
    from torch_linformer.opening.pretrained import check_lengths, load_backbone, load_own_tokenizer
    from torch_linformer.reporting.screen import Screen

    lengths = _lengths(length, index, exact_up_to, rank)
    output = output or Path("runs") / f"spectrum-{Path(model).absolute().name}"
    check_free(output)
    device = resolve_device(device)
    backbone, tokenizer = load_backbone(model, device), load_own_tokenizer(model)
    check_lengths(backbone, model, lengths)
    screen = Screen()
    corpus = load_documents(data, TEXT, named=NamedColumns(text_column))
    for note in corpus.notes:
        screen.say(note)
    drawn = [beginnings(tokenizer, corpus.dataset, each, documents, seed) for each in lengths]
    for group in drawn:
        screen.say(group.describe(documents))
    try:
        spectra = measure_lengths(
            backbone, [group.documents for group in drawn], screen, exact_up_to=exact_up_to, rank=rank
        )
    except ValueError as error:
        raise InputError(f"{model}: {error}") from None
    run = SpectrumRun(
        model=model,
        data=data,
        command="linformer " + shlex.join(sys.argv[1:]),
        device=device,
        settings={
            "--length": length,
            "--documents": str(documents),
            "--exact-up-to": str(exact_up_to),
            "--rank": str(rank),
            "--seed": str(seed),
        },
        spectra=spectra,
        shorter=[group.shorter for group in drawn],
        index=index,
    )
    with new_folder(output) as folder:
        write_spectrum_report(folder, run)
    show_spectra(run, output, screen)


def _lengths(text: str, index: int | None, exact_up_to: int, rank: int) -> tuple[int, ...]:
    lengths = positive_numbers("--length", text)
    if not lengths:
        raise ValueError("--length: give at least one, such as --length 512")
    for each in lengths:
        computed = each if each <= exact_up_to else min(each, rank)
        if index is not None and index > computed:
            raise ValueError(f"--index {index}: at --length {each} only {computed} singular values are computed")
    return lengths

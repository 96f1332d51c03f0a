"""``linformer predict``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli import options
from torch_linformer.cli.document_count import counting_documents
from torch_linformer.cli.streams import check_standard_output


def predict(
    model: options.Model,
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="text, JSON lines, CSV, Parquet; - is stdin")],
    text_column: options.TextColumn = None,
    question_column: options.QuestionColumn = None,
    source_column: options.SourceColumn = None,
    question: Annotated[str | None, typer.Option(help="asked of every document")] = None,
    overflow: options.Overflow = "cut",
    stride: options.Stride = None,
    output: Annotated[Path | None, typer.Option(help="file for the lines  [standard output]")] = None,
    batch_size: options.BatchSize = 16,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    debug: options.Debug = False,
) -> None:
    """Predict the answer of the model's task for documents.

    One JSON line a document: the answer, the number of the document's tokens, and whether it was cut.
    """
    from rich.console import Console

    from torch_linformer.data.reading.columns import NamedColumns
    from torch_linformer.data.reading.streamed import check_there
    from torch_linformer.inference.predict import Predictor, open_output, predict_files
    from torch_linformer.opening.devices import resolve_device, resolve_precision
    from torch_linformer.opening.model_folder import load_model, load_tokenizer

    if output is None:
        check_standard_output()
    device = resolve_device(device)
    predictor = Predictor(
        load_model(model),
        load_tokenizer(model),
        overflow=overflow,
        stride=stride,
        device=device,
        precision=resolve_precision(precision, device),
        batch_size=batch_size,
    )
    check_there(files)  # before the output is opened
    console = Console(stderr=True)
    with open_output(output) as stream, counting_documents(console) as show:
        sentence = predict_files(
            predictor,
            files,
            stream,
            named=NamedColumns(text_column, question=question_column, source=source_column),
            question=question,
            on_document=show,
        )
    console.print(sentence, highlight=False)

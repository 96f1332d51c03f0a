"""``linformer evaluate``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli import options
from torch_linformer.cli.missing_paths import check_data, check_model


def evaluate(
    model: options.Model,
    data: Annotated[str, typer.Option(help="documents with labels, as for linformer train")],
    text_column: options.TextColumn = None,
    encoding: options.Encoding = None,
    delimiter: options.Delimiter = None,
    quoting: options.Quoting = "auto",
    header: options.Header = None,
    text_folder: options.TextFolder = None,
    max_errors: options.MaxErrors = 0,
    label_column: options.LabelColumn = None,
    question_column: options.QuestionColumn = None,
    source_column: options.SourceColumn = None,
    target_column: options.TargetColumn = None,
    documents: options.Documents = None,
    query_column: options.QueryColumn = None,
    document_column: options.DocumentColumn = None,
    max_length: Annotated[
        int | None, typer.Option(min=4, help="maximum input length in tokens  [that of the model]")
    ] = None,
    overflow: options.Overflow = "cut",
    stride: options.Stride = None,
    output: Annotated[Path | None, typer.Option(help="output file of the scores  [MODEL/evaluation.json]")] = None,
    batch_size: options.BatchSize = 16,
    device: options.Device = "auto",
    precision: options.Precision = "auto",
    debug: options.Debug = False,
) -> None:
    """Score a trained model on documents of its task."""
    check_model(model)
    check_data(data, documents)
    from torch_linformer.data.reading.data_options import DataOptions
    from torch_linformer.inference.evaluate import evaluate as score
    from torch_linformer.opening.folders import check_writable
    from torch_linformer.reporting.files import write_json
    from torch_linformer.reporting.screen import Screen
    from torch_linformer.reporting.tables import format_scores

    path = output or Path(model) / "evaluation.json"
    if Path(model).exists():  # a missing model is reported first
        check_writable(path)
    screen = Screen()
    task, scores = score(
        model,
        data,
        documents=documents,
        options=DataOptions(
            text_column=text_column,
            label_column=label_column,
            question_column=question_column,
            source_column=source_column,
            target_column=target_column,
            query_column=query_column,
            document_column=document_column,
            encoding=encoding,
            delimiter=delimiter,
            quoting=quoting,
            header=header,
            text_folder=text_folder,
        ),
        max_errors=max_errors,
        max_length=max_length,
        overflow=overflow,
        stride=stride,
        batch_size=batch_size,
        device=device,
        precision=precision,
        screen=screen,
    )
    write_json(path, scores)
    shown = format_scores({name: scores[name] for name in task.headline})
    screen.table(f"{scores['documents']:,} documents of {data}", tuple(shown), [tuple(shown.values())])
    screen.say(f"all scores are in {path}")

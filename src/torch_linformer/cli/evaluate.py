"""``linformer evaluate``."""

from pathlib import Path
from typing import Annotated, Any

import typer

from torch_linformer.cli import options
from torch_linformer.cli.missing_paths import check_data, check_model
from torch_linformer.errors import flag

_COLUMNS = {
    "label_column": "column with the label",
    "question_column": "column with the question",
    "source_column": "seq2seq: column with the source text",
    "target_column": "seq2seq: column with the target text",
    "query_column": "embed: column with the query",
    "document_column": "embed: column with the document or its id",
}
_READING = options.READING | {
    name: (Annotated[str | None, typer.Option(flag(name), help=text)], None) for name, text in _COLUMNS.items()
}


@options.showing(_READING)
def evaluate(
    model: options.Model,
    data: Annotated[str, typer.Option(help="documents with labels, as for linformer train")],
    documents: Annotated[str | None, typer.Option(help="embed: table of the documents by id")] = None,
    max_errors: Annotated[int, typer.Option(min=0, help="skip up to N unreadable rows")] = 0,
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
    **reading: Any,
) -> None:
    """Score a trained model on documents of its task."""
    check_model(model)
    check_data(data, documents)
    from torch_linformer.data.reading.data_options import DataOptions
    from torch_linformer.inference.evaluate import evaluate as score
    from torch_linformer.opening.folder import check_writable
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
        options=DataOptions(**reading),
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

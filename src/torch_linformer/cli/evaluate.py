"""``linformer evaluate``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import (
    BatchSize,
    Debug,
    Device,
    LabelColumn,
    Model,
    Overflow,
    Precision,
    QuestionColumn,
    SourceColumn,
    Stride,
    TargetColumn,
    TextColumn,
)


def evaluate(
    model: Model,
    data: Annotated[str, typer.Option("--data", help="documents with labels, as for train")],
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    question_column: QuestionColumn = None,
    source_column: SourceColumn = None,
    target_column: TargetColumn = None,
    overflow: Overflow = "cut",
    stride: Stride = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="file for the scores  [MODEL/evaluation.json]", show_default=False),
    ] = None,
    batch_size: BatchSize = 16,
    device: Device = "auto",
    precision: Precision = "auto",
    debug: Debug = False,
) -> None:
    """Score a trained model on documents of its task."""
    from torch_linformer.data.reading.columns import NamedColumns
    from torch_linformer.inference.evaluate import evaluate as score
    from torch_linformer.inference.evaluate import write_scores
    from torch_linformer.opening.new_folder import check_writable
    from torch_linformer.reporting.screen import Screen
    from torch_linformer.reporting.tables import format_scores

    path = output or Path(model) / "evaluation.json"
    if Path(model).exists():  # or else that is what is to be said
        check_writable(path)
    screen = Screen()
    task, scores = score(
        model,
        data,
        named=NamedColumns(text_column, label_column, question_column, source_column, target_column),
        overflow=overflow,
        stride=stride,
        batch_size=batch_size,
        device=device,
        precision=precision,
        screen=screen,
    )
    write_scores(path, scores)
    shown = format_scores({name: scores[name] for name in task.headline})
    screen.table(f"{scores['documents']:,} documents of {data}", tuple(shown), [tuple(shown.values())])
    screen.say(f"all scores are in {path}")

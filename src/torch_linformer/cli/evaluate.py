"""``linformer evaluate``."""

from pathlib import Path
from typing import Annotated

import typer

from torch_linformer.cli.options import BatchSize, Debug, Device, LabelColumn, Model, Precision, TextColumn


def evaluate(
    model: Model,
    data: Annotated[str, typer.Option("--data", help="documents with labels, as for train")],
    text_column: TextColumn = None,
    label_column: LabelColumn = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", help="file for the scores  [MODEL/evaluation.json]", show_default=False),
    ] = None,
    batch_size: BatchSize = 16,
    device: Device = "auto",
    precision: Precision = "auto",
    debug: Debug = False,
) -> None:
    """Score a trained model on documents with labels."""
    from torch_linformer.training.evaluate import evaluate as score
    from torch_linformer.training.evaluate import write_scores
    from torch_linformer.training.screen import Screen

    screen = Screen()
    task, scores = score(
        model,
        data,
        text_column=text_column,
        label_column=label_column,
        batch_size=batch_size,
        device=device,
        precision=precision,
        screen=screen,
    )
    path = output or Path(model) / "evaluation.json"
    write_scores(path, scores)
    screen.table(
        f"{scores['documents']:,} documents of {data}",
        tuple(name.replace("_", "-") for name in task.headline),
        [[f"{scores[name]:.4f}" for name in task.headline]],
    )
    screen.say(f"all scores are in {path}")

"""``linformer info``."""

from torch_linformer.cli.options import Debug, Model


def info(model: Model, debug: Debug = False) -> None:
    """Describe a model folder."""
    from torch_linformer.opening.summary import summary_rows
    from torch_linformer.reporting.screen import Screen

    Screen().table(model, ("", ""), summary_rows(model))

"""``linformer train``."""

import dataclasses
import inspect
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from torch_linformer.training.settings import TrainSettings, flag, read_config


def train(**options: Any) -> None:
    """Train a model and score it on held-out documents.

    Without arguments it learns to tell which package of Python's own standard library a source file belongs to.
    """
    from torch_linformer.training.run import train as run
    from torch_linformer.training.trainer import Interrupted

    options.pop("debug")
    config = options.pop("config")
    given = {name: value for name, value in options.items() if value is not None}
    options = {**(read_config(config) if config else {}), **given}
    resume = options.pop("resume", False)
    settings = TrainSettings(**options)
    command = "linformer " + shlex.join(sys.argv[1:])
    try:
        run(settings, resume=resume, command=command)
    except (Interrupted, KeyboardInterrupt):
        resumed = command if resume else f"{command} --resume"
        print(f"stopped; to go on:  {resumed}", file=sys.stderr)
        raise SystemExit(130) from None


def _parameters() -> list[inspect.Parameter]:
    """An option for each field of the settings; None means not given, so that --config can say."""
    hints = get_type_hints(TrainSettings)
    parameters = []
    for item in dataclasses.fields(TrainSettings):
        text = item.metadata["help"]
        if item.metadata["choices"]:
            text += f": {' | '.join(item.metadata['choices'])}"
        if item.default is not None:
            text += f"  [{item.default}]"
        names = flag(item.name)
        if hints[item.name] is bool:
            names, text = (
                f"{names}/--no-{names.removeprefix('--')}",
                f"{item.metadata['help']}  [{'yes' if item.default else 'no'}]",
            )
        option = typer.Option(names, help=text, show_default=False)
        parameters.append(_keyword(item.name, Annotated[hints[item.name] | None, option], None))
    config = Annotated[Path | None, typer.Option(help="TOML file with any of these options", show_default=False)]
    resume = Annotated[bool | None, typer.Option("--resume", help="go on with an interrupted run")]
    debug = Annotated[bool, typer.Option("--debug", help="show a traceback when something goes wrong")]
    extra = (("config", config, None), ("resume", resume, None), ("debug", debug, False))
    return [*parameters, *(_keyword(*each) for each in extra)]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


train.__signature__ = inspect.Signature(_parameters())  # type: ignore[attr-defined]

"""Commands whose options are the fields of settings, and which resume after an interruption."""

import dataclasses
import inspect
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from torch_linformer.cli.options import Debug
from torch_linformer.cli.started_by import speaks_for_all
from torch_linformer.errors import FORMER_NAMES, flag
from torch_linformer.training.option_fields import read_config, renamed


def run_resumable(run: Callable[..., object], settings: type, options: dict[str, Any]) -> None:
    """Call ``run`` with the settings from the options and ``--config``; Ctrl-C prints how to resume."""
    from torch_linformer.opening import processes
    from torch_linformer.training.fitting import Interrupted

    options.pop("debug")
    config = options.pop("config")
    given = renamed({name: value for name, value in options.items() if value is not None})
    options = {**(read_config(config, settings) if config else {}), **given}
    resume = options.pop("resume", False)
    chosen = settings(**options)
    with saying_how_to_go_on(resume) as command:
        try:
            run(chosen, resume=resume, command=command)
        except Interrupted:
            raise KeyboardInterrupt from None
        processes.leave()


@contextmanager
def saying_how_to_go_on(resume: bool) -> Iterator[str]:
    """The command as it was given; Ctrl-C ends it with the command that goes on, and status 130."""
    processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
    start = "linformer" if processes == "1" else f"torchrun --nproc-per-node {processes} -m torch_linformer.cli"
    command = f"{start} {shlex.join(sys.argv[1:])}"
    try:
        yield command
    except KeyboardInterrupt:
        if speaks_for_all():
            print(f"stopped; to go on:  {command if resume else f'{command} --resume'}", file=sys.stderr)
        raise SystemExit(130) from None


def options_of(settings: type) -> list[inspect.Parameter]:
    """An option for each field of settings; None means not given, so that --config may give it."""
    hints = get_type_hints(settings)
    parameters = []
    for item in dataclasses.fields(settings):
        text = item.metadata["help"]
        if item.metadata["choices"]:
            text += f": {' | '.join(item.metadata['choices'])}"
        if item.default is not None:
            text += f"  [{item.default}]"
        names = flag(item.name)
        if hints[item.name] in (bool, bool | None):
            names = f"{names}/--no-{names.removeprefix('--')}"
        if hints[item.name] is bool:
            text = f"{item.metadata['help']}  [{'yes' if item.default else 'no'}]"
        option = typer.Option(names, help=text)
        parameters.append(_keyword(item.name, Annotated[hints[item.name] | None, option], None))
    for old, new in FORMER_NAMES.items():
        if new in hints:
            parameters.append(_keyword(old, Annotated[hints[new] | None, typer.Option(hidden=True)], None))
    config = Annotated[Path | None, typer.Option(help="TOML file with any of these options")]
    resume = Annotated[bool | None, typer.Option("--resume", help="go on with an interrupted run")]
    extra = (("config", config, None), ("resume", resume, None), ("debug", Debug, False))
    return [*parameters, *(_keyword(*each) for each in extra)]


def _keyword(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

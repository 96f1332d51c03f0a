"""Commands whose options are the fields of settings, and which resume after an interruption."""

import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, get_type_hints

import typer

from torch_linformer.cli.missing_paths import check_data, check_model
from torch_linformer.cli.options import Debug
from torch_linformer.cli.started_by import speaks_for_all
from torch_linformer.errors import Stopped, flag
from torch_linformer.training.run_options import RunOptions, parse_fields, read_config


def run_resumable(
    run: Callable[..., object], settings: type[RunOptions], options: dict[str, Any], *, leaves_a_run: bool = True
) -> None:
    """Call ``run`` with the settings from the options and ``--config``; Ctrl-C prints how to resume what it leaves."""
    options.pop("debug")
    config = options.pop("config")
    settings_of_user = {name: value for name, value in options.items() if value not in (None, [])}
    if "model" in settings_of_user:
        settings_of_user["model"] = parse_fields(settings_of_user["model"], "--model")
    options = {**(read_config(config, settings) if config else {}), **settings_of_user}
    resume = options.pop("resume", False)
    chosen = settings.of(**options)
    check_data(*(getattr(chosen, name, None) for name in ("data", "documents", "validation", "test")))
    check_model(getattr(chosen, "from_model", None))
    from torch_linformer.distributed import processes
    from torch_linformer.training.trainer import Interrupted

    with saying_how_to_go_on(resume if leaves_a_run else None) as command:
        try:
            run(chosen, resume=resume, command=command)
        except Interrupted as interrupted:
            raise Stopped(interrupted.signum) from None
        processes.leave()


@contextmanager
def saying_how_to_go_on(resume: bool | None, start: str | None = None) -> Iterator[str]:
    """The command as it was given; a signal ends it with the command that goes on, and the status of that signal.

    Such are Ctrl-C (130), SIGTERM of a cluster (143) and SIGHUP of a terminal that was closed (129). ``resume`` is
    None where nothing is left to go on with. ``start`` is what stands before the arguments, ``linformer`` or
    ``torchrun …`` if None.
    """
    if start is None:
        processes = os.environ.get("LOCAL_WORLD_SIZE", "1")
        start = "linformer" if processes == "1" else f"torchrun --nproc-per-node {processes} -m torch_linformer.cli"
    command = f"{start} {shlex.join(sys.argv[1:])}"
    with _stopped_by(signal.SIGTERM, signal.SIGHUP):
        try:
            yield command
        except KeyboardInterrupt as interrupt:
            from torch_linformer.reporting.tables import printable

            if speaks_for_all():
                with suppress(OSError):  # a terminal that is closed
                    on = f"to go on:  {command}{'' if resume else ' --resume'}"
                    print(printable(f"stopped; {'nothing was written' if resume is None else on}"), file=sys.stderr)
            signum = interrupt.signum if isinstance(interrupt, Stopped) else signal.SIGINT
            raise SystemExit(128 + signum) from None


@contextmanager
def _stopped_by(*signals: signal.Signals) -> Iterator[None]:
    """Each of these signals raises `Stopped` in the block, as Ctrl-C does, unless it is ignored, as by nohup."""

    def stop(signum: int, frame: FrameType | None) -> None:
        raise Stopped(signum)

    before = {number: signal.getsignal(number) for number in signals}
    heeded = [number for number in signals if before[number] is not signal.SIG_IGN]
    for number in heeded:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in heeded:
            signal.signal(number, before[number])


def options_of(settings: type) -> dict[str, tuple[Any, Any]]:
    """An option for each field of settings, and its default: None means not given, so that --config may give it."""
    hints = get_type_hints(settings)
    options: dict[str, tuple[Any, Any]] = {}
    for item in dataclasses.fields(settings):
        kind, names, text = hints[item.name], flag(item.name), item.metadata["help"]
        if item.metadata["choices"]:
            description, space, default = text.partition("  [")
            text = f"{description} ({' | '.join(item.metadata['choices'])}){space}{default}"
        if item.default is not None:
            text += f"  [{item.default if kind is not bool else 'yes' if item.default else 'no'}]"
        if kind in (bool, bool | None):
            names += f"/--no-{names.removeprefix('--')}"
        option = typer.Option(names, help=text)
        if kind == Mapping[str, Any] | None:
            kind, option.metavar = list[str], "NAME=VALUE"
        options[item.name] = Annotated[kind | None, option], None
    config = Annotated[Path | None, typer.Option(help="TOML file with any of these options")]
    resume = Annotated[bool | None, typer.Option("--resume", help="resume an interrupted run")]
    return {**options, "config": (config, None), "resume": (resume, None), "debug": (Debug, False)}

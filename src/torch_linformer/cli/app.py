"""The command's subcommands, of which an error becomes one line."""

import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from torch_linformer import __version__
from torch_linformer.cli.adapt import adapt
from torch_linformer.cli.evaluate import evaluate
from torch_linformer.cli.explaining import explain
from torch_linformer.cli.export import export
from torch_linformer.cli.generate import generate
from torch_linformer.cli.grouped_help import GroupedCommand
from torch_linformer.cli.import_ import import_
from torch_linformer.cli.info import info
from torch_linformer.cli.inspect_ import inspect_
from torch_linformer.cli.predict_and_embed import embed, predict
from torch_linformer.cli.search import search
from torch_linformer.cli.serve import serve
from torch_linformer.cli.spectrum import spectrum
from torch_linformer.cli.started_by import processes_started, speaks_for_all
from torch_linformer.cli.train import train
from torch_linformer.errors import InputError, SaidElsewhere

USER_ERROR, INTERRUPTED = 2, 130
TOGETHER = ("train", "adapt")  # commands that several processes can share

app = typer.Typer(
    name="linformer",
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    *(train, adapt, evaluate, predict, embed, search, generate, serve),
    *(import_, export, info, inspect_, spectrum),
):
    many_options = command.__name__ in ("train", "adapt")
    app.command(command.__name__.rstrip("_"), cls=GroupedCommand if many_options else TyperCommand)(command)


def show_version(wanted: bool) -> None:
    """Print the version, and end, if that is what was asked for."""
    if wanted:
        print(f"torch-linformer {__version__}")
        raise typer.Exit


@app.callback()
def linformer(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="show the version and exit")
    ] = False,
) -> None:
    """Train and use Linformer models on long documents."""


def run(arguments: list[str] | None = None) -> None:
    """Run the command; whatever goes wrong ends it with one line on standard error, and status 2."""
    arguments = (sys.argv[1:] if arguments is None else arguments) or ["--help"]
    debug = "--debug" in arguments
    if not debug:
        warnings.simplefilter("ignore")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    try:
        _check_alone(arguments[0])
        status = app(arguments, prog_name="linformer", standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        _say("interrupted")
        raise SystemExit(INTERRUPTED) from None
    except Exception as error:
        if debug:
            traceback.print_exc()
        if not _is_said_elsewhere(error):
            _say(explain(error))
        raise SystemExit(USER_ERROR) from None
    if status == INTERRUPTED:  # what some versions of typer return for Ctrl-C
        _say("interrupted")
    raise SystemExit(status or 0)


def _check_alone(name: str) -> None:
    if processes_started() > 1 and name not in TOGETHER:
        several = " and ".join(TOGETHER)
        raise InputError(f"{name} is the work of one process: torchrun and accelerate launch are for {several}")


def _is_said_elsewhere(error: Exception) -> bool:
    """Whether the main process of several says the same: it does before they meet, and of what all were given."""
    if speaks_for_all():
        return False
    distributed = sys.modules.get("torch.distributed")
    return distributed is None or not distributed.is_initialized() or isinstance(error, (SaidElsewhere, InputError))


def _say(line: Any) -> None:
    from torch_linformer.reporting.tables import printable

    print(printable(f"linformer: {line}"), file=sys.stderr)

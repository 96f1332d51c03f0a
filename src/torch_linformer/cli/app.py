"""The command's subcommands, and how an error becomes one line."""

import errno
import os
import sys
import traceback
import warnings
from typing import Annotated, Any

import typer

from torch_linformer import __version__
from torch_linformer.cli.adapt import adapt
from torch_linformer.cli.bench import bench
from torch_linformer.cli.embed import embed
from torch_linformer.cli.evaluate import evaluate
from torch_linformer.cli.export import export
from torch_linformer.cli.generate import generate
from torch_linformer.cli.import_ import import_
from torch_linformer.cli.info import info
from torch_linformer.cli.inspect_ import inspect_
from torch_linformer.cli.predict import predict
from torch_linformer.cli.serve import serve
from torch_linformer.cli.spectrum import spectrum
from torch_linformer.cli.started_by import processes_started, speaks_for_all
from torch_linformer.cli.train import train
from torch_linformer.errors import ANOTHER_ENDED, InputError, SaidElsewhere

USER_ERROR, INTERRUPTED = 2, 130
# Writers in other languages report a full disk only as text; the last two are torch.save, which gives no reason.
DISK_FULL = ("No space left on device", "PytorchStreamWriter failed writing", "unexpected pos ")
# RuntimeErrors of torch, on a CPU and on a GPU.
MEMORY_FULL = ("can't allocate memory", "not enough memory", "out of memory")

# RuntimeErrors of torch.distributed, by gloo and by NCCL.
PEER_GONE = ("Connection closed by peer", "Connection reset by peer", "remote process exited")
TOGETHER = ("train", "adapt")  # commands that several processes can share

app = typer.Typer(
    name="linformer",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for command in (
    *(train, adapt, evaluate, predict, embed, generate, serve),
    *(import_, export, info, inspect_, spectrum, bench),
):
    app.command(command.__name__.rstrip("_"))(command)


def show_version(wanted: bool) -> None:
    """Print the version, and end, if that is what was asked for."""
    if wanted:
        print(f"torch-linformer {__version__}")
        raise typer.Exit


@app.callback()
def linformer(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Show the version and exit.")
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


def explain(error: BaseException) -> str:
    """What went wrong, in one line."""
    if _is_disk_full(error):
        return "the disk is full: make room, then run the same command again (train, adapt, bench: with --resume)"
    if isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and any(text in str(error) for text in MEMORY_FULL)
    ):
        return "not enough memory: lower --batch-size or --max-length, or take a smaller model (--debug shows where)"
    if isinstance(error, RuntimeError) and any(text in str(error) for text in PEER_GONE):
        return ANOTHER_ENDED
    if hasattr(error, "format_message"):  # a wrong option, reported by whichever click typer is built on
        return f"{error.format_message()} (add --help for what there is)"
    message = " ".join(str(error).split())
    if isinstance(error, (ValueError, OSError)) and message:
        return message
    return f"{type(error).__name__}: {message} (--debug shows where)"


def _is_disk_full(error: BaseException | None) -> bool:
    seen: list[BaseException] = []
    while error is not None and error not in seen:  # an error raised again can be its own cause
        if getattr(error, "errno", None) == errno.ENOSPC or any(text in str(error) for text in DISK_FULL):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _say(line: Any) -> None:
    print(f"linformer: {line}", file=sys.stderr)

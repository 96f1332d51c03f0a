"""The folder of a run: one process at a time is at work there, and only whole checkpoints are gone on from."""

import fcntl
import json
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from torch_linformer.distributed import processes
from torch_linformer.errors import InputError, flag
from torch_linformer.reporting.files import damage_of, file_state, flush, write_json
from torch_linformer.reporting.screen import Screen

LOCK_FILE = ".lock"  # names the holder; the lock itself is the kernel's, and ends with the process
MANIFEST = "complete.json"
DATA_FILE = "data.json"  # the columns that a model was trained with
RUN_FILE = "run.json"  # the settings: written before training, so that the folder is known to hold this run
DIGEST = "data_digest"  # of the documents of a run, in its RUN_FILE
# Settings that may change when a run goes on.
FREE = ("output", "baseline", "probe", "context_parallel", "fsdp", "compile", "report_to", "push_to_hub")


@contextmanager
def held(output: Path) -> Iterator[None]:
    """Make a folder if it is missing and keep other processes out; in the end it is removed if it is empty."""
    created = [folder for folder in (output, *output.parents) if not folder.exists()]
    try:
        file = _lock(output)
    except OSError as error:
        raise InputError(f"--output {output}: cannot be written to ({error.strerror}); name another folder") from None
    try:
        yield
    finally:
        Path(file.name).unlink(missing_ok=True)  # while still held, so that no other process can hold it
        file.close()
        with suppress(OSError):  # the first that is not empty
            for folder in created:
                folder.rmdir()


def _lock(output: Path) -> TextIO:
    while True:
        output.mkdir(parents=True, exist_ok=True)
        try:
            file = open(output / LOCK_FILE, "a+", encoding="utf-8")  # noqa: SIM115 - stays open while it is held
        except FileNotFoundError:  # the holder has just ended and removed the folder
            continue
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            holder = file.read().strip() or "another one"
            file.close()
            raise InputError(
                f"--output {output}: process {holder} is at work there; wait for its end, or name another folder"
            ) from None
        if os.fstat(file.fileno()).st_nlink:
            file.truncate(0)  # a killed process leaves its name
            file.write(f"{os.getpid()} on {socket.gethostname()}\n")
            file.flush()
            return file
        file.close()  # the holder has just ended and removed the file: a lock on it would keep nobody out


def check_free(output: Path) -> None:
    """Raise ``InputError`` where a folder cannot be made: something is there, or nothing can be written there."""
    if output.is_file() or (output.is_dir() and any(output.iterdir())):
        raise InputError(f"--output {output}: is not empty; name another folder")
    check_writable(output)


def check_writable(output: Path) -> None:
    """Raise ``InputError`` where no file or folder can be made at ``output``: before the work, rather than after it."""
    if output.is_char_device() or output.is_fifo():  # /dev/stdout
        return
    existing = next(folder for folder in output.absolute().parents if folder.exists())
    if not (existing.is_dir() and os.access(existing, os.W_OK | os.X_OK)):
        raise InputError(f"--output {output}: cannot be written to, because of {existing}; name another place")


@contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """A temporary folder to fill, which is renamed when the block ends without an error, and otherwise removed."""
    check_free(output)
    temporary = output.with_name(f".{output.name}.{secrets.token_hex(4)}.tmp")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        for path in (*temporary.rglob("*"), temporary):
            flush(path)
        os.replace(temporary, output)
        flush(output.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@dataclass(frozen=True)
class Spent:
    """What the training of a run has taken so far, over all the processes that trained it."""

    seconds: float = 0.0  # of steps and evaluations
    tokens: int = 0
    head_seconds: float = 0.0  # before the first step, of a first head

    @property
    def all_seconds(self) -> float:
        return self.head_seconds + self.seconds

    @property
    def tokens_per_second(self) -> float:
        """Real tokens a second of training."""
        return self.tokens / max(self.seconds, 1e-9)


def checkpoints(output: Path) -> list[Path]:
    """The ``checkpoint-N`` folders of a run, oldest first, complete or not."""
    paths = [path for path in output.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))


def seal(checkpoint: Path, spent: Spent) -> None:
    """Mark a checkpoint as complete: the last file written has the size and digest of all others, which are on disk."""
    paths = [path for path in sorted(checkpoint.rglob("*")) if path != checkpoint / MANIFEST]
    for path in paths:
        flush(path)
    states = {path.relative_to(checkpoint).as_posix(): file_state(path) for path in paths if path.is_file()}
    write_json(checkpoint / MANIFEST, {"files": states, "spent": asdict(spent)})
    flush(checkpoint.parent)


def is_whole(checkpoint: Path) -> bool:
    """Whether every file is there, with the bytes that `seal` recorded."""
    try:
        states = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["files"]
        return all(damage_of(checkpoint / name, state) is None for name, state in states.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a manifest that is damaged itself
        return False


def read_spent(checkpoint: Path) -> Spent:
    """What the training up to a complete checkpoint took."""
    return Spent(**json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))["spent"])


def identity(settings: Any) -> dict[str, Any]:
    """What two runs must share to be the same run: every setting but those that the model does not depend on."""
    return {name: None if name in FREE else value for name, value in asdict(settings).items()}


def differences(started: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """The settings in which a run that is there is not the one that is wanted; empty if it is."""
    names = [name for name in run if started.get(name) != run[name]]
    return ", ".join(f"{flag(name)} {started.get(name)} there, {run[name]} here" for name in names)


@contextmanager
def shared_run(
    output: Path, run: dict[str, Any], resume: bool, screen: Screen, result: str = "metrics.json"
) -> Iterator[tuple[Path | None, bool]]:
    """The folder of a run, which the main process keeps for all; its checkpoints are gone once the block succeeds.

    The checkpoint to resume from, if any, and whether the run is finished; the arguments are those of :func:`open_run`.
    A run that is refused leaves no folder, one that is stopped does.
    """

    def forget(kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception) and _holds_nothing(output):
            (output / RUN_FILE).unlink(missing_ok=True)

    with ExitStack() as kept:

        def opened() -> tuple[Path | None, bool]:
            if output.is_file():
                raise InputError(f"--output {output}: is a file; name a folder")
            kept.enter_context(held(output))
            kept.push(forget)
            return open_run(output, run, resume, screen, result), (output / result).exists()

        yield processes.on_main(opened)
        if processes.is_main():
            for checkpoint in checkpoints(output):
                shutil.rmtree(checkpoint)


def open_run(
    output: Path, run: dict[str, Any], resume: bool, screen: Screen, result: str = "metrics.json"
) -> Path | None:
    """Make sure that the folder is free, or holds this run; returns the checkpoint to resume from, if any.

    ``run`` identifies the run, and ``result`` is the file that a finished run has.
    """
    run_file = output / RUN_FILE
    if _holds_nothing(output):
        if resume:
            screen.say(f"no run in {output} yet: starting afresh")
        return None
    if not run_file.exists():
        raise InputError(f"--output {output}: is not empty and holds no run; name another folder")
    try:
        started = json.loads(run_file.read_text(encoding="utf-8"))
    except ValueError:
        raise InputError(f"{run_file}: is not valid JSON; remove {output} or name another --output") from None
    if different := differences(started, run):
        raise InputError(f"--output {output}: holds another run ({different}); name another folder")
    if not resume:
        raise InputError(f"--output {output}: holds this run already; add --resume to go on, or name another folder")
    found = checkpoints(output)
    while found and not is_whole(found[-1]):
        screen.say(f"{found[-1]} is incomplete or damaged: removed")
        shutil.rmtree(found.pop())
    if not (output / result).exists():
        screen.say(f"going on from {found[-1]}" if found else f"no checkpoint in {output}: starting afresh")
    return found[-1] if found else None


def begin_run(output: Path, run: Mapping[str, Any], digest: str, checkpoint: Path | None) -> None:
    """Write what identifies a run into its folder, once its documents are read, before it trains.

    Raises:
        InputError: the run goes on, and its documents are no longer those that it began with.
    """
    if checkpoint is not None:
        digest_at_start = json.loads((output / RUN_FILE).read_text(encoding="utf-8")).get(DIGEST)
        if digest_at_start != digest:
            raise InputError(
                f"--resume: the documents of {run['data']} are not those that the run in {output} began with; "
                "name another --output, or give it the same documents again"
            )
    write_json(output / RUN_FILE, {**run, DIGEST: digest})


def _holds_nothing(output: Path) -> bool:
    """Whether nothing in a folder is worth keeping: a run killed before its first checkpoint leaves only its name."""
    return all(path.name == RUN_FILE or path.name.startswith(".") for path in output.glob("*"))


def write_columns(columns: Mapping[str, str], output: Path) -> None:
    """Keep in the folder of a run which columns of a table it was trained with, by what they hold."""
    write_json(output / DATA_FILE, {"columns": dict(columns)})


def trained_columns(folder: str | Path) -> tuple[tuple[str, str], ...]:
    """The columns that the model of a folder was trained with; empty where it was trained with texts, or elsewhere."""
    file = Path(folder) / DATA_FILE
    if not file.is_file():
        return ()
    try:
        columns: dict[str, str] = json.loads(file.read_text(encoding="utf-8"))["columns"]
        return tuple((str(what), str(column)) for what, column in columns.items())
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{file}: is not valid; remove it, and name the columns") from None

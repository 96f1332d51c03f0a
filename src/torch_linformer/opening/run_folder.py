"""The folder of a run: which run it holds, and the checkpoints it resumes from, whole ones only."""

import dataclasses
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from torch_linformer.errors import InputError, flag
from torch_linformer.opening import processes
from torch_linformer.opening.folders import held
from torch_linformer.opening.model_folder import save_tokenizer
from torch_linformer.reporting.files import damage_of, file_state, flush, write_json
from torch_linformer.reporting.screen import Screen

MANIFEST = "complete.json"
FREE = (
    "output",
    "baseline",
    "probe",
    "context_parallel",
    "fsdp",
    "compile",
    "report_to",
    "push_to_hub",
)  # settings that may change when a run goes on
DATA_FILE = "data.json"  # the columns that a model was trained with
DIGEST = "data_digest"  # of the documents of a run, in its RUN_FILE beside the settings
RUN_FILE = "run.json"  # the settings: written before training, so that the folder is known to hold this run


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


def seal(checkpoint: Path, spent: Spent) -> None:
    """Mark a checkpoint as complete: the last file written has the size and digest of all others, which are on disk."""
    files = [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path != checkpoint / MANIFEST]
    for path in (*files, *(path for path in checkpoint.rglob("*") if path.is_dir())):
        flush(path)
    states = {path.relative_to(checkpoint).as_posix(): file_state(path) for path in files}
    write_json(checkpoint / MANIFEST, {"files": states, "spent": asdict(spent)})
    flush(checkpoint.parent)


def is_whole(checkpoint: Path) -> bool:
    """Whether every file is there, with the bytes that `seal` recorded."""
    try:
        states = _manifest(checkpoint)["files"]
        return all(damage_of(checkpoint / name, state) is None for name, state in states.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # a manifest that is damaged itself
        return False


def read_spent(checkpoint: Path) -> Spent:
    """What the training up to a complete checkpoint took."""
    return Spent(**_manifest(checkpoint)["spent"])


def checkpoints(output: Path) -> list[Path]:
    """The ``checkpoint-N`` folders of a run, oldest first, complete or not."""
    paths = [path for path in output.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(paths, key=lambda path: int(path.name.rpartition("-")[2]))


def remove_checkpoints(output: Path) -> None:
    """Remove every ``checkpoint-N`` folder of a run."""
    for checkpoint in checkpoints(output):
        shutil.rmtree(checkpoint)


def last_whole_checkpoint(output: Path) -> tuple[Path | None, list[Path]]:
    """The newest whole checkpoint, and the newer ones that are incomplete or damaged."""
    broken: list[Path] = []
    for checkpoint in reversed(checkpoints(output)):
        if is_whole(checkpoint):
            return checkpoint, broken
        broken.append(checkpoint)
    return None, broken


def _manifest(checkpoint: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((checkpoint / MANIFEST).read_text(encoding="utf-8"))
    return manifest


@contextmanager
def run_folder(output: Path) -> Iterator[None]:
    """Keep the folder of a run from other processes; one refused early leaves none, one that is stopped does."""
    if output.is_file():
        raise InputError(f"--output {output}: is a file; name a folder")
    with held(output):
        try:
            yield
        except Exception:
            if _holds_nothing(output):
                (output / RUN_FILE).unlink(missing_ok=True)
            raise


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
    checkpoint, broken = last_whole_checkpoint(output)
    for path in broken:
        screen.say(f"{path} is incomplete or damaged: removed")
        shutil.rmtree(path)
    if not (output / result).exists():
        afresh = f"no checkpoint in {output}: starting afresh"
        screen.say(afresh if checkpoint is None else f"going on from {checkpoint}")
    return checkpoint


@contextmanager
def shared_run(
    output: Path, run: dict[str, Any], resume: bool, screen: Screen, result: str = "metrics.json"
) -> Iterator[tuple[Path | None, bool]]:
    """The folder of a run, which the main process keeps for all; its checkpoints are gone once the block succeeds.

    The checkpoint to resume from, if any, and whether the run is finished; the arguments are those of :func:`open_run`.
    """
    with ExitStack() as kept:

        def opened() -> tuple[Path | None, bool]:
            kept.enter_context(run_folder(output))
            return open_run(output, run, resume, screen, result), (output / result).exists()

        yield processes.on_main(opened)
        if processes.is_main():
            remove_checkpoints(output)


def begin_run(output: Path, run: Mapping[str, Any], digest: str, checkpoint: Path | None) -> None:
    """Write what identifies a run into its folder, once its documents are read, before it trains.

    Args:
        output: the folder.
        run: the settings that identify the run.
        digest: of its documents.
        checkpoint: the one that the run goes on from, if any.

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


def differences(started: Mapping[str, Any], run: Mapping[str, Any]) -> str:
    """The settings in which a run that is there is not the one that is wanted; empty if it is."""
    names = [name for name in run if started.get(name) != run[name]]
    return ", ".join(f"{flag(name)} {started.get(name)} there, {run[name]} here" for name in names)


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


def write_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: Path) -> None:
    """Put a model and its tokenizer into the folder of a run, each file complete or not at all."""
    unfinished = output / ".unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    save_tokenizer(tokenizer, model, unfinished)
    mode = (unfinished / "config.json").stat().st_mode
    for file in unfinished.iterdir():
        file.chmod(mode)  # safetensors leaves the weights readable only by their owner
        flush(file)
        os.replace(file, output / file.name)
    flush(output)
    unfinished.rmdir()


def identity(settings: Any) -> dict[str, Any]:
    """What two runs must share to be the same run: every setting but those that the model does not depend on."""
    return {name: None if name in FREE else value for name, value in dataclasses.asdict(settings).items()}

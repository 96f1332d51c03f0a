"""Which checkpoints of a run are whole: one that was killed, or lost its power, goes on from the last of them."""

import json
import re
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch_linformer.reporting.files import damage_of, file_state, flush, write_json

MANIFEST = "complete.json"


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
    found = [path for path in output.glob("checkpoint-*") if re.fullmatch(r"checkpoint-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.rpartition("-")[2]))


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

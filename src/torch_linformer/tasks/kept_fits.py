"""What is fitted to documents, kept for other runs that fit the same to the same documents."""

import functools
import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar, cast

import datasets
import joblib
import sklearn

from torch_linformer.data import words

FOLDER = "torch_linformer"  # in the cache of `datasets`
MOST_BYTES = 2**30  # of all that is kept; what was used least lately goes first
P = ParamSpec("P")
R = TypeVar("R")


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """A function whose result is read from a file where it was called with the same arguments before.

    The name of the file is a digest of the arguments and of the code that fits: nothing of the documents is in it.
    """

    @functools.wraps(function)
    def read(*args: P.args, **given: P.kwargs) -> R:
        folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER / "fits"
        file = folder / joblib.hash((_version(), function.__qualname__, args, given))
        try:
            result = cast(R, joblib.load(file))
            os.utime(file)
        except Exception:  # it is not there, or was damaged: it is fitted again
            result = function(*args, **given)
            folder.mkdir(parents=True, exist_ok=True)
            half = file.with_suffix(f".{os.getpid()}")
            joblib.dump(result, half)
            half.replace(file)
            _forget(folder)
        return result

    return read


@functools.cache
def _version() -> str:
    """A digest of the code that divides texts into words and fits: another version fits anew."""
    code = [path.read_bytes() for path in (Path(words.__file__), *sorted(Path(__file__).parent.glob("*.py")))]
    return hashlib.sha256(b"".join([sklearn.__version__.encode(), *code])).hexdigest()


def _forget(folder: Path) -> None:
    states = []
    for file in folder.iterdir():
        with suppress(FileNotFoundError):  # another process has renamed or forgotten it
            states.append((file.stat().st_mtime, file.stat().st_size, file))
    total = 0
    for _, size, file in sorted(states, reverse=True):
        total += size
        if total > MOST_BYTES:
            file.unlink(missing_ok=True)

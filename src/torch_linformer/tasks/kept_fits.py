"""What is fitted to documents, kept for other runs that fit the same to the same documents."""

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import datasets
import joblib
import sklearn

FOLDER = "torch_linformer"  # in the cache of `datasets`
MOST_BYTES = 2**30
P = ParamSpec("P")
R = TypeVar("R")


def kept(function: Callable[P, R]) -> Callable[P, R]:
    """A function of what can be pickled, whose results are read where it was called with the same arguments before."""

    @functools.wraps(function)
    def read(*args: P.args, **given: P.kwargs) -> R:
        return cast(R, _memory(datasets.config.HF_DATASETS_CACHE).cache(function)(*args, **given))

    return read


@functools.cache
def _memory(cache: str) -> Any:
    """Results of this version of the code that fits, and of no other."""
    digest = hashlib.sha256(sklearn.__version__.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    memory = joblib.Memory(Path(cache) / FOLDER / "fits" / digest.hexdigest()[:16], verbose=0)
    memory.reduce_size(MOST_BYTES)
    return memory

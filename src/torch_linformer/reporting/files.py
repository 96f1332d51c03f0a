"""Files that appear under their final name only when they are whole."""

import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path to write to, and give it the name `path` once the block has succeeded.

    The temporary file lies in the same folder (made if missing) and keeps the suffix of `path`, which some
    writers read. On success it is flushed to disk and renamed over `path` in one step; on any failure it is
    removed, and what was at `path` stays untouched. A pipe or device (`/dev/stdout`) is yielded as it is,
    because renaming a file over it would replace it.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        yield path
        return
    target = Path(os.path.realpath(path))  # write through a symbolic link instead of replacing the link
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name of our own and not `mkstemp`, which would leave the final file readable only by its owner.
    temporary = target.with_name(f".{target.stem[:40]}.{secrets.token_hex(4)}.tmp{target.suffix}")
    try:
        yield temporary
        with open(temporary, "r+b") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` to `path` as UTF-8, whole or not at all.

    A lone surrogate (how Python spells a file name that is not UTF-8) becomes an escape such as `\\udc80`.
    """
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="\n")


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Write `content` to `path`, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(content)


def write_json(path: str | os.PathLike[str], obj: object) -> None:
    """Write `obj` to `path` as indented JSON, whole or not at all; NaN and infinities become null."""
    write_text(path, json.dumps(_finite(obj), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def is_taken(folder: Path) -> bool:
    """Whether the place of a run is taken: by a file, or by a folder with files that are not hidden."""
    return folder.is_file() or (folder.is_dir() and any(not path.name.startswith(".") for path in folder.iterdir()))


def _finite(obj: object) -> object:
    """Copy of `obj` with None for NaN and infinities, which JSON lacks."""
    if isinstance(obj, float) and not math.isfinite(obj):
        return None
    if isinstance(obj, Mapping):
        return {key: _finite(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_finite(value) for value in obj]
    return obj

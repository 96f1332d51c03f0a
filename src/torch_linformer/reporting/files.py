"""Files that appear under their final name only when they are whole, and whether they still are what was written."""

import hashlib
import json
import math
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


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
        flush(temporary)
        os.replace(temporary, target)
        flush(target.parent)  # the new name
    finally:
        temporary.unlink(missing_ok=True)


def flush(path: Path) -> None:
    """Have what was written to a file, or the names in a folder, on the disk: a loss of power spares it then."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def file_state(path: Path) -> dict[str, Any]:
    """The bytes of a file, and their SHA-256: what :func:`damage_of` compares it with."""
    with path.open("rb") as file:
        return {"bytes": os.fstat(file.fileno()).st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def damage_of(path: Path, state: Mapping[str, Any]) -> str | None:
    """What is wrong with a file that had this :func:`file_state`, in two or three words; None if it still has it."""
    try:
        size = path.stat().st_size
        if size != state["bytes"]:
            return f"has {size:,} bytes of {state['bytes']:,}"
        return None if file_state(path) == {name: state[name] for name in ("bytes", "sha256")} else "was overwritten"
    except OSError:
        return "is missing"


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


def _finite(obj: object) -> object:
    """Copy of `obj` with None for NaN and infinities, which JSON lacks."""
    if isinstance(obj, float) and not math.isfinite(obj):
        return None
    if isinstance(obj, Mapping):
        return {key: _finite(value) for key, value in obj.items()}
    if isinstance(obj, list | tuple):
        return [_finite(value) for value in obj]
    return obj

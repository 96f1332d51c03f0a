"""How titles name a model or data."""

import re
from pathlib import Path

_TELLS_NOTHING = re.compile(r"model|snapshots|checkpoint-\d+|[0-9a-f]{40}")


def name_in_title(source: str) -> str:
    """The name of a file or folder, without its path; what is neither, such as a name on the hub, is its own name.

    A folder whose name tells nothing, such as ``model`` or ``checkpoint-500``, goes by the name of the one it lies in.
    """
    path = Path(source)
    if not path.exists():
        return source
    path = path.resolve()
    if path.is_file():
        return path.stem
    return next((part for part in reversed(path.parts[1:]) if not _TELLS_NOTHING.fullmatch(part)), path.name)

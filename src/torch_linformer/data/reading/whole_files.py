"""Text that has to be in memory as a whole: a document, or a JSON value. What needs not is read piece by piece."""

from pathlib import Path
from typing import TextIO

from torch_linformer.errors import InputError
from torch_linformer.measuring.machine import memory_bytes
from torch_linformer.reporting.tables import format_bytes

# Parts of the memory. A character takes 33 bytes where each is a token (docs/scale.md), and ten as an object of JSON.
OF_DOCUMENT, OF_JSON = 64, 16


def read_whole(stream: TextIO, name: str | Path, head: str = "", *, part: int = OF_DOCUMENT) -> str:
    """What is left of a stream, after the ``head`` that was read before.

    Raises:
        InputError: it is larger than that part of the machine's memory.
    """
    most = memory_bytes() // part
    text = head + stream.read(most + 1 - len(head))
    if len(text) > most:
        raise InputError(
            f"{name}: holds more than {format_bytes(most)}, 1/{part} of this machine's memory, as one text; split it, "
            "or write JSON lines with a document on each"
        )
    return text

"""Standard streams, which may be closed when a command starts."""

import os
import sys

_OPEN_AS = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY}


def open_closed_streams() -> None:
    """Connect each closed standard stream to the null device.

    Otherwise the next file that is opened gets its number, and what a library prints goes into that file.
    """
    for number, (name, mode) in enumerate(_OPEN_AS.items()):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, mode)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            way = "r" if name == "stdin" else "w"
            stream = open(number, way, encoding="utf-8", closefd=False)  # noqa: SIM115 - stays open
            setattr(sys, name, stream)


def check_standard_output() -> None:
    """Raise ``ValueError`` where standard output was closed: the command's result would be lost."""
    opened_by_us = getattr(sys.stdout, "name", None) == 1  # the name of Python's own is "<stdout>"
    if opened_by_us:
        raise ValueError("standard output is closed: open it, or redirect it into a file")

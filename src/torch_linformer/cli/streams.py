"""Standard streams, which whoever starts a command may have closed."""

import os
import sys

_OPEN_AS = {"stdin": os.O_RDONLY, "stdout": os.O_WRONLY, "stderr": os.O_WRONLY}


def open_closed_streams() -> None:
    """Give each standard stream that is closed nothing to read from, or to write to.

    Its number would else go to the next file that is opened, and what a library prints would go into that file.
    """
    for number, (name, mode) in enumerate(_OPEN_AS.items()):
        if getattr(sys, name) is None:
            nothing = os.open(os.devnull, mode)
            if nothing != number:
                os.dup2(nothing, number)
                os.close(nothing)
            way = "r" if name == "stdin" else "w"
            stream = open(number, way, encoding="utf-8", closefd=False)  # noqa: SIM115 - open for as long as all is
            setattr(sys, name, stream)


def check_standard_output() -> None:
    """Raise ``ValueError`` where standard output was closed: what the command makes would be lost."""
    if getattr(sys.stdout, "name", None) == 1:  # which Python calls "<stdout>" where it has opened it itself
        raise ValueError("standard output is closed: open it, or redirect it into a file")

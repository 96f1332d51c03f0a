"""Which of the processes that ``torchrun`` or ``accelerate launch`` started this is; told before torch is loaded."""

import os


def processes_started() -> int:
    """How many there are."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def speaks_for_all() -> bool:
    """Whether this is the one that has the screen."""
    return os.environ.get("RANK", "0") == "0"

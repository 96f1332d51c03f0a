"""The one exception that means "the input has to change, not the program", and what settings are called."""


class InputError(ValueError):
    """What the user gave cannot be used.

    The message is one line for a person: where (file and row), what is wrong there, and what to do. The
    commands print it to standard error and exit with status 2.
    """


ANOTHER_ENDED = "another process of this training has ended; begin all of them again, with --resume"


class SaidElsewhere(Exception):
    """The main process of several has failed, and says why."""


class Stopped(KeyboardInterrupt):
    """A signal that asks a command to end as Ctrl-C does.

    Attributes:
        signum: its number.
    """

    def __init__(self, signum: int) -> None:
        super().__init__()
        self.signum = signum


FORMER_NAMES = {"memory": "activation_memory"}
"""Settings by the names they had; older command lines and files still use these."""

BEFORE = {
    "quoting": "auto",
    "max_errors": 0,
    "slot_mass": "none",
    "exact_first": 0,
    "exact_last": 0,
    "slot_learning_rate": 2e-3,
    "lexical": "none",
    "lexical_width": 4096,
    "patience": 0,
    "freeze": False,
    "freeze_layers": 0,
}
"""What a run did that was begun before there was such a setting; the learning rate was one of nothing."""


def first_line(error: BaseException) -> str:
    """The first line of another library's message, with the next where it announces that; or the kind of error."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")


def flag(name: str) -> str:
    """``max_length`` as it stands on the command line."""
    return "--from" if name == "from_model" else "--" + name.replace("_", "-")

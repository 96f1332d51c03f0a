"""The exceptions that mean "the input has to change, not the program", and how settings are called."""


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


def first_line(error: BaseException) -> str:
    """The first line of another library's message, with the next where it announces that; or the kind of error."""
    lines = [line.strip() for line in str(error).strip().splitlines()] or [type(error).__name__]
    return " ".join(lines[: 2 if lines[0].endswith(":") else 1]).rstrip(".")


def flag(name: str) -> str:
    """``max_length`` as it stands on the command line."""
    return "--from" if name == "from_model" else "--" + name.replace("_", "-")

"""Options of a run, from the command line, a TOML file or Python alike, and which have an effect for what."""

import dataclasses
import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, TypeVar

from torch_linformer.errors import InputError, flag
from torch_linformer.measuring.machine import memory_bytes
from torch_linformer.reporting.tables import format_bytes

PUSH_HELP = "upload the finished folder to NAME or OWNER/NAME on the hub; private where it is new"


class RunOptions:
    """Options of a command, each a field of a dataclass."""

    @classmethod
    def of(cls, **options: Any) -> Self:
        """The options as a user gives them: what a name or a file stands for is looked up here, once."""
        return cls(**options)


Settings = TypeVar("Settings", bound=RunOptions)


def option(
    default: Any,
    help: str,
    choices: tuple[str, ...] = (),
    *,
    tasks: tuple[str, ...] = (),
    of_new: bool = False,
    of_steps: bool = False,
    least: int | None = None,
    positive: bool = False,
) -> Any:
    """A field with its help text on the command line, and with what decides whether it can be given.

    Args:
        default: where it is not given.
        help: on the command line.
        choices: its values, if there are only some.
        tasks: that have it; all if none is named.
        of_new: whether only a new model has it.
        of_steps: whether only a training step by step has it.
        least: the lowest number.
        positive: whether a number has to be above 0.
    """
    rules = {"help": help, "choices": choices, "tasks": tasks, "of_new": of_new, "of_steps": of_steps}
    return field(default=default, metadata={**rules, "least": least, "positive": positive})


def check_options(settings: Any) -> None:
    """Raise ``InputError`` for a choice there is not, or a number that is out of its range."""
    for item in dataclasses.fields(settings):
        value, rules = getattr(settings, item.name), item.metadata
        if value is None:
            continue
        if rules["choices"] and value not in rules["choices"]:
            raise InputError(f"{flag(item.name)} must be one of {', '.join(rules['choices'])}, got {value!r}")
        if rules["positive"] and not 0 < value < math.inf:
            raise InputError(f"{flag(item.name)} must be a number above 0, got {value}")
        if rules["least"] is not None and value < rules["least"]:
            raise InputError(f"{flag(item.name)} must be at least {rules['least']}, got {value}")
    for name in ("max_length", "max_target_length"):
        needed, memory = 8 * (getattr(settings, name, None) or 0), memory_bytes()
        if needed > memory:
            raise InputError(
                f"{flag(name)} {getattr(settings, name)}: numbering the tokens of one text takes "
                f"{format_bytes(needed)}, and this machine has {format_bytes(memory)}; take fewer tokens"
            )
    if not 0 <= settings.seed < 2**32:
        raise InputError(f"--seed must be at least 0 and below 2^32, got {settings.seed}")


def check_fsdp(settings: Any) -> None:
    """Raise ``InputError`` for what does not go with weights in pieces."""
    if settings.fsdp and settings.precision == "fp16":
        raise InputError("--fsdp does not go with --precision fp16, whose scale differs by process: take bf16")
    if settings.fsdp and settings.compile:
        raise InputError("--compile is for a single process: leave out --fsdp")


def settings_of(kind: type[Settings], options: Mapping[str, Any], function: str) -> Settings:
    """Settings from options as they are given in Python: paths may be such, K a number or a list of them.

    Raises:
        TypeError: an option that ``function`` does not have.
        InputError: a value of another type, or out of its range.
    """
    kinds = {item.name: str(item.type) for item in dataclasses.fields(kind)}  # type: ignore[arg-type]
    check_names(options, kinds, function)
    return kind.of(**{name: _convert(name, value, kinds[name], name) for name, value in options.items()})


def parse_fields(pairs: Sequence[str], option: str) -> dict[str, Any]:
    """Fields given as ``NAME=VALUE``; a value that is no JSON is text.

    Raises:
        InputError: one without ``=``, or given twice.
    """
    values: dict[str, Any] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        name = name.strip().replace("-", "_")
        if not equals or name in values:
            raise InputError(f"{option} {pair}: {'stands there twice' if equals else 'must be NAME=VALUE'}")
        try:
            values[name] = json.loads(value)
        except ValueError:
            values[name] = value.strip()
    return values


def check_names(options: Iterable[str], known: Iterable[str], function: str) -> None:
    """Raise ``TypeError`` for an option that a function does not have, with the one that was probably meant."""
    known = list(known)
    for name in options:
        if name not in known:
            raise TypeError(f"{function}() has no option {name!r}; {suggestion(name, known)}")


def suggestion(name: str, known: Sequence[str]) -> str:
    """Which of the names that there are was probably meant, or all of them."""
    similar = get_close_matches(name, known, n=1)
    return f"did you mean {similar[0]!r}?" if similar else f"there are {', '.join(known)}"


def read_config(path: str, settings: type) -> dict[str, Any]:
    """Options of a settings class from a TOML file, named as on the command line, with hyphens or underscores.

    Raises:
        InputError: the file is missing or malformed, or an option is unknown or of the wrong type.
    """
    try:
        values = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"--config {path}: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"--config {path}: not valid TOML: {error}") from None
    known = {item.name: str(item.type) for item in dataclasses.fields(settings)}
    kinds = {**known, "resume": "bool"}
    spelled = [flag(name).removeprefix("--") for name in (*known, "resume")]
    options: dict[str, Any] = {}
    for key, value in values.items():
        name = "from_model" if key == "from" else key.replace("-", "_")
        if name in options:
            raise InputError(f"--config {path}: {flag(name).removeprefix('--')} stands there twice; remove one of them")
        if name not in kinds:
            raise InputError(f"--config {path}: unknown option {key!r}; {suggestion(key.replace('_', '-'), spelled)}")
        options[name] = _convert(name, value, kinds[name], f"--config {path}: {key}")
    return options


def _convert(name: str, value: Any, type_name: str, where: str) -> Any:
    """A value as the type that a field has: numbers may stand for text and whole numbers for fractions."""
    if value is None and "None" in type_name:
        return None
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if name == "k" and isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    if "bool" in type_name:
        if not isinstance(value, bool):
            raise InputError(f"{where} must be true or false, got {value!r}")
        return value
    if "Mapping" in type_name:
        if not isinstance(value, Mapping):
            raise InputError(f"{where} must be a table of fields and their values, got {value!r}")
        return dict(value)
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise InputError(f"{where} must be a number or text, got {value!r}")
    if "float" in type_name and isinstance(value, (int, float)):
        return float(value)
    if "int" in type_name and isinstance(value, int):
        return value
    if "str" in type_name:
        return str(value)
    kind = "a whole number" if "int" in type_name else "a number"
    raise InputError(f"{where} must be {kind}, got {value!r}")

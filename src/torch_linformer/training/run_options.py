"""Options of a run, from the command line, a TOML file or Python alike, and which have an effect for what."""

import json
import math
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Self, TypeVar

from torch_linformer.data.reading.data_options import HELP, QUOTING, DataOptions
from torch_linformer.errors import InputError, flag
from torch_linformer.measuring.machine import memory_bytes
from torch_linformer.reporting.tables import format_bytes


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


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options that ``linformer train`` and ``adapt`` share."""

    data: str | None = option(None, "documents to read")
    encoding: str | None = option(None, HELP["encoding"])
    delimiter: str | None = option(None, HELP["delimiter"])
    quoting: str = option("auto", HELP["quoting"], QUOTING)
    header: bool | None = option(None, HELP["header"])
    text_folder: str | None = option(None, HELP["text_folder"])
    seed: int = option(0, "seed of the split and of the order")
    fsdp: bool = option(False, "under torchrun: shard the weights over the processes (FSDP2)", of_steps=True)
    compile: bool = option(
        False, "use torch.compile: the first batches are slow, and it was slower on every CPU measured"
    )
    precision: str = option("auto", "auto: bf16 where the device is faster with it", ("auto", "fp32", "bf16", "fp16"))
    device: str = option("auto", "auto: a GPU if there is one", ("auto", "cpu", "cuda", "mps"))
    push_to_hub: str | None = option(
        None, "upload the finished folder to NAME or OWNER/NAME on the hub; private where it is new"
    )

    @classmethod
    def of(cls, **options: Any) -> Self:
        """The options as a user gives them: what a name or a file stands for is looked up here, once."""
        return cls(**options)

    def __post_init__(self) -> None:
        for item in fields(self):
            value, rules = getattr(self, item.name), item.metadata
            if value is None:
                continue
            if rules["choices"] and value not in rules["choices"]:
                raise InputError(f"{flag(item.name)} must be one of {', '.join(rules['choices'])}, got {value!r}")
            if rules["positive"] and not 0 < value < math.inf:
                raise InputError(f"{flag(item.name)} must be a number above 0, got {value}")
            if rules["least"] is not None and value < rules["least"]:
                raise InputError(f"{flag(item.name)} must be at least {rules['least']}, got {value}")
        for name in ("max_length", "max_target_length"):
            needed, memory = 8 * (getattr(self, name, None) or 0), memory_bytes()
            if needed > memory:
                raise InputError(
                    f"{flag(name)} {getattr(self, name)}: numbering the tokens of one text takes "
                    f"{format_bytes(needed)}, and this machine has {format_bytes(memory)}; take fewer tokens"
                )
        if not 0 <= self.seed < 2**32:
            raise InputError(f"--seed must be at least 0 and below 2^32, got {self.seed}")
        if self.fsdp and self.precision == "fp16":
            raise InputError("--fsdp does not go with --precision fp16, whose scale differs by process: take bf16")
        if self.fsdp and self.compile:
            raise InputError("--compile is for a single process: leave out --fsdp")
        _ = self.reading  # refuses an encoding or a delimiter that there is not

    @property
    def reading(self) -> DataOptions:
        """What the user says of how the documents are read."""
        return DataOptions.of(self)


Settings = TypeVar("Settings", bound=RunOptions)


def settings_of(kind: type[Settings], options: Mapping[str, Any], function: str) -> Settings:
    """Settings from options as they are given in Python: paths may be such, K a number or a list of them.

    Raises:
        TypeError: an option that ``function`` does not have.
        InputError: a value of another type, or out of its range.
    """
    kinds = {item.name: str(item.type) for item in fields(kind)}
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
    known = {item.name: str(item.type) for item in fields(settings)}
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

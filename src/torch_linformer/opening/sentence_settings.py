"""How a folder of sentence-transformers reads texts: what is put before them, their case and their length."""

import json
from dataclasses import dataclass, field
from typing import Any

from torch_linformer.errors import InputError
from torch_linformer.opening.model_files import model_file

MODULES = "modules.json"  # that a folder of sentence-transformers has
PROMPTS = "config_sentence_transformers.json"
TRANSFORMER, TOKENIZER = "sentence_bert_config.json", "tokenizer_config.json"
# By the name of the family, as older versions of sentence-transformers called it.
_FAMILIES = ("roberta", "distilbert", "camembert", "albert", "xlm-roberta", "xlnet")
_NAMES = (TRANSFORMER, *(f"sentence_{family}_config.json" for family in _FAMILIES))


@dataclass(frozen=True, kw_only=True)
class SentenceSettings:
    """What sentence-transformers does with a text before its model reads it; the defaults leave a text as it is.

    Attributes:
        prompts: what may be put before a text, by name.
        default_prompt_name: the one that is, unless another is asked for; None for none.
        max_seq_length: tokens read at once, special tokens included; None for all that the model reads.
        do_lower_case: whether texts become lower case; the folder's tokenizer does it once it is opened here.
    """

    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    max_seq_length: int | None = None
    do_lower_case: bool = False

    @property
    def prompt(self) -> str:
        """What is put before every text."""
        return "" if self.default_prompt_name is None else self.prompts[self.default_prompt_name]

    def longest(self, most: int) -> int:
        """Tokens that are read at once of the ``most`` that the model reads."""
        return most if self.max_seq_length is None else min(self.max_seq_length, most)


def sentence_settings(path: str) -> SentenceSettings:
    """The settings of a folder, or on the hub; the defaults where it is none of sentence-transformers.

    Where the folder tells no length, as since version 6, its tokenizer does.

    Raises:
        InputError: a file cannot be read, has a value of another type, or the default prompt is not among the prompts.
    """
    if model_file(path, MODULES) is None:
        return SentenceSettings()
    told = _fields(path, PROMPTS)
    transformer = next(filter(None, (_fields(path, name) for name in _NAMES)), {})
    max_seq_length = transformer.get("max_seq_length") or _fields(path, TOKENIZER).get("model_max_length")
    name = told.get("default_prompt_name")
    prompts = {name: text or "" for name, text in _typed(path, PROMPTS, "prompts", told.get("prompts"), dict).items()}
    if name is not None and name not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise InputError(f"{path}: the default prompt of {PROMPTS} is {name!r}, and its prompts are {known}; correct it")
    return SentenceSettings(
        prompts=prompts,
        default_prompt_name=name,
        max_seq_length=_typed(path, TRANSFORMER, "max_seq_length", max_seq_length, int) or None,
        do_lower_case=_typed(path, TRANSFORMER, "do_lower_case", transformer.get("do_lower_case"), bool),
    )


def _fields(path: str, name: str) -> dict[str, Any]:
    """The content of a JSON file, empty where there is none."""
    file = model_file(path, name)
    try:
        return {} if file is None else dict(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path}: {name} cannot be read ({error}); copy the folder again") from None


def _typed(path: str, file: str, name: str, value: Any, kind: type) -> Any:
    """A value of a type, or the type's empty one where it is left out."""
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise InputError(f"{path}: {name} in {file} must be of type {kind.__name__}, got {value!r}; correct it")
    return value

"""How a folder of sentence-transformers reads texts: what is put before them, their case and their length."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch_linformer.errors import InputError
from torch_linformer.opening.model_files import model_file
from torch_linformer.reporting.files import write_json

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

    def prompt(self, name: str | None = None) -> str:
        """What is put before every text: the prompt of this name, or the default one.

        Raises:
            InputError: there is no such prompt.
        """
        name = self.default_prompt_name if name is None else name
        if name is not None and name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise InputError(f"--prompt-name {name!r}: no such prompt; the model's folder has {known}")
        return "" if name is None else self.prompts[name]

    def longest(self, most: int) -> int:
        """Tokens that are read at once of the ``most`` that the model reads."""
        return most if self.max_seq_length is None else min(self.max_seq_length, most)


AS_THEY_ARE = SentenceSettings()  # texts of other folders


def sentence_settings(path: str) -> SentenceSettings:
    """The settings of a folder, or on the hub; the defaults where it is none of sentence-transformers.

    Where the folder tells no length, as since version 6, its tokenizer does.

    Raises:
        InputError: a file cannot be read, has a value of another type, or the default prompt is not among the prompts.
    """
    if model_file(path, MODULES) is None:
        return AS_THEY_ARE
    told, transformer = _Fields(path, PROMPTS), _transformer(path)
    prompts = {name: told.typed(str, text, f"prompt {name!r}") for name, text in told.get(dict, "prompts").items()}
    default = told.get(str, "default_prompt_name") or None
    if default is not None and default not in prompts:
        known = ", ".join(map(repr, prompts)) or "none"
        raise InputError(f"{path}: default_prompt_name in {PROMPTS} is {default!r}: name one of its prompts, {known}")
    length = transformer.get(int, "max_seq_length") or _Fields(path, TOKENIZER).get(int, "model_max_length")
    return SentenceSettings(
        prompts=prompts,
        default_prompt_name=default,
        max_seq_length=length or None,
        do_lower_case=transformer.get(bool, "do_lower_case"),
    )


def write_transformer(folder: Path, max_seq_length: int, settings: SentenceSettings) -> None:
    """Write the length and the case of texts into a folder of sentence-transformers."""
    write_json(folder / TRANSFORMER, {"max_seq_length": max_seq_length, "do_lower_case": settings.do_lower_case})


def _transformer(path: str) -> "_Fields":
    """What is said of the model's texts."""
    return next((fields for name in _NAMES if (fields := _Fields(path, name)).values), _Fields(path, TRANSFORMER))


class _Fields:
    """The fields of a JSON file beside a model; none where there is no such file."""

    def __init__(self, path: str, name: str) -> None:
        self.path, self.name = path, name
        file = model_file(path, name)
        try:
            self.values = {} if file is None else dict(json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise InputError(f"{path}: {name} cannot be read ({error}); copy the folder again") from None

    def get(self, kind: type, field: str) -> Any:
        """The value of a field, or the empty one of its type where there is none."""
        return self.typed(kind, self.values.get(field), field)

    def typed(self, kind: type, value: Any, field: str) -> Any:
        """``value``, if it is of this type."""
        if value is None:
            return kind()
        if not isinstance(value, kind):
            raise InputError(
                f"{self.path}: {field} in {self.name} must be of type {kind.__name__}, got {value!r}; correct it"
            )
        return value

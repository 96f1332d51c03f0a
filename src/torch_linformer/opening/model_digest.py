"""What tells a model from another under the same name: a digest of the files that make its answers."""

import hashlib
import json
import re
from pathlib import Path

from torch_linformer.errors import InputError
from torch_linformer.opening.model_files import model_file
from torch_linformer.reporting.files import file_state

# What is read of a model folder; results that lie there too are none of it.
_READ = re.compile(
    r"(config|data|modules|config_sentence_transformers|sentence_\w+_config)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|vocab\.txt|merges\.txt"
    r"|.+\.(safetensors|bin|model|index\.json)"
)


def model_digest(source: str) -> str:
    """A digest of the configuration, tokenizer and weights of a model folder (or of a model on the hub).

    Two folders with the same have models that compute the same. Reading the weights takes about as long as loading
    them.

    Raises:
        InputError: there is no such model.
    """
    config = model_file(source, "config.json")
    if config is None:
        raise InputError(f"{source}: is no model folder: it has no config.json")
    states = {file.relative_to(config.parent).as_posix(): file_state(file) for file in _files(config.parent)}
    return hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    """The files of a model, and of the modules of sentence-transformers beside it."""
    own = [file for file in folder.iterdir() if _READ.fullmatch(file.name)]
    modules = folder.glob("[0-9]*_*/**/*")  # 1_Pooling
    return sorted(file for file in (*own, *modules) if file.is_file())

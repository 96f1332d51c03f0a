"""How a folder of sentence-transformers makes embeddings of hidden states."""

import json
from pathlib import Path
from typing import Any

from torch_linformer.errors import InputError
from torch_linformer.opening.pretrained import model_file
from torch_linformer.reporting.files import write_json

POOLINGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
}
MODULES = ("Transformer", "Pooling", "Normalize")  # of sentence-transformers, in this order


def sentence_pooling(path: str) -> str | None:
    """Which pooling follows the encoder in a folder of sentence-transformers, or on the hub; None for another model.

    Raises:
        InputError: the folder is damaged, or has modules or a pooling that embeddings here do not have.
    """
    modules = model_file(path, "modules.json")
    if modules is None:
        return None
    try:
        parts = json.loads(modules.read_text(encoding="utf-8"))
        kinds, folders = ([part[name] for part in parts] for name in ("type", "path"))
        # The names of modules of another package are kept whole: they are refused.
        kinds = [kind.rpartition(".")[2] if kind.startswith("sentence_transformers.") else kind for kind in kinds]
        of_pooling = model_file(path, f"{folders[1]}/config.json")
        if of_pooling is None:
            raise OSError(f"{folders[1]}/config.json is missing")
        config = json.loads(of_pooling.read_text(encoding="utf-8"))
    except (OSError, ValueError, KeyError, TypeError, IndexError) as error:
        raise InputError(f"{path}: modules.json or a folder it names cannot be read ({error})") from None
    if kinds not in ([*MODULES], [*MODULES[:2]]) or folders[0]:
        raise InputError(
            f"{path}: its modules are {', '.join(kinds)}; understood are folders of Transformer, Pooling and, perhaps, "
            "Normalize, the first of them in the folder itself"
        )
    ways = _ways(config)
    if len(ways) != 1 or ways[0] not in POOLINGS.values():
        raise InputError(f"{path}: pools by {', '.join(ways) or 'nothing'}; only mean, cls or max are understood")
    return ways[0]


def write_sentence_modules(config: Any, folder: Path, pooling: str) -> None:
    """Make a folder with an encoder one of sentence-transformers, whose vectors have length 1."""
    names = ("", "1_Pooling", "2_Normalize")
    modules = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(zip(MODULES, names, strict=True))
    ]
    # Under the names that other readers of such folders know too; some want to see all four.
    ways = {**{way: name == pooling for way, name in POOLINGS.items()}, "pooling_mode_mean_sqrt_len_tokens": False}
    (folder / names[1]).mkdir(exist_ok=True)
    write_json(folder / names[1] / "config.json", {"word_embedding_dimension": config.hidden_size, **ways})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": config.max_position_embeddings})
    write_json(folder / "modules.json", modules)


def _ways(config: dict[str, Any]) -> list[str]:
    """The poolings in a configuration of sentence-transformers, of its version 6 or before it."""
    mode = config.get("pooling_mode")
    if mode is not None:
        return [mode] if isinstance(mode, str) else mode
    names = [name for name, value in config.items() if name.startswith("pooling_mode_") and value is True]
    return [POOLINGS.get(name, name) for name in names]

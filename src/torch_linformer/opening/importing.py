"""Weights trained elsewhere as a model folder of this package."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import transformers

from torch_linformer.errors import InputError
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.models.convert import (
    from_bert,
    from_distilbert,
    from_fairseq,
    from_linformer_pytorch,
    from_lucidrains,
    from_roberta,
    from_xlm_roberta,
    read_checkpoint,
)
from torch_linformer.opening.new_folder import check_free, new_folder
from torch_linformer.opening.pretrained import load_any_config, load_tokenizer_if_any


@dataclass(frozen=True)
class Origin:
    """Where weights come from: what converts them, and which of the options it takes."""

    convert: Callable[..., LinformerPreTrainedModel]
    options: tuple[str, ...]
    is_folder: bool = False


_OF_AN_ENCODER = ("k", "max_length", "projection")
ORIGINS = {  # those that are folders are named by their model_type
    "lucidrains": Origin(from_lucidrains, ("heads",)),
    "linformer-pytorch": Origin(from_linformer_pytorch, ("activation",)),
    "fairseq": Origin(from_fairseq, ("heads",)),
    "bert": Origin(from_bert, _OF_AN_ENCODER, is_folder=True),
    "roberta": Origin(from_roberta, _OF_AN_ENCODER, is_folder=True),
    "xlm-roberta": Origin(from_xlm_roberta, _OF_AN_ENCODER, is_folder=True),
    "distilbert": Origin(from_distilbert, _OF_AN_ENCODER, is_folder=True),
}
_ARGUMENTS = {"heads": "num_heads", "max_length": "max_len"}  # of the functions that convert


def import_model(source: str, origin: str, output: Path, **options: Any) -> LinformerPreTrainedModel:
    """Write weights trained elsewhere as a model folder: configuration, safetensors, and the tokenizer if there is one.

    Args:
        source: a checkpoint file; for an encoder of transformers its folder, or its name on the hub.
        origin: a key of :data:`ORIGINS`.
        output: folder to make.
        options: heads, activation, k, max_length or projection; None where not given.

    Returns:
        The model.

    Raises:
        InputError: an unknown origin, an option it does not take, no such source, a folder that is taken.
        ValueError: weights that cannot be converted.
    """
    if origin not in ORIGINS:
        raise InputError(f"--from must be one of {', '.join(ORIGINS)}, got {origin!r}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in sorted(given.keys() - ORIGINS[origin].options):
        raise InputError(f"--{name.replace('_', '-')} means nothing with --from {origin}")
    check_free(output)
    converter, arguments = ORIGINS[origin], {_ARGUMENTS.get(name, name): value for name, value in given.items()}
    if converter.is_folder:
        load_any_config(source)  # says what is wrong with the folder, where something is
        model, tokenizer = converter.convert(source, **arguments), load_tokenizer_if_any(source)
    else:
        if not Path(source).exists():
            raise InputError(f"{source}: no such file")
        model, tokenizer = converter.convert(read_checkpoint(source), **arguments), None
    transformers.logging.disable_progress_bar()
    with new_folder(output) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.model_max_length = model.config.max_position_embeddings
            tokenizer.save_pretrained(folder)
    return model
